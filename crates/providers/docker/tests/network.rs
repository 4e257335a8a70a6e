//! What a container with network `bridge` can reach, on this machine's own networks, because the engines use them.

mod engines;

use engines::{ALL, Fixture, on_every_engine};
use kennel_core::Sandbox;
use kennel_testkit::net::{answer_at, answers};
use kennel_testkit::{Net, inside, programs};
use kennel_types::{IsolationLayer, NetworkMode, SandboxSpec};

on_every_engine!(the_internet_is_in_reach_and_the_host_is_not);

async fn reach(sandbox: &Sandbox, how: &str, to: &str) -> String {
    inside::ok(sandbox, &format!("/workspace/reach {how} {to}")).await
}

async fn the_internet_is_in_reach_and_the_host_is_not(fixture: &Fixture) {
    programs::compile(programs::REACH, &fixture.home.workspace().join("reach"));
    let spec =
        SandboxSpec { workspace: Some(fixture.home.workspace()), network: Some(NetworkMode::Bridge), ..fixture.spec() };
    let sandbox = fixture.started(&spec).await;
    assert!(sandbox.inspect().await.unwrap().enforcement.layers.contains(&IsolationLayer::NetworkFilter));
    // The host gets an address and a network. The rules are those of the moment when the sandbox starts.
    let net = Net::in_current_namespace("kentest1");
    let near = format!("{}:7100", Net::NEAR);
    let far = format!("{}:7100", Net::FAR);
    let host = format!("{}:7100", Net::HOST);
    for place in [&near, &far] {
        net.there(|| answer_at(place.parse().unwrap()));
    }
    answer_at(host.parse().unwrap());
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    sandbox.start().await.unwrap();
    for how in ["tcp", "udp"] {
        assert_eq!(reach(&sandbox, how, &far).await, "reached", "{how} {far}");
        for place in [&host, &near] {
            assert!(answers(place.parse().unwrap()), "{place} answers the host");
            let outcome = reach(&sandbox, how, place).await;
            assert!(outcome.starts_with("not reached"), "{how} {place}: {outcome}");
        }
    }
    // If another program starts the container, it is not less isolated: its keeper refuses to run.
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    let container = format!("kennel-{}", sandbox.info().name);
    fixture.ask(&["start", &container]);
    let waited = fixture.ask(&["wait", &container]);
    assert_eq!(waited, "125", "its keeper refuses");
    sandbox.remove(ALL).await.unwrap();
    fixture.clean(false).await;
}
