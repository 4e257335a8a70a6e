//! Keepers of older Kennels: sandboxes that run during an upgrade stay usable.

use crate::inside::{files, ok};
use crate::{Stage, Wire};
use kennel_core::{Error, Features, Sandbox, WriteOptions};
use kennel_proto::{Body, Decoder, Frame, Hello, Request, encode};
use kennel_types::{ErrorCode, ExecSpec};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// With a keeper of generation 1, everything that it supports works. Everything else is refused, and the error says what
/// to do; nothing that the keeper would not understand is sent.
pub async fn keeper_of_generation_1_is_supported(stage: &Stage) {
    let sandbox = stage.running().await;
    // It claims features that no keeper of generation 1 has.
    let wire = Wire::older(stage.provider(), 1, Features::ALL);
    let older = stage.again(wire.clone(), &sandbox).await;
    assert_eq!(ok(&older, "echo hi").await, "hi");
    assert_eq!(files(&older).await.list("/").await.is_ok(), files(&sandbox).await.list("/").await.is_ok());
    wire.requests();
    for error in refusals(&older).await {
        assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
        assert!(error.to_string().contains("was started by an older Kennel"), "{error}");
        assert!(error.next_step().is_some(), "{error}");
    }
    let requests = wire.requests();
    assert!(requests.is_empty(), "{requests:?}");
}

/// With a keeper of this generation that lacks features, their requests are refused and not sent.
pub async fn missing_features_are_refused(stage: &Stage) {
    let sandbox = stage.running().await;
    let wire = Wire::recording(stage.provider(), Features::default());
    let poorer = stage.again(wire.clone(), &sandbox).await;
    for error in refusals(&poorer).await {
        assert_eq!(error.code(), ErrorCode::Unsupported, "{error}");
    }
    let requests = wire.requests();
    assert!(requests.is_empty(), "{requests:?}");
}

/// Asks for everything that a keeper of generation 1 does not have.
async fn refusals(sandbox: &Sandbox) -> Vec<Error> {
    let files = files(sandbox).await;
    let plain = ExecSpec::argv(["true"]);
    let mut errors = vec![
        sandbox.idle().await.unwrap_err(),
        sandbox.reset_idle().await.unwrap_err(),
        sandbox.keeper().await.unwrap().tie(true).await.unwrap_err(),
        files.write_at("/file", 1, &b"x"[..], WriteOptions::default()).await.unwrap_err(),
        files.list_tree("/", 2).await.unwrap_err(),
    ];
    for spec in [
        ExecSpec { tag: Some("tag".into()), ..plain.clone() },
        ExecSpec { hold: true, ..plain.clone() },
        ExecSpec { linger: Some(Duration::from_secs(1)), ..plain },
    ] {
        errors.push(sandbox.exec(&spec).await.err().expect("it is refused"));
    }
    errors
}

/// A host of generation 1 can use a keeper of this generation.
pub async fn host_of_generation_1_is_supported(stage: &Stage) {
    let sandbox = stage.running().await;
    let mut dialed = stage.provider().dial(sandbox.id()).await.unwrap();
    let mut bytes = Vec::new();
    let hello = Hello { generation: 1, token: dialed.token.map(Into::into), owner: false };
    encode(&Frame { stream: 0, body: Body::Hello(hello) }, &mut bytes);
    encode(&Frame { stream: 1, body: Body::Open(Box::new(Request::Processes)) }, &mut bytes);
    dialed.stream.write_all(&bytes).await.unwrap();
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while frames.len() < 2 {
            let count = dialed.stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it hung up after {frames:?}");
            decoder.feed(&buffer[..count]);
            while let Some(frame) = decoder.next_frame().unwrap() {
                frames.push(frame);
            }
        }
    };
    tokio::time::timeout(crate::inside::SOON, reading).await.expect("it replies");
    assert!(matches!(&frames[0].body, Body::Welcome(welcome) if welcome.generation == 1), "{frames:?}");
    assert!(matches!(&frames[1].body, Body::Reply(_)), "{frames:?}");
}
