//! The networks of the row, and the refusal of the others.

use crate::Stage;
use crate::inside::ok;
use kennel_core::Sandbox;
use kennel_types::{NetworkMode, SandboxSpec, Support};

/// A sandbox with this network, if the row has it. If not, asking for it must be refused.
async fn with(stage: &Stage, network: NetworkMode) -> Option<Sandbox> {
    let spec = SandboxSpec { network: Some(network), ..stage.spec() };
    if !stage.mode().networks.contains(&network) {
        stage.refuses(&spec).await;
        return None;
    }
    let sandbox = stage.started(&spec).await;
    assert_eq!(sandbox.inspect().await.unwrap().network, network);
    // Nothing more can be seen of it without processes.
    (stage.mode().processes == Support::Given).then_some(sandbox)
}

async fn interfaces(sandbox: &Sandbox) -> Vec<String> {
    parse_interfaces(&ok(sandbox, "cat /proc/net/dev").await)
}

fn parse_interfaces(table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned());
    names.collect()
}

fn own_namespace() -> String {
    std::fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned()
}

/// It is up, and there is no way out.
pub async fn none_is_loopback_only(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::None).await else { return };
    assert_ne!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    assert_eq!(interfaces(&sandbox).await, ["lo"]);
    assert_eq!(ok(&sandbox, "tail -n +2 /proc/net/route").await, "");
    assert!(ok(&sandbox, "cat /proc/net/fib_trie").await.contains("127.0.0.1"), "loopback is up");
}

/// The very same.
pub async fn host_is_the_hosts(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::Host).await else { return };
    assert_eq!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    let layers = sandbox.inspect().await.unwrap().enforcement.layers;
    assert!(!layers.contains(&kennel_types::Layer::NetNamespace), "{layers:?}");
}

/// A stack of its own with a default route.
pub async fn bridge_is_its_own_with_a_way_out(stage: &Stage) {
    let Some(sandbox) = with(stage, NetworkMode::Bridge).await else { return };
    assert_ne!(ok(&sandbox, "readlink /proc/self/ns/net").await, own_namespace());
    assert!(interfaces(&sandbox).await.len() >= 2);
    let routes = ok(&sandbox, "tail -n +2 /proc/net/route").await;
    assert!(routes.lines().any(|line| line.split_whitespace().nth(1) == Some("00000000")), "{routes}");
    assert!(!ok(&sandbox, "cat /etc/resolv.conf").await.is_empty(), "names can be resolved");
}
