//! A terminal whose server is killed.

use crate::support::{Arrived, Client, Stage};
use kennel_api::stream::ServerMessage;
use kennel_testkit::eventually;
use serde_json::json;

/// For each line of input, it prints the line and a number, 5000 times.
const SCRIPT: &str = "stty -echo; echo ready; while read word; do i=0; \
    while [ $i -lt 5000 ]; do echo \"$word $i\"; i=$((i+1)); done; done; echo end; exit 3";

/// Everything that a client has received and sent, over all its connections.
struct Terminal {
    process: u64,
    seen: Vec<u8>,
    input: Vec<u8>,
}

impl Terminal {
    /// Attaches again where the last connection was lost, and sends the input again that was not taken.
    async fn attach(&self, stage: &Stage) -> Client {
        let mut client = stage
            .open(json!({"type": "attach", "process": self.process, "stdout": self.seen.len(), "write": true}))
            .await;
        let taken = client.attached().await.expect("it writes");
        assert!(taken <= self.input.len() as u64);
        client.write(taken, &self.input[taken as usize..]).await;
        client
    }

    /// Reads until everything up to `until` was seen, or the connection is lost.
    async fn read(&mut self, client: &mut Client, until: usize) {
        let before = self.seen.len();
        while before + client.received[0].len() < until {
            match client.next().await {
                Arrived::Output | Arrived::Said(ServerMessage::Ack { .. }) => {}
                Arrived::Closed(_) => break,
                other @ Arrived::Said(_) => panic!("nothing is lost and nothing fails: {other:?}"),
            }
        }
        client.base[0] += client.received[0].len() as u64;
        self.seen.append(&mut client.received[0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_terminal_arrives_over_twenty_kills() {
    const KILLS: usize = 20;
    let mut stage = Stage::new().await;
    let mut client =
        stage.open(json!({"type": "start", "shell": SCRIPT, "tty": {"rows": 24, "cols": 80}, "tag": "killed"})).await;
    let process = client.started().await;
    let mut terminal = Terminal { process, seen: Vec::new(), input: Vec::new() };
    let mut expected = b"ready\r\n".to_vec();
    terminal.read(&mut client, expected.len()).await;
    for round in 0..KILLS {
        terminal.input.extend(format!("round-{round}\n").bytes());
        let from = terminal.input.len() - format!("round-{round}\n").len();
        client.write(from as u64, &terminal.input[from..]).await;
        for number in 0..5000 {
            expected.extend(format!("round-{round} {number}\r\n").bytes());
        }
        // Each kill hits another moment: before the first byte, in the middle, after the last.
        let behind = expected.len() - terminal.seen.len();
        let until = terminal.seen.len() + behind * round / (KILLS - 1);
        terminal.read(&mut client, until).await;
        stage.kill();
        // What is on its way arrives, or is sent again.
        terminal.read(&mut client, usize::MAX).await;
        stage.restart();
        client = terminal.attach(&stage).await;
    }
    terminal.read(&mut client, expected.len()).await;
    let end = terminal.input.len();
    client.say(json!({"type": "eof", "offset": end})).await;
    expected.extend(b"end\r\n");
    assert_eq!(client.exit().await, 3);
    terminal.seen.append(&mut client.received[0]);
    let first = terminal.seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
    assert!(
        terminal.seen == expected,
        "{} of {} bytes, first other one: {first:?}",
        terminal.seen.len(),
        expected.len()
    );
    // It has ended, and can still be asked how.
    let mut late = stage.open(json!({"type": "attach", "process": process, "stdout": expected.len()})).await;
    late.attached().await;
    assert_eq!(late.exit().await, 3);
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_beyond_the_keepers_buffer_is_reported_to_the_byte() {
    let mut stage = Stage::new().await;
    let script = "read x; seq 1 200000; seq 1 100 >&2";
    let mut client = stage.open(json!({"type": "start", "shell": script, "stdin": true})).await;
    client.acknowledges = false;
    let process = client.started().await;
    client.write(0, b"go\n").await;
    while client.stdin_acked < 3 {
        client.next().await;
    }
    stage.kill();
    // Nobody reads now, so it prints everything and ends.
    eventually("the command ends", async || stage.running().await.is_empty()).await;
    stage.restart();
    let expected: Vec<u8> = (1..=200_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let mut client = stage.open(json!({"type": "attach", "process": process, "stdout": 0, "stderr": 0})).await;
    client.attached().await;
    assert_eq!(client.exit().await, 0);
    let [stdout, stderr] = &client.received;
    let [lost, none] = client.base;
    assert!(lost > 0, "it has printed more than the keeper buffers");
    assert_eq!(lost + stdout.len() as u64, expected.len() as u64);
    assert!(expected.ends_with(stdout));
    let expected: usize = (1..=100).map(|number| format!("{number}\n").len()).sum();
    assert_eq!((none, stderr.len()), (0, expected));
    stage.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_told_when_the_server_ends() {
    let mut stage = Stage::new().await;
    let mut client = stage.open(json!({"type": "start", "argv": ["cat"], "stdin": true})).await;
    let process = client.started().await;
    let reading = tokio::spawn(async move {
        loop {
            if let Arrived::Closed(code) = client.next().await {
                return code;
            }
        }
    });
    stage.end();
    assert_eq!(reading.await.unwrap(), Some(1001), "going away");
    assert_eq!(stage.running().await, [process], "the command goes on");
    stage.restart();
    let mut client = stage.open(json!({"type": "attach", "process": process, "write": true})).await;
    assert_eq!(client.attached().await, Some(0));
    client.write(0, b"still here").await;
    client.say(json!({"type": "eof", "offset": 10})).await;
    assert_eq!(client.exit().await, 0);
    assert_eq!(client.received[0], b"still here");
    stage.clean_up().await;
}
