//! Streams between the host and sockets inside, with network `none`, and the refusal of sockets of the host.

use crate::inside::{self, SOON, at, code, ok, read_until};
use crate::programs::{self, SOCKETS};
use crate::{Stage, Wire, host};
use futures_util::{SinkExt, StreamExt};
use kennel_core::{Exec, Features, ListenAt, Sandbox, SandboxStream, Target, WriteOptions};
use kennel_proto::{Request, caps};
use kennel_types::{ErrorCode, ExecSpec, IsolationLayer, NetworkMode, SandboxSpec, Support};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

pub(super) const PROGRAM: &str = "/tmp/kennel-sockets";

/// Starts a sandbox with network `none` and the program `sockets`. If the sandbox has no sockets of its own, requests for
/// them must be refused, and there is nothing more to check.
async fn with_program(stage: &Stage) -> Option<Sandbox> {
    let spec = stage.spec();
    if !stage.mode().layers.contains(&IsolationLayer::NetNamespace) {
        refuses_all(&stage.started(&spec).await).await;
        return None;
    }
    let sandbox = stage.started(&SandboxSpec { network: Some(NetworkMode::None), ..spec }).await;
    put_program(stage, &sandbox).await;
    Some(sandbox)
}

pub(super) async fn put_program(stage: &Stage, sandbox: &Sandbox) {
    let compiled = stage.home().path().join("sockets");
    programs::compile(SOCKETS, &compiled);
    let options = WriteOptions { mode: Some(0o755), parents: true };
    let program = std::fs::read(&compiled).unwrap();
    inside::files(sandbox).await.write(PROGRAM, &program, options).await.unwrap();
}

/// Checks that no socket inside can be used.
async fn refuses_all(sandbox: &Sandbox) {
    let unsupported = ErrorCode::Unsupported;
    for target in [Target::Tcp(7000), Target::Unix(b"/tmp/socket".to_vec())] {
        assert_eq!(code(sandbox.connect(&target, None).await), unsupported, "{target}");
    }
    for at in [ListenAt::Tcp(7000), ListenAt::Unix { path: b"/tmp/socket".to_vec(), mode: 0o600 }] {
        assert_eq!(code(sandbox.listen(&at, None).await), unsupported, "{at}");
    }
    assert_eq!(code(sandbox.listen_datagrams(7000).await), unsupported);
}

/// Starts a server inside, and waits until it listens. It ends with the handle.
async fn serve(sandbox: &Sandbox, arguments: &[&str], user: Option<&str>) -> Exec {
    let words: Vec<&str> = [PROGRAM].into_iter().chain(arguments.iter().copied()).collect();
    let spec = ExecSpec { user: user.map(ToOwned::to_owned), ..ExecSpec::argv(words) };
    let mut server = sandbox.exec(&spec).await.unwrap();
    read_until(&mut server, |seen| seen.ends_with(b"ready\n")).await;
    server
}

async fn tcp(sandbox: &Sandbox, port: u16) -> SandboxStream {
    sandbox.connect(&Target::Tcp(port), None).await.unwrap()
}

/// Sends bytes, closes that direction, and returns everything that comes back.
async fn exchange(mut stream: SandboxStream, bytes: &[u8]) -> Vec<u8> {
    let all = async {
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        back
    };
    tokio::time::timeout(SOON, all).await.expect("the peer answers and closes the connection")
}

/// A server inside answers an HTTP request, on IPv4 and on IPv6, although the sandbox has no network.
pub async fn http_server_inside_is_reached(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let has_ipv6 = ok(&sandbox, "cat /proc/net/if_inet6 2>/dev/null || true").await.contains(" lo");
    for (place, port) in [("tcp:7001", 7001), ("tcp6:7002", 7002)] {
        if port == 7002 && !has_ipv6 {
            continue;
        }
        let _server = serve(&sandbox, &["http", place], None).await;
        let mut stream = tcp(&sandbox, port).await;
        stream.write_all(b"GET /some/path HTTP/1.1\r\nHost: inside\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nGET /some/path HTTP/1.1"), "{answer}");
    }
}

/// A `WebSocket` connection to a server inside carries messages in both directions.
pub async fn web_socket_to_the_inside_works(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let _server = serve(&sandbox, &["websocket", "tcp:7001"], None).await;
    let stream = tcp(&sandbox, 7001).await;
    let (mut socket, response) = tokio_tungstenite::client_async("ws://inside/", stream).await.unwrap();
    assert_eq!(response.status().as_u16(), 101);
    for length in [0, 1, 125, 126, 5000] {
        let message = Message::text("x".repeat(length));
        socket.send(message.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        assert!(message.is_close(), "{message:?}");
    }
}

/// Each side can close its direction first, and the other direction stays open.
pub async fn either_side_closes_its_direction_first(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let mut counter = serve(&sandbox, &["count", "tcp:7001"], None).await;
    assert_eq!(exchange(tcp(&sandbox, 7001).await, &vec![7; 100_000]).await, b"100000\n");
    read_until(&mut counter, |seen| seen == b"100000 end\n").await;

    let mut pourer = serve(&sandbox, &["pour", "tcp:7002", "100000"], None).await;
    let mut stream = tcp(&sandbox, 7002).await;
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), 100_000);
    stream.write_all(b"afterwards").await.unwrap();
    stream.shutdown().await.unwrap();
    read_until(&mut pourer, |seen| seen == b"10 end\n").await;
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0, "the end stays the end");
    assert!(stream.write(b"more").await.is_err(), "this direction is closed");

    // What was sent before an abort is not taken for everything.
    let mut stream = tcp(&sandbox, 7001).await;
    stream.write_all(b"half").await.unwrap();
    drop(stream);
    let aborted = read_until(&mut counter, |seen| seen.ends_with(b"\n")).await;
    assert!(aborted.ends_with(b" reset\n"), "{:?}", String::from_utf8_lossy(&aborted));

    // A peer that ends without having read everything resets the connection, and that is no proper end.
    let mut stream = tcp(&sandbox, 7002).await;
    stream.write_all(b"unread").await.unwrap();
    let mut first = [0; 1000];
    stream.read_exact(&mut first).await.unwrap();
    pourer.signal(9);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    let refused = async { while stream.write(&[0; 1000]).await.is_ok() {} };
    tokio::time::timeout(SOON, refused).await.expect("writing to a peer that is gone fails");
}

/// A Unix socket is opened with the rights of the user, and symlinks are followed as the sandbox would follow them.
pub async fn unix_socket_is_opened_as_the_user_inside(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    ok(&sandbox, "mkdir -p /tmp/s/dir && chmod 755 /tmp/s /tmp/s/dir").await;
    let _server = serve(&sandbox, &["echo", "unix:/tmp/s/dir/echo"], None).await;
    // The host has a socket at a path that leads there from outside.
    let outside = stage.home().path().join("outside");
    let _outside = std::os::unix::net::UnixListener::bind(&outside).unwrap();
    let out = outside.to_str().unwrap();
    ok(&sandbox, &format!("cd /tmp/s && ln -s /tmp/s/dir/echo absolute && ln -s ../../../../../../../..{out} leaving"))
        .await;
    ok(&sandbox, "cd /tmp/s && ln -s ../../../../../../../../tmp/s/dir/echo above && ln -s dir/echo relative").await;
    let unix = |path: &str| Target::Unix(path.as_bytes().to_vec());
    for path in ["/tmp/s/dir/echo", "/tmp/s/absolute", "/tmp/s/above", "/tmp/s/relative", "/../tmp/s/dir/../dir/echo"] {
        let stream = sandbox.connect(&unix(path), None).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(exchange(stream, b"hello").await, b"hello", "{path}");
    }
    for path in ["/tmp/s/leaving", out] {
        let error = sandbox.connect(&unix(path), None).await.err().expect("the host's socket is out of reach");
        assert!(matches!(error.code(), ErrorCode::NotFound | ErrorCode::PermissionDenied), "{path}: {error}");
    }
    let magic = sandbox.connect(&unix("/proc/1/root/tmp/s/dir/echo"), None).await;
    assert_eq!(code(magic), ErrorCode::PermissionDenied, "magic links are refused");
    assert_eq!(code(sandbox.connect(&unix("\0abstract"), None).await), ErrorCode::InvalidConfig);

    let theirs = sandbox.connect(&unix("/tmp/s/dir/echo"), Some("65534:65534")).await;
    if stage.mode().users == Support::Refused {
        assert_eq!(code(theirs), ErrorCode::Unsupported);
        return;
    }
    assert_eq!(code(theirs), ErrorCode::PermissionDenied, "the socket is not writable for others");
    ok(&sandbox, "chmod 777 /tmp/s/dir/echo").await;
    let theirs = sandbox.connect(&unix("/tmp/s/dir/echo"), Some("65534:65534")).await.unwrap();
    assert_eq!(exchange(theirs, b"hello").await, b"hello");
    ok(&sandbox, "chmod 700 /tmp/s/dir").await;
    let theirs = sandbox.connect(&unix("/tmp/s/dir/echo"), Some("65534:65534")).await;
    assert_eq!(code(theirs), ErrorCode::PermissionDenied, "the directory is closed for others");
}

/// If nothing listens, the error says so. Other files are refused.
pub async fn connection_to_nothing_is_a_clear_error(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let error = sandbox.connect(&Target::Tcp(7001), None).await.err().expect("nothing listens");
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert_eq!(error.to_string(), "nothing listens on TCP port 7001 in the sandbox");
    let unix = async |path: &str| sandbox.connect(&Target::Unix(path.as_bytes().to_vec()), None).await.err().unwrap();
    let mut server = serve(&sandbox, &["echo", "unix:/tmp/abandoned"], None).await;
    server.signal(9);
    inside::read_to_end(&mut server).await;
    let error = unix("/tmp/abandoned").await;
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert_eq!(error.to_string(), "/tmp/abandoned: nothing listens there");
    assert_eq!(unix("/tmp/absent").await.code(), ErrorCode::NotFound);
    for path in [PROGRAM, "/tmp", "/dev/null"] {
        let error = unix(path).await;
        assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
        assert!(error.to_string().ends_with("it is not a socket"), "{error}");
    }
    // The connection to the keeper is still usable.
    let _server = serve(&sandbox, &["echo", "tcp:7001"], None).await;
    assert_eq!(exchange(tcp(&sandbox, 7001).await, b"hello").await, b"hello");
}

/// Two hundred streams carry bytes at once, and a stream that nobody reads blocks no other.
pub async fn two_hundred_streams_at_once(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let _server = serve(&sandbox, &["echo", "tcp:7001"], None).await;
    let mut blocked = tcp(&sandbox, 7001).await;
    // Nobody reads, so this stops when all buffers are full: another stream is served several times meanwhile.
    let (zeros, mut written, mut rounds) = (vec![0; 65536], 0, 0);
    while rounds < 3 {
        let before = written;
        let fill = async {
            while let Ok(count) = blocked.write(&zeros).await {
                written += count;
            }
        };
        tokio::select! {
            () = fill => panic!("the stream was closed"),
            back = exchange(tcp(&sandbox, 7001).await, b"other") => assert_eq!(back, b"other"),
        }
        rounds = if written == before { rounds + 1 } else { 0 };
    }
    assert!(written > 0, "nothing was written");
    let bytes: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
    let streams = (0..200).map(|_| {
        let (sandbox, bytes) = (sandbox.clone(), bytes.clone());
        tokio::spawn(async move { exchange(tcp(&sandbox, 7001).await, &bytes).await == bytes })
    });
    for stream in streams.collect::<Vec<_>>() {
        assert!(stream.await.unwrap(), "a stream came back changed");
    }
}

/// A large transfer in each direction takes little memory on both sides.
pub async fn large_streams_take_little_memory(stage: &Stage) {
    const BYTES: u64 = 1 << 30;
    let Some(sandbox) = with_program(stage).await else { return };
    let _counter = serve(&sandbox, &["count", "tcp:7001"], None).await;
    let _pourer = serve(&sandbox, &["pour", "tcp:7002", &BYTES.to_string()], None).await;
    let own_before = host::memory_kib(std::process::id(), "VmHWM").unwrap();
    let mut stream = tcp(&sandbox, 7001).await;
    let piece = vec![7; 256 * 1024];
    for _ in 0..BYTES / piece.len() as u64 {
        stream.write_all(&piece).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, format!("{BYTES}\n"));

    let mut stream = tcp(&sandbox, 7002).await;
    let (mut buffer, mut total) = (vec![0; 256 * 1024], 0);
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            count => total += count as u64,
        }
    }
    assert_eq!(total, BYTES);
    // If cases share a process, the memory of this case cannot be measured separately.
    if crate::environment::variable("NEXTEST").is_some() {
        let own = host::memory_kib(std::process::id(), "VmHWM").unwrap() - own_before;
        assert!(own < 32 << 10, "this side took {own} KiB");
    }
    let is_keeper = |pid: &u32| host::program(*pid).is_some_and(|program| program.contains("kennel"));
    let keepers: Vec<u32> = host::processes(&stage.home().mark()).into_iter().filter(is_keeper).collect();
    assert!(!keepers.is_empty(), "no keeper was found");
    for keeper in keepers {
        let took = host::memory_kib(keeper, "VmHWM").unwrap_or(0);
        assert!(took < 8 << 10, "the keeper took {took} KiB");
    }
}

/// Starts a client inside that sends bytes, and returns what it prints.
async fn send_from_inside(sandbox: &Sandbox, place: &str, bytes: &[u8]) -> String {
    let output = sandbox.run(&ExecSpec::argv([PROGRAM, "send", place]), Some(bytes), 1000).await.unwrap();
    assert!(output.status.success(), "{}", output.stderr_text());
    output.stdout_text()
}

/// Programs inside connect to a port that the host serves.
pub async fn host_serves_a_port_inside(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let mut listener = sandbox.listen(&ListenAt::Tcp(0), None).await.unwrap();
    let port = listener.port();
    assert_ne!(port, 0);
    assert_eq!(code(sandbox.listen(&ListenAt::Tcp(port), None).await), ErrorCode::AlreadyExists);
    let has_ipv6 = ok(&sandbox, "cat /proc/net/if_inet6 2>/dev/null || true").await.contains(" lo");
    for (family, address) in [("tcp", "127.0.0.1"), ("tcp6", "::1")] {
        if family == "tcp6" && !has_ipv6 {
            continue;
        }
        let place = format!("{family}:{port}");
        let client = send_from_inside(&sandbox, &place, b"question");
        let serve = async {
            let (mut stream, origin) = listener.accept().await.unwrap();
            let destination = origin.destination.unwrap();
            assert_eq!((destination.ip().to_string().as_str(), destination.port()), (address, port));
            assert!(origin.peer.unwrap().ip().is_loopback());
            let mut question = String::new();
            stream.read_to_string(&mut question).await.unwrap();
            assert_eq!(question, "question");
            stream.write_all(b"answer").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let both = async { tokio::join!(client, serve).0 };
        assert_eq!(tokio::time::timeout(SOON, both).await.expect("the host serves it"), "answer");
    }
    drop(listener);
    crate::eventually("nobody listens any more", async || {
        sandbox.connect(&Target::Tcp(port), None).await.is_err_and(|error| error.code() == ErrorCode::NotFound)
    })
    .await;
}

/// Programs inside connect to a Unix socket that the host serves. It has the requested owner and permissions, and is
/// removed at the end.
pub async fn host_serves_a_unix_socket_inside(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let path = at(&sandbox, "bridge");
    let listen = |mode| ListenAt::Unix { path: path.as_bytes().to_vec(), mode };
    let files = inside::files(&sandbox).await;
    let mut listener = sandbox.listen(&listen(0o640), None).await.unwrap();
    assert_eq!(files.stat(&path, false).await.unwrap().mode, 0o640);
    assert_eq!(code(sandbox.listen(&listen(0o640), None).await), ErrorCode::AlreadyExists, "someone listens there");
    assert_eq!(code(sandbox.listen(&listen(0o4755), None).await), ErrorCode::InvalidConfig);
    let place = format!("unix:{path}");
    let serve = async {
        let (stream, origin) = listener.accept().await.unwrap();
        assert_eq!((origin.destination, origin.peer), (None, None));
        let (mut reader, mut writer) = tokio::io::split(stream);
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(send_from_inside(&sandbox, &place, b"hello"), serve).0 };
    assert_eq!(tokio::time::timeout(SOON, both).await.expect("the host serves it"), "hello");
    drop(listener);
    let gone = async || files.stat(&path, false).await.is_err_and(|error| error.code() == ErrorCode::NotFound);
    crate::eventually("the socket is removed", gone).await;

    // A socket that someone has left behind is replaced, and another file is not.
    let mut abandoned = serve_at(&sandbox, &place).await;
    abandoned.signal(9);
    inside::read_to_end(&mut abandoned).await;
    let listener = sandbox.listen(&listen(0o600), None).await.unwrap();
    // What has taken its place is not removed.
    files.remove(&path, false).await.unwrap();
    files.write(&path, b"other", WriteOptions::default()).await.unwrap();
    drop(listener);
    assert_eq!(code(sandbox.listen(&listen(0o600), None).await), ErrorCode::AlreadyExists);
    assert_eq!(files.read(&path, 10).await.unwrap(), b"other");
    files.remove(&path, false).await.unwrap();

    // It is removed when the sandbox stops, too.
    let listener = sandbox.listen(&listen(0o600), None).await.unwrap();
    sandbox.stop(std::time::Duration::from_secs(10)).await.unwrap();
    drop(listener);
    sandbox.start().await.unwrap();
    let files = inside::files(&sandbox).await;
    assert_eq!(code(files.stat(&path, false).await), ErrorCode::NotFound);

    let theirs = ListenAt::Unix { path: b"/tmp/theirs".to_vec(), mode: 0o666 };
    let listener = sandbox.listen(&theirs, Some("65534:65534")).await;
    if stage.mode().users == Support::Refused {
        assert_eq!(code(listener), ErrorCode::Unsupported);
        return;
    }
    let _listener = listener.unwrap();
    let stat = files.stat("/tmp/theirs", false).await.unwrap();
    assert_eq!((stat.uid, stat.gid, stat.mode), (65534, 65534, 0o666));
    let closed = ListenAt::Unix { path: b"/var/theirs".to_vec(), mode: 0o666 };
    assert_eq!(code(sandbox.listen(&closed, Some("65534:65534")).await), ErrorCode::PermissionDenied);
}

async fn serve_at(sandbox: &Sandbox, place: &str) -> Exec {
    serve(sandbox, &["echo", place], None).await
}

/// Of the connections that the host does not accept, only a few are kept, and the others are closed.
pub async fn unaccepted_connections_are_limited(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    let mut listener = sandbox.listen(&ListenAt::Tcp(7001), None).await.unwrap();
    let number = caps::PENDING + 1;
    let spec = ExecSpec::argv([PROGRAM, "crowd", "tcp:7001", &number.to_string()]);
    let mut crowd = sandbox.exec(&spec).await.unwrap();
    // Connections are accepted in their order, so it is the last one.
    let closed = read_until(&mut crowd, |seen| seen.ends_with(b"\n")).await;
    assert_eq!(String::from_utf8_lossy(&closed), format!("{}\n", number - 1));
    for at in 0..caps::PENDING {
        let accepted = tokio::time::timeout(SOON, listener.accept()).await;
        assert!(accepted.is_ok_and(|accepted| accepted.is_ok()), "connection {at} was kept");
    }
    // There is room again.
    let (client, accepted) = tokio::join!(send_from_inside(&sandbox, "tcp:7001", b""), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"welcome").await.unwrap();
        stream.shutdown().await
    });
    assert_eq!((client.as_str(), accepted.is_ok()), ("welcome", true));
}

/// Programs inside exchange datagrams with the host, also on the port of DNS. Datagrams that are too long are dropped.
pub async fn host_answers_datagrams_from_inside(stage: &Stage) {
    let Some(sandbox) = with_program(stage).await else { return };
    for port in [5300, 53] {
        let mut datagrams = sandbox.listen_datagrams(port).await.unwrap();
        assert_eq!(datagrams.port(), port);
        let replies = datagrams.replies();
        assert_eq!(code(replies.send(1, &[0; caps::DATAGRAM + 1]).await), ErrorCode::LimitExceeded);
        // Nobody has this number, and that is no error.
        replies.send(1000, b"to nobody").await.unwrap();
        let script = format!("/tmp/kennel-sockets ask {port}");
        let ask = ok(&sandbox, &script);
        let answer = async {
            loop {
                let (peer, question) = datagrams.receive().await.unwrap();
                assert_eq!(question, b"question");
                replies.send(peer, b"answer").await.unwrap();
            }
        };
        tokio::select! {
            answer = ask => assert_eq!(answer, "answer"),
            () = answer => {}
        }
        drop(datagrams);
        crate::eventually("the port is free again", async || sandbox.listen_datagrams(port).await.is_ok()).await;
    }
}

/// Where the ports inside are the host's own, they are refused, by the host and by the keeper.
pub async fn ports_of_the_host_are_refused(stage: &Stage) {
    if !stage.mode().networks.contains(&NetworkMode::Host) || stage.mode().processes == Support::Refused {
        return;
    }
    let sandbox = stage.started(&SandboxSpec { network: Some(NetworkMode::Host), ..stage.spec() }).await;
    let error = sandbox.connect(&Target::Tcp(7001), None).await.err().expect("it would reach the host");
    assert_eq!(error.code(), ErrorCode::Unsupported);
    assert!(error.to_string().contains("shares the network of the host"), "{error}");
    assert_eq!(code(sandbox.listen(&ListenAt::Tcp(0), None).await), ErrorCode::Unsupported);
    assert_eq!(code(sandbox.listen_datagrams(5300).await), ErrorCode::Unsupported);
    let keeper = sandbox.keeper().await.unwrap();
    assert_eq!(code(keeper.connect_inside(&Target::Tcp(7001), None).await), ErrorCode::Unsupported);
    assert_eq!(code(keeper.listen_inside(&ListenAt::Tcp(0), None).await), ErrorCode::Unsupported);
    assert_eq!(code(keeper.listen_datagrams(5300).await), ErrorCode::Unsupported);
    if stage.mode().layers.contains(&IsolationLayer::MountNamespace) {
        put_program(stage, &sandbox).await;
        let _server = serve(&sandbox, &["echo", "unix:/tmp/echo"], None).await;
        let stream = sandbox.connect(&Target::Unix(b"/tmp/echo".to_vec()), None).await.unwrap();
        assert_eq!(exchange(stream, b"its own").await, b"its own", "its files are its own");
    }
}

/// A keeper of an older Kennel gets no request that it does not know.
pub async fn sockets_need_a_keeper_that_knows_them(stage: &Stage) {
    if !stage.mode().layers.contains(&IsolationLayer::NetNamespace) {
        return;
    }
    let sandbox = stage.running().await;
    let wire = Wire::recording(stage.provider(), Features::default());
    refuses_all(&stage.again(wire.clone(), &sandbox).await).await;
    let unknown = |request: &Request| matches!(request, Request::Connect { .. } | Request::Listen { .. });
    assert!(!wire.requests().iter().any(unknown));
}
