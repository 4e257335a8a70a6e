//! The client crate, with a server that is killed.

use crate::support::{SOON, Stage};
use kennel_api::ExecRequest;
use kennel_api::stream::StreamStart;
use kennel_client::{Client, CommandEvent, CommandStream, ServerAddress};
use kennel_types::{ErrorCode, ExitStatus};

fn client(stage: &Stage) -> Client {
    let address: ServerAddress = format!("http://{}", stage.address).parse().unwrap();
    Client::new(address, Some(stage.token.clone().into()))
}

async fn next(command: &mut CommandStream) -> CommandEvent {
    tokio::time::timeout(SOON, command.next()).await.expect("something happens").unwrap()
}

/// Reads until the output so far is this.
async fn read(command: &mut CommandStream, seen: &mut Vec<u8>, expected: &[u8]) {
    while seen.len() < expected.len() {
        match next(command).await {
            CommandEvent::Output(_, bytes) => seen.extend(bytes),
            other => panic!("{other:?} after {} bytes", seen.len()),
        }
    }
    assert!(seen == expected, "{} bytes", seen.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_the_client_survives_kills_of_the_server() {
    let mut stage = Stage::new().await;
    let (client, id) = (client(&stage), stage.sandbox.id().to_string());
    let start = StreamStart { shell: Some("cat".into()), stdin: true, hold: true, ..StreamStart::default() };
    let mut command = client.command(&id, start).await.unwrap();
    let input = command.take_input().unwrap();
    let (mut sent, mut seen) = (Vec::new(), Vec::new());
    for round in 0..5_u8 {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8 ^ round).collect();
        sent.extend_from_slice(&bytes);
        input.write(bytes).await.unwrap();
        if round % 2 == 0 {
            // A part of it may be on its way.
            stage.kill();
            stage.restart();
        }
        read(&mut command, &mut seen, &sent).await;
    }
    stage.kill();
    input.close().await.unwrap();
    stage.restart();
    let exited = ExitStatus { code: Some(0), ..ExitStatus::default() };
    assert_eq!(next(&mut command).await, CommandEvent::Exited(exited));
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_are_errors_of_the_library() {
    let stage = Stage::new().await;
    let client = client(&stage);
    assert!(client.is_ready().await.unwrap());
    let id = stage.sandbox.id().to_string();
    let request = ExecRequest { argv: Some(vec!["echo".into(), "hi".into()]), ..ExecRequest::default() };
    assert_eq!(client.exec(&id, &request).await.unwrap().stdout, "hi\n");
    assert_eq!(client.sandboxes().await.unwrap().items.len(), 1);
    assert_eq!(client.sandbox("no-such").await.unwrap_err().code(), ErrorCode::NotFound);
    let error = client.command("no-such", StreamStart::default()).await.err().expect("it is refused");
    assert_eq!(error.code(), ErrorCode::NotFound);
    let missing = StreamStart { argv: Some(vec!["/no/such".into()]), ..StreamStart::default() };
    let error = client.command(&id, missing).await.err().expect("it cannot be run");
    assert_eq!(error.exit_status(), 127, "{error}");
    let stranger = Client::new(client.address().clone(), None);
    assert_eq!(stranger.sandboxes().await.unwrap_err().code(), ErrorCode::PermissionDenied);
    stage.clean_up().await;
}
