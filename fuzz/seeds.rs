//! Writes the seeds of the fuzz targets: one file per kind of frame, and a few whole connections. They are checked in.
//! Run this again when the protocol changes (`cargo run --example seeds`, in this directory).

use kennel_proto::{
    Body, Channel, Entry, ExitReport, Failure, FailureKind, Features, FileKind, Frame, Hello, IdleReport,
    ListenItem, Outcome, OutputOffsets, ListenAddress, ProcessInfo, Reply, Request, Size, Spawn, Stat, StatsReport, Target,
    Welcome, encode, sparse,
};
use std::path::Path;

fn main() {
    let frames: Vec<(&str, Vec<Frame>)> = vec![
        ("hello", vec![frame(0, Body::Hello(Hello { generation: 2, token: Some(vec![1; 8].into()), owner: true }))]),
        ("welcome", vec![frame(0, Body::Welcome(Welcome { generation: 2, version: "1".into(), main: Some(1), features: Features::ALL }))]),
        ("open", vec![frame(1, Body::Open(Box::new(Request::Stat { path: b"/x".to_vec().into(), user: None, follow: true })))]),
        ("symlink", vec![frame(1, Body::Open(Box::new(Request::Symlink {
            path: b"/l".to_vec().into(),
            user: Some("1:1".into()),
            target: b"../x".to_vec().into(),
            replace: true,
        })))]),
        ("spawn", vec![frame(1, Body::Open(Box::new(Request::Spawn(Spawn {
            tag: Some("tag".into()),
            hold: true,
            detached: false,
            linger_ms: Some(60_000),
            ..Spawn::main(&["cat".into()])
        }))))]),
        ("write_at", vec![frame(1, Body::Open(Box::new(Request::Write {
            path: b"/f".to_vec().into(),
            user: None,
            mode: Some(0o600),
            parents: true,
            sparse: None,
            offset: Some(4096),
        })))]),
        ("list_depth", vec![frame(1, Body::Open(Box::new(Request::List {
            path: b"/d".to_vec().into(),
            user: None,
            depth: Some(3),
        })))]),
        ("ask_idle", vec![frame(1, Body::Open(Box::new(Request::Idle { reset: true })))]),
        ("end_if_idle", vec![frame(1, Body::Open(Box::new(Request::EndIfIdle)))]),
        ("tie", vec![frame(1, Body::Open(Box::new(Request::Tie { tied: true })))]),
        ("chmod", vec![frame(1, Body::Open(Box::new(Request::Chmod {
            path: b"/x".to_vec().into(),
            user: None,
            mode: 0o755,
            follow: false,
        })))]),
        ("connect", vec![
            frame(1, Body::Open(Box::new(Request::Connect { target: Target::Tcp { port: 80 }, user: None }))),
            frame(2, Body::Open(Box::new(Request::Connect {
                target: Target::Unix { path: b"/s".to_vec().into() },
                user: Some("1:1".into()),
            }))),
        ]),
        ("listen", vec![
            frame(1, Body::Open(Box::new(Request::Listen { address: ListenAddress::Tcp { port: 80 }, user: None }))),
            frame(2, Body::Open(Box::new(Request::Listen {
                address: ListenAddress::Unix { path: b"/s".to_vec().into(), mode: 0o600 },
                user: None,
            }))),
            frame(3, Body::Open(Box::new(Request::Listen { address: ListenAddress::Udp { port: 53 }, user: None }))),
            frame(3, Body::Data { channel: Channel::Stdin, offset: 0, bytes: datagram() }),
            frame(4, Body::Open(Box::new(Request::Accept { connection: 5 }))),
        ]),
        ("host", vec![
            frame(1, Body::Signal(15)),
            frame(1, Body::Resize(Size { rows: 24, cols: 80 })),
            frame(0, Body::Ping),
            frame(1, Body::Data { channel: Channel::Stdin, offset: 0, bytes: b"in".to_vec() }),
            frame(1, Body::Eof(Channel::Stdin)),
            frame(1, Body::Consumed { channel: Channel::Stdout, offset: 2 }),
            frame(1, Body::Close),
        ]),
    ];
    let answers: Vec<(&str, Vec<Frame>)> = vec![
        ("command", vec![
            frame(1, running()),
            frame(1, Body::Consumed { channel: Channel::Stdin, offset: 100_000 }),
            frame(1, Body::Data { channel: Channel::Stdout, offset: 0, bytes: b"out".to_vec() }),
            frame(1, Body::Data { channel: Channel::Stderr, offset: 0, bytes: b"err".to_vec() }),
            frame(1, Body::Eof(Channel::Stdout)),
            frame(1, Body::Eof(Channel::Stderr)),
            frame(1, Body::Exit(ExitReport { code: Some(3), signal: None, timed_out: false, oom_killed: false })),
        ]),
        ("listing", vec![
            frame(2, Body::Reply(Reply::Ready { stdin_window: 0 })),
            frame(2, Body::Data { channel: Channel::Stdout, offset: 0, bytes: entry() }),
            frame(2, Body::Reply(Reply::Done(Outcome::Nothing))),
        ]),
        ("file", vec![
            frame(3, Body::Reply(Reply::Ready { stdin_window: 0 })),
            frame(3, Body::Data { channel: Channel::Stdout, offset: 0, bytes: b"root:x:0:0".to_vec() }),
            frame(3, Body::Reply(Reply::Done(Outcome::Nothing))),
        ]),
        ("holes", vec![
            frame(5, Body::Reply(Reply::ReadySparse { stdin_window: 0 })),
            frame(5, Body::Data { channel: Channel::Stdout, offset: 0, bytes: holes() }),
            frame(5, Body::Reply(Reply::Done(Outcome::Nothing))),
        ]),
        ("processes", vec![frame(4, Body::Reply(Reply::Done(Outcome::Processes(vec![process()]))))]),
        ("idle", vec![frame(8, Body::Reply(Reply::Done(Outcome::Idle(IdleReport { in_use: false, idle_ms: 5000 }))))]),
        ("links", vec![
            frame(6, Body::Reply(Reply::Done(Outcome::Nothing))),
            frame(7, Body::Fail(Failure::new(FailureKind::Refused, "it is a symlink"))),
        ]),
        ("stream", vec![
            frame(13, Body::Reply(Reply::Ready { stdin_window: 65536 })),
            frame(13, Body::Consumed { channel: Channel::Stdin, offset: 5000 }),
            frame(13, Body::Data { channel: Channel::Stdout, offset: 0, bytes: b"out".to_vec() }),
            frame(13, Body::Eof(Channel::Stdin)),
            frame(13, Body::Eof(Channel::Stdout)),
            frame(13, Body::Reply(Reply::Done(Outcome::Nothing))),
        ]),
        ("listener", vec![
            frame(14, Body::Reply(Reply::Listening { port: 0, stdin_window: 0 })),
            frame(14, Body::Data { channel: Channel::Stdout, offset: 0, bytes: connection() }),
            frame(16, Body::Reply(Reply::Ready { stdin_window: 65536 })),
            frame(16, Body::Data { channel: Channel::Stdout, offset: 0, bytes: b"in".to_vec() }),
            frame(15, Body::Reply(Reply::Listening { port: 53, stdin_window: 65536 })),
            frame(15, Body::Data { channel: Channel::Stdout, offset: 0, bytes: datagram() }),
        ]),
        ("outcomes", vec![
            frame(4, Body::Reply(Reply::Done(Outcome::Stats(StatsReport::default())))),
            frame(3, Body::Reply(Reply::Done(Outcome::Stat(stat())))),
            frame(2, Body::Fail(Failure::new(FailureKind::Denied, "no"))),
            frame(1, Body::Close),
            frame(0, Body::Pong),
        ]),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    layers(&root.join("image_layer"));
    for (name, frames) in frames.iter().chain(&answers) {
        write(&root.join("frames"), name, frames);
    }
    for (name, frames) in &answers {
        write(&root.join("keeper_answers"), name, frames);
    }
}

fn frame(stream: u32, body: Body) -> Frame {
    Frame { stream, body }
}

fn process() -> ProcessInfo {
    ProcessInfo {
        process: 1,
        program: b"cat".to_vec().into(),
        running: false,
        attached: true,
        argv: vec![b"cat".to_vec().into(), b"-".to_vec().into()],
        argv_is_cut: true,
        tag: Some("tag".into()),
        started_ms: Some(1_700_000_000_000),
        exit: Some(ExitReport { code: Some(0), ..ExitReport::default() }),
        stdout: Some(OutputOffsets { produced: 9, consumed: 4, kept: 5 }),
        stderr: Some(OutputOffsets::default()),
        stdin: Some(3),
        ..ProcessInfo::default()
    }
}

fn running() -> Body {
    Body::Reply(Reply::Running { process: 1, stdout: 0, stderr: 0, stdin_window: 65536, stdin: 0, tty: false, stdin_passed_on: Some(0) })
}

fn stat() -> Stat {
    Stat { kind: FileKind::File, size: 1, mode: 0o644, uid: 0, gid: 0, modified_ms: 1, target: None }
}

/// A file of two blocks, of which the second has data.
fn holes() -> Vec<u8> {
    [&sparse::head(4096, 3)[..], b"end", &sparse::head(4099, 0)].concat()
}

/// An entry of a directory.
fn entry() -> Vec<u8> {
    item(Entry { name: b"name".to_vec().into(), stat: stat(), unreadable: true })
}

/// A connection that has arrived at a listening socket.
fn connection() -> Vec<u8> {
    let address = |port| Some(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    item(ListenItem::Connection { connection: 5, destination: address(80), peer: address(40_000) })
}

fn datagram() -> Vec<u8> {
    item(ListenItem::Datagram { peer: 1, bytes: b"question".to_vec().into() })
}

/// A message as it is sent: a length and the message.
fn item(message: impl minicbor::Encode<()>) -> Vec<u8> {
    let message = minicbor::to_vec(message).expect("it fits into memory");
    let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
    bytes.extend(message);
    bytes
}

/// Layers and image metadata. The first byte says which.
fn layers(dir: &Path) {
    std::fs::create_dir_all(dir).expect("make a directory for seeds");
    let mut layer = tar::Builder::new(Vec::new());
    let mut put = |kind, name: &str, target: Option<&str>, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        match target {
            Some(target) => layer.append_link(&mut header, name, target).expect("it fits into memory"),
            None => layer.append_data(&mut header, name, content).expect("it fits into memory"),
        }
    };
    use tar::EntryType;
    put(EntryType::Directory, "d", None, b"");
    put(EntryType::Regular, "d/f", None, b"content");
    put(EntryType::Symlink, "l", Some("../d"), b"");
    put(EntryType::Link, "h", Some("d/f"), b"");
    put(EntryType::Regular, "d/.wh.x", None, b"");
    put(EntryType::Regular, "d/.wh..wh..opq", None, b"");
    put(EntryType::Char, "null", None, b"");
    let layer = layer.into_inner().expect("it fits into memory");
    let manifest = br#"[{"Config":"config","RepoTags":["a:b"],"Layers":["x/layer.tar"]}]"#;
    let index = br#"{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}]}"#;
    let seeds: [(&str, u8, &[u8]); 4] =
        [("layer", 0, &layer), ("archive", 2, &layer), ("manifest", 3, manifest), ("index", 4, index)];
    for (name, what, bytes) in seeds {
        std::fs::write(dir.join(name), [&[what], bytes].concat()).expect("write a seed");
    }
}

/// The first byte determines the chunks.
fn write(dir: &Path, name: &str, frames: &[Frame]) {
    std::fs::create_dir_all(dir).expect("make a directory for seeds");
    let mut bytes = vec![64];
    for frame in frames {
        encode(frame, &mut bytes);
    }
    std::fs::write(dir.join(name), bytes).expect("write a seed");
}
