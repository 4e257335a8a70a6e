//! A git server on loopback: `git http-backend` behind a small HTTP server, with or without a password.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// The content of the file `README.md` in the repository.
pub(crate) const CONTENT: &str = "cloned over HTTP\n";

/// A server with one repository, `project.git`. It ends with the test program.
pub(crate) struct GitServer {
    address: SocketAddr,
    _repositories: tempfile::TempDir,
}

/// Holds the transfer of a repository's content, so that a test can look at what happens meanwhile.
pub(crate) struct Held {
    arrived: Receiver<()>,
    go_on: SyncSender<()>,
}

impl Held {
    /// Waits until a client asks for the content.
    pub(crate) fn wait(&self) {
        self.arrived.recv_timeout(crate::support::CALL).expect("a client asks for the content");
    }

    /// Lets the client have the content.
    pub(crate) fn release(self) {
        self.go_on.send(()).expect("the server waits");
    }
}

/// How the server treats requests.
#[derive(Clone, Default)]
struct Rules {
    /// What clients must send in the header `Authorization`.
    authorization: Option<String>,
    hold: Option<Arc<Hold>>,
}

/// The server's side of [`Held`].
struct Hold {
    arriving: SyncSender<()>,
    going_on: Mutex<Receiver<()>>,
}

impl GitServer {
    /// Starts a server for everyone.
    pub(crate) fn public() -> Self {
        Self::start(Rules::default())
    }

    /// Starts a server that demands a user name and a password.
    pub(crate) fn private(user: &str, password: &str) -> Self {
        Self::start(Rules { authorization: Some(basic(user, password)), hold: None })
    }

    /// Starts a server that demands a user name and a password, and holds the first transfer.
    pub(crate) fn held(user: &str, password: &str) -> (Self, Held) {
        let ((arriving, arrived), (go_on, going_on)) = (sync_channel(1), sync_channel(1));
        let hold = Some(Arc::new(Hold { arriving, going_on: Mutex::new(going_on) }));
        let rules = Rules { authorization: Some(basic(user, password)), hold };
        (Self::start(rules), Held { arrived, go_on })
    }

    /// The server is in the network of the calling thread.
    fn start(rules: Rules) -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_repository(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let root = dir.path().to_owned();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (root, rules) = (root.clone(), rules.clone());
                std::thread::spawn(move || serve(&connection, &root, &rules));
            }
        });
        Self { address, _repositories: dir }
    }

    /// The address of the repository.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/project.git", self.address)
    }

    /// The address of a repository that does not exist.
    pub(crate) fn missing_url(&self) -> String {
        format!("http://{}/missing.git", self.address)
    }
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

/// Git on the host, without settings of the user.
fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]).args(args);
    let done = command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").output();
    let done = done.expect("git is installed");
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn make_repository(dir: &Path) {
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("README.md"), CONTENT).unwrap();
    git(&work, &["init", "--quiet", "--initial-branch=main"]);
    git(&work, &["add", "README.md"]);
    git(&work, &["commit", "--quiet", "--message=first"]);
    git(dir, &["clone", "--quiet", "--bare", "work", "project.git"]);
}

/// A request, as far as git's program needs it.
struct Request {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn read(connection: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(connection);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
            Some(line.trim_end().to_owned())
        };
        let first = line()?;
        let mut words = first.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = Vec::new();
        while let Some((name, value)) = line()?.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let mut request = Self { method, path: path.into(), query: query.into(), headers, body: Vec::new() };
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn serve(connection: &TcpStream, root: &Path, rules: &Rules) {
    let Some(request) = Request::read(connection) else { return };
    let mut connection = connection;
    if rules.authorization.is_some() && request.header("authorization") != rules.authorization.as_deref() {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\n\
                       Connection: close\r\n\r\n";
        let _ = connection.write_all(refusal.as_bytes());
        return;
    }
    if let (Some(hold), "POST") = (&rules.hold, request.method.as_str()) {
        // The test may be over, and nobody listens any more.
        if hold.arriving.send(()).is_ok() {
            let _ = hold.going_on.lock().unwrap().recv();
        }
    }
    let output = backend(&request, root);
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("the program prints headers");
    let headers = String::from_utf8_lossy(&output[..end]).into_owned();
    let status = headers.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
    let body = &output[end + 4..];
    let head = format!("HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body));
}

/// Runs git's own server program for one request, and returns its headers and its body.
fn backend(request: &Request, root: &Path) -> Vec<u8> {
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("REQUEST_METHOD", &request.method).env("PATH_INFO", &request.path);
    command.env("QUERY_STRING", &request.query).env("CONTENT_LENGTH", request.body.len().to_string());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for (header, variable) in [
        ("content-type", "CONTENT_TYPE"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
        ("git-protocol", "HTTP_GIT_PROTOCOL"),
    ] {
        if let Some(value) = request.header(header) {
            command.env(variable, value);
        }
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let body = request.body.clone();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&body)));
    let output = child.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    output
}

/// Returns the files with this text in their content below a directory.
pub(crate) fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for entry in entries.flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_with(&path, text));
        } else if kind.is_file() {
            // A file may be removed meanwhile.
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path);
            }
        }
    }
    found
}
