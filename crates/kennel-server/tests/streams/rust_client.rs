//! The client crate, with a server that is killed.

use crate::support::{SOON, Stage};
use kennel_api::stream::StreamStart;
use kennel_api::{
    CreateSandbox, CreateSession, ExecRequest, FileToWrite, Network, ReadFiles, StartProcess, WriteFiles,
};
use kennel_client::{Client, CommandEvent, CommandStream, ServerAddress};
use kennel_types::{ErrorCode, ExitStatus};
use std::time::Duration;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_uses_commands_files_and_sessions() {
    let stage = Stage::new().await;
    let (client, id) = (client(&stage), stage.sandbox.id().to_string());
    let start = StartProcess { shell: Some("cat; exit 4".into()), stdin: true, ..StartProcess::default() };
    let process = client.start_process(&id, &start).await.unwrap();
    let taken = client.write_input(&id, process, Some(0), b"hello".to_vec(), true).await.unwrap();
    assert_eq!((taken.offset, taken.closed), (5, true));
    let ended = client.wait_for_process(&id, process, SOON).await.unwrap();
    assert_eq!((ended.running, ended.exit_code), (false, Some(4)));
    let read = client.read_output(&id, process, [0, 0], SOON).await.unwrap();
    assert_eq!(read.stdout.text.as_deref(), Some("hello"));
    let read = client.read_output(&id, process, [5, 0], SOON).await.unwrap();
    assert_eq!(read.exit.map(|exit| exit.exit_code), Some(4));

    let file =
        |path: &str, text: &str| FileToWrite { path: path.into(), text: Some(text.into()), ..FileToWrite::default() };
    let files = vec![file("/tmp/new/a.txt", "a needle"), file("/proc/none/x", "x")];
    let written = client.write_files(&id, &WriteFiles { files, user: None }).await.unwrap();
    assert!(written[0].1.is_ok() && written[1].1.is_err(), "{written:?}");
    let paths = vec!["/tmp/new/a.txt".into(), "/tmp/new/none".into()];
    let read = client.read_files(&id, &ReadFiles { paths, user: None }).await.unwrap();
    assert_eq!(read[0].1.as_deref().ok(), Some(&b"a needle"[..]));
    assert_eq!(read[1].1.as_ref().err().map(kennel_core::Error::code), Some(ErrorCode::NotFound));
    let found = client.search_files(&id, "/tmp/new", Some("*.txt"), Some("needle")).await.unwrap();
    assert_eq!((found.matches[0].path.as_str(), found.matches[0].line), ("a.txt", Some(1)));

    let sandbox = CreateSandbox {
        network: Some(Network::None),
        env: [("KENNEL_TEST_HOME".to_owned(), stage.home.mark())].into(),
        ..CreateSandbox::default()
    };
    let request = CreateSession { name: Some("fix".into()), sandbox: Some(sandbox), ..CreateSession::default() };
    let session = client.create_session(&request).await.unwrap();
    let command = ExecRequest { argv: Some(vec!["echo".into(), "hi".into()]), ..ExecRequest::default() };
    assert_eq!(client.exec_in_session("fix", &command).await.unwrap().stdout, "hi\n");
    assert_eq!(client.session("fix").await.unwrap().id, session.id);
    assert_eq!(client.session_secret("fix").await.unwrap().map(|secret| secret.len()), Some(64));
    client.stop_session("fix", Duration::ZERO).await.unwrap();
    let events = client.session_events("fix", 0).await.unwrap();
    assert_eq!(events.last().and_then(|event| event.to.as_deref()), Some("stopped"), "{events:?}");
    client.remove_session("fix", true, true).await.unwrap();
    assert_eq!(client.sessions().await.unwrap().len(), 0);
    assert_eq!(client.pools().await.unwrap().len(), 0);
    assert_eq!(client.remove_image("nothing").await.unwrap_err().code(), ErrorCode::ImageNotFound);
    stage.clean_up().await;
}
