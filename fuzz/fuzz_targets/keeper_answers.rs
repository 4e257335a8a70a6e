//! A keeper that sends anything: after a valid welcome it sends arbitrary bytes in arbitrary chunks, and then closes
//! the connection. Meanwhile, all kinds of requests are running: a command with input, listings, file transfers (also
//! sparse, and at an offset), a symlink, a change of permissions, the idle time, a held command, a fan-out, a
//! connection to the inside, connections from there, and datagrams. Each must end, with or without an error. None may
//! panic, wait forever or buffer more than its window.
//!
//! Time is paused and advances only when nothing else can happen, so a request that waits forever is noticed at once.
#![no_main]

use async_trait::async_trait;
use kennel_core::{
    Dialed, Error, EventStream, ExecEvent, FanOutEvent, FanOutOptions, Lag, ListenAt, LogOptions, LogStream, Provider,
    RUN_OUTPUT_CAP, RemoveOptions, Result, Sandbox, Target, WriteOptions,
};
use kennel_proto::{Body, Features, Frame, GENERATION, Welcome, encode};
use kennel_types::{
    Availability, Enforcement, ErrorCode, ExecSpec, IsolationLayer, Limits, MODES, Mode, NetworkMode, SandboxId, SandboxInfo,
    SandboxSpec, Status,
};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Longer than any timeout of the client.
const FOR_EVER: Duration = Duration::from_secs(3600);

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(async {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let keeper = tokio::spawn(answer(theirs, input.to_vec()));
        let done = tokio::time::timeout(FOR_EVER, ask(ours)).await;
        assert!(done.is_ok(), "the client waits forever");
        keeper.abort();
    });
});

/// All requests that a host may have at once.
async fn ask(stream: DuplexStream) {
    let provider = Arc::new(Lying { stream: Mutex::new(Some(stream)) });
    let Ok(sandbox) = Sandbox::find(provider, "box").await else { return };
    let command = ExecSpec::argv(["cat"]);
    let run = sandbox.run(&command, Some(&[7; 5000]), RUN_OUTPUT_CAP);
    let list = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.list("/").await;
        }
    };
    let read = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.read("/etc/passwd", 1 << 20).await;
        }
    };
    let holes = async {
        let Ok(files) = sandbox.files(None).await else { return };
        let Ok(mut reader) = files.open_sparse("/huge").await else { return };
        while let Ok(Some(_)) = reader.piece().await {}
    };
    // These wait for the welcome, so they have the last streams.
    let link = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.symlink("/link", "file", true).await;
        }
    };
    let chmod = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.chmod("/file", 0o755, false).await;
        }
    };
    let connect = async {
        let Ok(mut stream) = sandbox.connect(&Target::Tcp(80), None).await else { return };
        let _ = stream.write_all(&[7; 5000]).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let listen = async {
        let at = ListenAt::Unix { path: b"/socket".to_vec(), mode: 0o600 };
        let Ok(mut listener) = sandbox.listen(&at, None).await else { return };
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"hello").await;
            let _ = stream.read(&mut [0; 100]).await;
        }
    };
    let datagrams = async {
        let Ok(mut datagrams) = sandbox.listen_datagrams(53).await else { return };
        while let Ok((peer, bytes)) = datagrams.receive().await {
            let _ = datagrams.replies().send(peer, &bytes).await;
        }
    };
    let tree = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.list_tree("/", 3).await;
        }
    };
    let part = async {
        if let Ok(files) = sandbox.files(None).await {
            let _ = files.write_at("/file", 9, &[7; 5000][..], WriteOptions::default()).await;
        }
    };
    let held = async {
        let spec = ExecSpec { tag: Some("tag".into()), hold: true, linger: Some(FOR_EVER), ..ExecSpec::argv(["cat"]) };
        let Ok(exec) = sandbox.exec(&spec).await else { return };
        let mut exec = exec.with_explicit_acknowledgement();
        while let Ok(ExecEvent::Output(..)) = exec.next().await {
            let _ = exec.acknowledge(exec.position());
        }
    };
    let shared = async {
        let Ok(fan_out) = sandbox.fan_out(1, FanOutOptions::default()).await else { return };
        let Ok(mut subscriber) = fan_out.subscribe(None, Lag::Wait) else { return };
        while let Ok(FanOutEvent::Output { .. } | FanOutEvent::Missed { .. }) = subscriber.next().await {}
    };
    let first = async { tokio::join!(run, list, read, sandbox.processes(), holes, link, chmod, sandbox.idle()) };
    let _ = tokio::join!(first, tree, part, held, shared, connect, listen, datagrams);
}

/// Sends the welcome and then the given bytes. Also reads, so that no writer blocks.
async fn answer(stream: DuplexStream, bytes: Vec<u8>) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reading = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while reader.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    });
    let mut welcome = Vec::new();
    let body = Body::Welcome(Welcome { generation: GENERATION, features: Features::ALL, ..Welcome::default() });
    encode(&Frame { stream: 0, body }, &mut welcome);
    let _ = writer.write_all(&welcome).await;
    if let Some((cut, rest)) = bytes.split_first() {
        for piece in rest.chunks(usize::from(*cut).max(1)) {
            // Let the client run between two chunks.
            tokio::task::yield_now().await;
            if writer.write_all(piece).await.is_err() {
                break;
            }
        }
    }
    let _ = writer.shutdown().await;
    let _ = reading.await;
}

/// A provider with one sandbox and one connection to it.
struct Lying {
    stream: Mutex<Option<DuplexStream>>,
}

#[async_trait]
impl Provider for Lying {
    fn mode(&self) -> &'static Mode {
        &MODES[0]
    }

    async fn probe(&self) -> Availability {
        Availability { available: true, detail: String::new(), next_step: None }
    }

    async fn create(&self, _id: &SandboxId, _spec: &SandboxSpec) -> Result<SandboxInfo> {
        Err(no())
    }

    async fn start(&self, _id: &SandboxId) -> Result<()> {
        Err(no())
    }

    async fn stop(&self, _id: &SandboxId, _grace: Duration) -> Result<()> {
        Err(no())
    }

    async fn remove(&self, _id: &SandboxId, _options: RemoveOptions) -> Result<()> {
        Err(no())
    }

    async fn rename(&self, _: &SandboxId, _: &str) -> Result<()> {
        Ok(())
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        let id = SandboxId::new(id_or_name).map_err(|_| no())?;
        Ok(SandboxInfo {
            name: id.to_string(),
            id,
            provider: "lying".into(),
            status: Status::Running,
            created_ms: 0,
            exit_code: None,
            end_cause: None,
            image: None,
            image_command: None,
            workdir: "/".into(),
            workspace: None,
            network: NetworkMode::None,
            ports: Vec::new(),
            labels: std::collections::BTreeMap::new(),
            enforcement: Enforcement {
                mode: String::new(),
                // Its sockets are its own.
                layers: vec![IsolationLayer::NetNamespace, IsolationLayer::MountNamespace],
                limits: Limits::default(),
            },
        })
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        Err(no())
    }

    async fn dial(&self, _id: &SandboxId) -> Result<Dialed> {
        let stream = self.stream.lock().expect("nobody panics with it").take().ok_or_else(no)?;
        Ok(Dialed { stream: Box::new(stream), token: None, owner: false })
    }

    async fn logs(&self, _id: &SandboxId, _options: LogOptions) -> Result<LogStream> {
        Err(no())
    }

    async fn watch(&self) -> Result<EventStream> {
        Err(no())
    }
}

fn no() -> Error {
    Error::new(ErrorCode::Unsupported, "there is one sandbox, and one line to it")
}
