//! A server in a process of its own, a sandbox for it, and a client in Rust.

use axum::body::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kennel_api::Scope;
use kennel_api::stream::{Frame, ServerMessage, StreamChannel};
use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_engine::{Caller, Directories, Engine, NewToken, Resident, Store, TokenLimits, Tokens};
use kennel_native::Native;
use kennel_server::{Listen, Server, ServerOptions};
use kennel_testkit::{Home, environment, eventually, host};
use kennel_types::{NetworkMode, SandboxSpec};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};

/// Where the server's files are, and at which port it listens.
const TOLD: &str = "KENNEL_TEST_SERVER";

/// The time limit of one step. Only a failing test waits that long.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// A server that can be killed, and a sandbox without a network.
pub(crate) struct Stage {
    pub(crate) home: Home,
    pub(crate) sandbox: Sandbox,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    process: Option<Child>,
}

fn provider(home: &Path, programs: &Path) -> Arc<dyn Provider> {
    Arc::new(Native::new(home.join("state"), programs.to_owned()))
}

fn database(home: &Path) -> PathBuf {
    home.join("kennel.db")
}

/// The engine of a server.
pub(crate) fn engine(home: &Path, programs: &Path) -> Engine {
    let directories = Directories::new(home.join("engine"), home.join("data"), None);
    Engine::with_providers(Caller::default(), directories, [provider(home, programs)])
}

/// The provider of a server's sandboxes.
pub(crate) fn native(stage: &Stage) -> Arc<dyn Provider> {
    provider(stage.home.path(), &stage.home.programs())
}

/// Runs the server until the process is killed, or its standard input ends.
pub(crate) fn be_the_server(listening: impl FnOnce(&str)) {
    let told = environment::variable(TOLD).expect("it is told where its files are");
    let (home, programs, port): (PathBuf, PathBuf, u16) = serde_json::from_slice(told.as_encoded_bytes()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = engine(&home, &programs);
        let resident = Resident::begin(&engine).await.unwrap();
        let store = Store::open(database(&home)).await.unwrap();
        let listen = [Listen::Tcp(([127, 0, 0, 1], port).into())];
        let server = Server::listen(engine, resident.events(), store, &listen, ServerOptions::default());
        let server = server.await.unwrap();
        let (end, ended) = tokio::sync::watch::channel(false);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = end.send(true);
        });
        let until = |mut ended: tokio::sync::watch::Receiver<bool>| async move {
            let _ = ended.wait_for(|ended| *ended).await;
        };
        listening(&server.addresses()[0]);
        let (served, resided) = tokio::join!(server.run(until(ended.clone())), resident.run(until(ended)));
        served.and(resided).unwrap();
    });
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let home = Home::new();
        std::fs::create_dir_all(home.path().join("engine")).unwrap();
        let store = Store::open(database(home.path())).await.unwrap();
        let token = token(&store, "test", Scope::Admin, None).await;
        let provider = provider(home.path(), &home.programs());
        let spec = SandboxSpec {
            network: Some(NetworkMode::None),
            env: [("KENNEL_TEST_HOME".to_owned(), home.mark())].into(),
            ..SandboxSpec::default()
        };
        let sandbox = Sandbox::create(provider, &spec).await.unwrap();
        sandbox.start().await.unwrap();
        let (process, address) = start(&home, 0);
        Self { home, sandbox, address, token, process: Some(process) }
    }

    /// Creates another token.
    pub(crate) async fn token(&self, name: &str, scope: Scope, project: Option<&str>) -> String {
        token(&Store::open(database(self.home.path())).await.unwrap(), name, scope, project).await
    }

    /// Revokes a token.
    pub(crate) async fn revoke(&self, name: &str) {
        let store = Store::open(database(self.home.path())).await.unwrap();
        Tokens::new(store).revoke(name).await.unwrap();
    }

    /// Kills the server, as the kernel would: it can do nothing about it.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Asks the server to end, and waits until it has.
    pub(crate) fn end(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }

    /// Starts the server again, at the same address.
    pub(crate) fn restart(&mut self) {
        let (process, address) = start(&self.home, self.address.port());
        assert_eq!(address, self.address);
        self.process = Some(process);
    }

    /// The path of an operation on the sandbox.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}/{rest}", self.sandbox.id())
    }

    /// Sends a request with the token.
    pub(crate) async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Response<Incoming> {
        let request = Request::builder().header("authorization", format!("Bearer {}", self.token));
        let request = match &body {
            Some(_) => request.header("content-type", "application/json"),
            None => request,
        };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(request.method(method).uri(path).body(body).unwrap()).await
    }

    /// Sends a request as it is.
    pub(crate) async fn send(&self, mut request: Request<String>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        if !request.headers().contains_key("host") {
            request.headers_mut().insert("host", self.address.to_string().parse().unwrap());
        }
        let request = request.map(|body| Full::new(Bytes::from(body)));
        tokio::time::timeout(SOON, sender.send_request(request)).await.expect("a response").unwrap()
    }

    /// Opens a WebSocket to the sandbox, and sends the first message.
    pub(crate) async fn open(&self, first: Value) -> Client {
        let mut client = self.connect(&self.path("stream"), Some(&self.token)).await.expect("the server accepts it");
        client.say(first).await;
        client
    }

    /// Opens a WebSocket with the subprotocol of commands.
    pub(crate) async fn connect(&self, path: &str, token: Option<&str>) -> Result<Client, tungstenite::Error> {
        let mut request = format!("ws://{}{path}", self.address).into_client_request()?;
        request.headers_mut().insert("sec-websocket-protocol", "kennel.v1".parse().unwrap());
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let stream = TcpStream::connect(self.address).await?;
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await?;
        assert_eq!(response.headers()["sec-websocket-protocol"], "kennel.v1");
        assert!(!response.headers().contains_key("sec-websocket-extensions"), "no compression");
        Ok(Client { socket, received: [Vec::new(), Vec::new()], base: [0; 2], acknowledges: true, stdin_acked: 0 })
    }

    /// The commands that run in the sandbox.
    pub(crate) async fn running(&self) -> Vec<u64> {
        let all = self.sandbox.processes().await.unwrap();
        all.into_iter().filter(|process| process.running).map(|process| process.process).collect()
    }

    /// Removes the sandbox, and checks that nothing is left.
    pub(crate) async fn clean_up(mut self) {
        if self.process.is_some() {
            self.end();
        }
        let provider = provider(self.home.path(), &self.home.programs());
        let mut ids = Vec::new();
        for info in provider.list().await.unwrap() {
            provider.remove(&info.id, RemoveOptions { force: true, volumes: true }).await.unwrap();
            ids.push(info.id.to_string());
        }
        eventually("nothing is left", async || host::leftovers(&self.home.mark(), &ids, &self.home.state()).is_empty())
            .await;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

async fn token(store: &Store, name: &str, scope: Scope, project: Option<&str>) -> String {
    let new = NewToken {
        name: name.to_owned(),
        scope,
        project: project.map(ToOwned::to_owned),
        directories: Vec::new(),
        limits: TokenLimits::default(),
    };
    Tokens::new(store.clone()).create(new).await.unwrap().0
}

fn start(home: &Home, port: u16) -> (Child, SocketAddr) {
    let told = serde_json::to_string(&(home.path(), home.programs(), port)).unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "the_server", "--nocapture"])
        .env(TOLD, told)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address =
        lines.find_map(|line| line.unwrap().strip_prefix("listening http://").map(|text| text.parse().unwrap()));
    let address = address.expect("the server says where it listens");
    // Otherwise the pipe could fill up.
    std::thread::spawn(move || lines.for_each(drop));
    (process, address)
}

/// A client of a command.
pub(crate) struct Client {
    pub(crate) socket: WebSocketStream<TcpStream>,
    /// Standard output and standard error since `base`.
    pub(crate) received: [Vec<u8>; 2],
    pub(crate) base: [u64; 2],
    /// Whether output is acknowledged when it arrives.
    pub(crate) acknowledges: bool,
    /// How much of standard input was taken.
    pub(crate) stdin_acked: u64,
}

/// What arrived.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Output, which is in `received` now.
    Output,
    /// A message.
    Said(ServerMessage<Value>),
    /// The connection is closed, with this code if the server gave one.
    Closed(Option<u16>),
}

impl Client {
    pub(crate) async fn say(&mut self, message: Value) {
        // A broken connection shows when reading.
        let _ = self.socket.send(Message::text(message.to_string())).await;
    }

    /// Sends a piece of standard input.
    pub(crate) async fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (index, payload) in bytes.chunks(64 * 1024).enumerate() {
            let offset = offset + (index * 64 * 1024) as u64;
            let frame = Frame { channel: StreamChannel::Stdin, offset, payload }.encode();
            let _ = self.socket.send(Message::binary(frame)).await;
        }
    }

    /// Waits for the next thing that arrives. Pings do not count.
    pub(crate) async fn next(&mut self) -> Arrived {
        loop {
            let message = tokio::time::timeout(SOON, self.socket.next()).await.expect("something arrives");
            match message {
                Some(Ok(Message::Binary(bytes))) => {
                    let frame = Frame::decode(&bytes).unwrap();
                    let index = usize::from(frame.channel == StreamChannel::Stderr);
                    let expected = self.base[index] + self.received[index].len() as u64;
                    assert_eq!(frame.offset, expected, "output is in order, and nothing is missing or repeated");
                    self.received[index].extend_from_slice(frame.payload);
                    if self.acknowledges {
                        self.acknowledge(frame.channel).await;
                    }
                    return Arrived::Output;
                }
                Some(Ok(Message::Text(text))) => {
                    let message = serde_json::from_str(&text).unwrap();
                    match &message {
                        ServerMessage::Ack { channel: StreamChannel::Stdin, offset } => self.stdin_acked = *offset,
                        ServerMessage::Lost { channel, offset, bytes } => {
                            let index = usize::from(*channel == StreamChannel::Stderr);
                            assert!(self.received[index].is_empty(), "the tests lose output only at the start");
                            assert_eq!(*offset, self.base[index]);
                            self.base[index] += bytes;
                        }
                        _ => {}
                    }
                    return Arrived::Said(message);
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    // Sends the reply, for which the server waits.
                    let _ = self.socket.flush().await;
                    return Arrived::Closed(frame.map(|frame| frame.code.into()));
                }
                Some(Err(_)) | None => return Arrived::Closed(None),
            }
        }
    }

    /// Acknowledges what arrived on a channel.
    pub(crate) async fn acknowledge(&mut self, channel: StreamChannel) {
        let index = usize::from(channel == StreamChannel::Stderr);
        let offset = self.base[index] + self.received[index].len() as u64;
        self.say(json!({"type": "ack", "channel": channel, "offset": offset})).await;
    }

    /// Waits for the first message, which must be `started`, and returns the id of the command.
    pub(crate) async fn started(&mut self) -> u64 {
        match self.next().await {
            Arrived::Said(ServerMessage::Started { process, .. }) => process,
            other => panic!("expected `started`: {other:?}"),
        }
    }

    /// Waits for the first message, which must be `attached`, and returns how much of standard input was taken.
    pub(crate) async fn attached(&mut self) -> Option<u64> {
        match self.next().await {
            Arrived::Said(ServerMessage::Attached { stdin_taken, stdout, stderr, .. }) => {
                self.base = [stdout, stderr];
                stdin_taken
            }
            other => panic!("expected `attached`: {other:?}"),
        }
    }

    /// Reads until standard output has this many bytes.
    pub(crate) async fn read(&mut self, count: usize) {
        while self.received[0].len() < count {
            match self.next().await {
                Arrived::Output | Arrived::Said(ServerMessage::Ack { .. }) => {}
                other => panic!("{} of {count} bytes, and then {other:?}", self.received[0].len()),
            }
        }
    }

    /// Reads to the end, and returns the exit code. The server closes the connection after it.
    pub(crate) async fn exit(&mut self) -> i32 {
        let code = loop {
            match self.next().await {
                Arrived::Said(ServerMessage::Exit { exit_code, .. }) => break exit_code,
                Arrived::Output | Arrived::Said(ServerMessage::Ack { .. } | ServerMessage::Lost { .. }) => {}
                other => panic!("expected `exit`: {other:?}"),
            }
        };
        assert!(matches!(self.next().await, Arrived::Closed(Some(1000))));
        code
    }

    /// Reads to the error, and returns its code, and that with which the server closes the connection.
    pub(crate) async fn error(&mut self) -> (String, u16) {
        loop {
            match self.next().await {
                Arrived::Said(ServerMessage::Error { error }) => {
                    let Arrived::Closed(Some(closed)) = self.next().await else { panic!("the server closes it") };
                    return (error["code"].as_str().unwrap().to_owned(), closed);
                }
                Arrived::Output | Arrived::Said(_) => {}
                Arrived::Closed(code) => panic!("closed without an error: {code:?}"),
            }
        }
    }
}

/// Reads a whole body as text.
pub(crate) async fn text(response: Response<Incoming>) -> String {
    let body = tokio::time::timeout(SOON, response.into_body().collect()).await.expect("a body").unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}
