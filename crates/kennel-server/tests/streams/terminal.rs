//! Commands and terminals over a WebSocket.

use crate::support::{Arrived, Stage};
use futures_util::{SinkExt as _, StreamExt as _};
use kennel_api::stream::{PAYLOAD, ServerMessage, StreamChannel, WINDOW};
use kennel_testkit::eventually;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_input_output_and_an_exit() {
    let stage = Stage::new().await;
    let script = "cat; echo problem >&2; exit 7";
    let mut client = stage.open(json!({"type": "start", "shell": script, "stdin": true})).await;
    client.started().await;
    // More than all windows together.
    let input: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    while sent < input.len() || client.received[0].len() < input.len() {
        let ahead = sent - client.stdin_acked as usize;
        if sent < input.len() && ahead + PAYLOAD <= WINDOW as usize {
            let piece = &input[sent..input.len().min(sent + PAYLOAD)];
            client.write(sent as u64, piece).await;
            sent += piece.len();
        } else {
            assert!(!matches!(client.next().await, Arrived::Closed(_)), "{sent} bytes sent");
        }
    }
    client.say(json!({"type": "eof", "offset": sent})).await;
    assert_eq!(client.exit().await, 7);
    assert!(client.received[0] == input);
    assert_eq!(client.received[1], b"problem\n");
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_a_size_and_signals() {
    let stage = Stage::new().await;
    let script = "trap 'echo got it; exit 5' USR1; trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done";
    let mut client = stage.open(json!({"type": "start", "shell": script, "tty": {"rows": 33, "cols": 101}})).await;
    client.started().await;
    client.read(b"33 101\r\n".len()).await;
    client.say(json!({"type": "resize", "rows": 50, "cols": 120})).await;
    client.read(b"33 101\r\n50 120\r\n".len()).await;
    client.say(json!({"type": "signal", "signal": 10})).await;
    assert_eq!(client.exit().await, 5);
    // The shell may also report that its child was ended by the signal.
    let seen = String::from_utf8_lossy(&client.received[0]);
    assert!(seen.starts_with("33 101\r\n50 120\r\n") && seen.contains("got it\r\n"), "{seen}");
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_stops_the_command_and_loses_nothing() {
    let stage = Stage::new().await;
    let mut client = stage.open(json!({"type": "start", "shell": "seq 1 400000"})).await;
    client.acknowledges = false;
    client.started().await;
    while client.received[0].len() + PAYLOAD <= WINDOW as usize {
        client.next().await;
    }
    // The reply to the ping comes after everything that the server would have sent before it.
    client.socket.send(Message::Ping(b"x".to_vec().into())).await.unwrap();
    loop {
        match client.socket.next().await.unwrap().unwrap() {
            Message::Pong(_) => break,
            Message::Binary(bytes) => client.received[0].extend(&bytes[9..]),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(client.received[0].len() <= WINDOW as usize, "{} bytes", client.received[0].len());
    assert_eq!(stage.running().await.len(), 1, "the command waits");
    client.acknowledges = true;
    client.acknowledge(StreamChannel::Stdout).await;
    assert_eq!(client.exit().await, 0);
    let expected: Vec<u8> = (1..=400_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    assert!(client.received[0] == expected);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_window_of_one_channel_does_not_stop_the_other() {
    let stage = Stage::new().await;
    let script = "seq 1 50000; echo done >&2; read x";
    let mut client = stage.open(json!({"type": "start", "shell": script, "stdin": true})).await;
    client.acknowledges = false;
    client.started().await;
    while client.received[1].is_empty() {
        assert!(!matches!(client.next().await, Arrived::Closed(_)));
    }
    assert!(client.received[0].len() <= WINDOW as usize);
    client.acknowledges = true;
    client.acknowledge(StreamChannel::Stdout).await;
    client.say(json!({"type": "eof", "offset": 0})).await;
    client.exit().await;
    let expected: usize = (1..=50_000).map(|number| format!("{number}\n").len()).sum();
    assert_eq!(client.received[0].len(), expected);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_is_no_end_of_file() {
    let stage = Stage::new().await;
    let mut client = stage.open(json!({"type": "start", "shell": "cat; echo end", "stdin": true})).await;
    let process = client.started().await;
    client.write(0, b"one\n").await;
    client.read(4).await;
    client.socket.close(None).await.unwrap();
    let mut client = stage.open(json!({"type": "attach", "process": process, "stdout": 4, "write": true})).await;
    assert_eq!(client.attached().await, Some(4));
    assert_eq!(stage.running().await, [process]);
    // What was sent before is ignored, so a client may send everything again.
    client.write(0, b"one\ntwo\n").await;
    client.say(json!({"type": "eof", "offset": 8})).await;
    assert_eq!(client.exit().await, 0);
    assert_eq!(client.received[0], b"two\nend\n");
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients_see_a_terminal_and_one_writes() {
    let stage = Stage::new().await;
    let mut writer = stage.open(json!({"type": "start", "argv": ["cat"], "stdin": true})).await;
    let process = writer.started().await;
    writer.write(0, b"first\n").await;
    writer.read(6).await;
    let mut viewers = Vec::new();
    for _ in 0..3 {
        let mut viewer = stage.open(json!({"type": "attach", "process": process, "stdout": 0})).await;
        assert_eq!(viewer.attached().await, None);
        viewers.push(viewer);
    }
    let mut second = stage.open(json!({"type": "attach", "process": process, "write": true})).await;
    assert_eq!(second.error().await, ("conflict".into(), 1011));
    viewers[0].write(0, b"x").await;
    assert_eq!(viewers.remove(0).error().await, ("invalid_config".into(), 1002));

    let mut second =
        stage.open(json!({"type": "attach", "process": process, "stdout": 6, "write": true, "takeOver": true})).await;
    assert_eq!(second.attached().await, Some(6));
    assert!(matches!(writer.next().await, Arrived::Said(ServerMessage::Ack { .. }) | Arrived::Closed(Some(1008))));
    second.write(6, b"second\n").await;
    second.say(json!({"type": "eof", "offset": 13})).await;
    assert_eq!(second.exit().await, 0);
    assert_eq!(second.received[0], b"second\n");
    for viewer in &mut viewers {
        assert_eq!(viewer.exit().await, 0);
        assert_eq!(viewer.received[0], b"first\nsecond\n");
    }
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_clients_that_are_gone_end_only_on_request() {
    let stage = Stage::new().await;
    let mut kept = stage.open(json!({"type": "start", "argv": ["sleep", "1000"]})).await;
    let process = kept.started().await;
    let mut tied = stage.open(json!({"type": "start", "argv": ["sleep", "1000"], "endOnClose": true})).await;
    tied.started().await;
    assert_eq!(stage.running().await.len(), 2);
    // Without a closing handshake, as if the client was killed.
    drop((kept, tied));
    eventually("the tied command ends", async || stage.running().await == [process]).await;
    let mut again = stage.open(json!({"type": "attach", "process": process})).await;
    again.attached().await;
    again.say(json!({"type": "signal", "signal": 9})).await;
    assert_eq!(again.exit().await, 128 + 9);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_refused_by_name() {
    let stage = Stage::new().await;
    for (first, expected) in [
        (json!({"type": "start"}), "invalid_config"),
        (json!({"type": "start", "argv": ["a"], "shell": "b"}), "invalid_config"),
        (json!({"type": "start", "argv": ["true"], "unknown": 1}), "invalid_config"),
        (json!({"type": "resize", "rows": 1, "cols": 1}), "invalid_config"),
        (json!({"type": "attach", "process": 4711}), "not_found"),
        (json!({"type": "start", "argv": ["/no/such/program"]}), "exec_failed"),
        (json!({"type": "start", "argv": ["true"], "tag": "x".repeat(300)}), "limit_exceeded"),
    ] {
        let mut client = stage.open(first.clone()).await;
        assert_eq!(client.error().await.0, expected, "{first}");
    }
    let frame = |channel: u8, offset: u64, payload: &[u8]| {
        Message::binary([&[channel][..], &offset.to_be_bytes(), payload].concat())
    };
    for (message, what) in [
        (Message::text("{}"), "no type"),
        (Message::text("not json"), "no JSON"),
        (Message::text(json!({"type": "ack", "channel": "stdout", "offset": 10}).to_string()), "an ack of nothing"),
        (Message::text(json!({"type": "ack", "channel": "stdin", "offset": 0}).to_string()), "an ack of input"),
        (Message::text(json!({"type": "signal", "signal": 0}).to_string()), "no signal"),
        (Message::text(json!({"type": "eof", "offset": 10}).to_string()), "an end after a gap"),
        (Message::text(json!({"type": "start", "argv": ["true"]}).to_string()), "a second start"),
        (frame(0, 5, b"x"), "a gap"),
        (frame(1, 0, b"x"), "output from the client"),
        (frame(9, 0, b"x"), "an unknown channel"),
        (frame(0, 0, b""), "nothing"),
        (frame(0, u64::MAX, b"x"), "a huge offset"),
        (frame(0, 0, &vec![0; PAYLOAD + 1]), "too much"),
    ] {
        let mut client = stage.open(json!({"type": "start", "argv": ["cat"], "stdin": true, "endOnClose": true})).await;
        client.started().await;
        client.socket.send(message).await.unwrap();
        assert_eq!(client.error().await, ("invalid_config".into(), 1002), "{what}");
    }
    eventually("nothing runs", async || stage.running().await.is_empty()).await;
    stage.clean_up().await;
}
