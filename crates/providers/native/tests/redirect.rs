//! Connections that the firewall redirects to a port that the host serves: the host learns where they were going.

use kennel_core::{ListenAt, Provider, WriteOptions};
use kennel_native::Native;
use kennel_testkit::net::program;
use kennel_testkit::{Home, Net, Stage, Subject, host, inside, programs};
use kennel_types::{ExecSpec, NetworkMode, SandboxSpec};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

struct Namespaces {
    home: Home,
    /// A private network, so that no rule of this machine is changed.
    _net: Net,
}

impl Subject for Namespaces {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.programs()))
    }
}

#[test]
fn original_destination_of_a_redirected_connection_is_known() {
    kennel_testkit::check(|| Namespaces { home: Home::new(), _net: Net::alone() }, redirected);
}

async fn redirected(stage: &Stage) {
    let sandbox = stage.started(&SandboxSpec { network: Some(NetworkMode::None), ..stage.spec() }).await;
    let compiled = stage.home().path().join("sockets");
    programs::compile(programs::SOCKETS, &compiled);
    let options = WriteOptions { mode: Some(0o755), parents: true };
    inside::files(&sandbox).await.write("/tmp/sockets", &std::fs::read(&compiled).unwrap(), options).await.unwrap();
    let mut spec = ExecSpec::argv(["sleep", "1000"]);
    let mark = stage.mark(&mut spec, "sleeper");
    let _sleeper = sandbox.exec(&spec).await.unwrap();
    let [pid] = host::marked(&mark)[..] else { panic!("one process sleeps") };
    let pid = pid.to_string();
    let in_its_network = |words: &[&str]| {
        let all: Vec<&str> = ["-t", &pid, "-n"].into_iter().chain(words.iter().copied()).collect();
        program("nsenter", &all);
    };

    let mut listener = sandbox.listen(&ListenAt::Tcp(0), None).await.unwrap();
    let port = listener.port();
    for (family, table, elsewhere) in [("-4", "ip", "192.0.2.1:80"), ("-6", "ip6", "[2001:db8::1]:80")] {
        in_its_network(&["ip", family, "route", "add", "local", "default", "dev", "lo"]);
        let chain = "{ type nat hook output priority -100; }";
        in_its_network(&["nft", &format!("add table {table} kennel; add chain {table} kennel out {chain}")]);
        in_its_network(&["nft", &format!("add rule {table} kennel out tcp dport 80 redirect to :{port}")]);
        let spec = ExecSpec::argv(["/tmp/sockets", "send", &format!("at:{elsewhere}")]);
        let client = sandbox.run(&spec, Some(b""), 1000);
        let serve = async {
            let (mut stream, origin) = listener.accept().await.unwrap();
            stream.write_all(b"answer").await.unwrap();
            stream.shutdown().await.unwrap();
            origin
        };
        let both = async { tokio::join!(client, serve) };
        let (output, origin) = tokio::time::timeout(inside::SOON, both).await.expect("the host serves it");
        assert_eq!(output.unwrap().stdout_text(), "answer");
        assert_eq!(origin.destination.unwrap(), elsewhere.parse().unwrap());
    }
}
