//! Another runtime than the engine's usual one, where the engine has it.

mod engines;

use engines::{Fixture, Kind};
use kennel_testkit::docker::Private;
use kennel_testkit::inside;
use kennel_types::{NetworkMode, SandboxSpec};

#[tokio::test]
async fn it_runs_what_it_is_asked_for() {
    // By another name: which one it is matters to the engine alone.
    let engine = Private::start_with(&["--add-runtime", "other=/usr/sbin/runc"]);
    let fixture = Fixture::on(Kind::Docker, engine.socket());
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..fixture.spec() };
    let format = "{{.HostConfig.Runtime}}";
    for (asked, runtime) in [(Some("other"), "other"), (None, "runc")] {
        let spec = SandboxSpec { runtime: asked.map(ToOwned::to_owned), ..spec.clone() };
        let sandbox = fixture.started(&spec).await;
        assert_eq!(inside::ok(&sandbox, "echo hello").await, "hello");
        let container = format!("kennel-{}", sandbox.info().name);
        assert_eq!(fixture.ask(&["inspect", "--format", format, &container]), runtime);
    }
    fixture.clean(false).await;
}
