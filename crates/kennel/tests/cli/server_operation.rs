//! How `kennel serve` is operated: TLS, the background, service managers and the log.

use crate::server::Serving;
use crate::support::{CALL, Kennel};
use kennel_testkit::within_blocking;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// Calls the command line with a server's address and token, in a home of its own.
fn away(url: &str, token: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", home.path());
    command.env("KENNEL_URL", url).env("KENNEL_TOKEN", token).stdin(Stdio::null()).current_dir(home.path());
    let done = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn fingerprint(kennel: &Kennel) -> String {
    let status = kennel.kennel(&["serve", "status", "--json"]).json();
    status["fingerprint"].as_str().unwrap_or_else(|| panic!("{status}")).to_owned()
}

#[test]
fn a_server_with_its_own_certificate_is_known_by_its_fingerprint() {
    let kennel = Kennel::among_others("native");
    let tls = ["--tls-self-signed", "--server-name", "box.example"];
    let server = Serving::start_with(&kennel, &tls);
    let (token, pin) = (server.token(), fingerprint(&kennel));
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);

    // Commands over requests and over WebSockets.
    let pinned = format!("{}#sha256={pin}", server.url);
    let run = ["run", "--no-workspace", "--network", "none", "--", "echo", "over TLS"];
    assert_eq!(away(&pinned, &token, &run), (Some(0), "over TLS\n".into(), String::new()));
    let other = format!("{}#sha256={}", server.url, "0".repeat(64));
    let (status, _, problem) = away(&other, &token, &["ls"]);
    assert!(status == Some(125) && problem.contains(&pin), "{problem}");
    let (status, _, problem) = away(&server.url, &token, &["ls"]);
    assert!(status == Some(125) && problem.contains("certificate"), "{problem}");
    let (status, _, problem) = away(&server.url.replace("https", "http"), &token, &["ls"]);
    assert_eq!(status, Some(125), "{problem}");

    // Programs that know the certificate, and call the server by its name.
    let port = server.url.rsplit(':').next().unwrap();
    let certificate = server.state.join("tls/certificate.pem");
    let curl = |host: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_code}"]);
        curl.arg("--cacert").arg(&certificate).args(["--header", &format!("Authorization: Bearer {token}")]);
        curl.args(["--resolve", &format!("box.example:{port}:127.0.0.1")]).args(more);
        let done = curl.arg(format!("https://{host}:{port}/v1/sandboxes")).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(curl("box.example", &[]), "200");
    assert_eq!(curl("localhost", &[]), "200");
    assert_eq!(curl("localhost", &["--header", "host: evil.example"]), "421");
    let origin = format!("origin: http://localhost:{port}");
    assert_eq!(curl("localhost", &["--header", &origin]), "403", "another scheme is another origin");
    assert_eq!(curl("localhost", &["--header", &origin.replace("http:", "https:")]), "200");

    drop(server);
    let server = Serving::start_with(&kennel, &tls);
    assert_eq!(fingerprint(&kennel), pin, "it is kept");
    drop(server);
}

#[test]
fn other_machines_reach_a_server_only_with_tls() {
    let kennel = Kennel::among_others("native");
    let refused = kennel.kennel(&["serve", "--listen", "0.0.0.0:0"]).fails(125);
    assert!(refused.contains("a server without TLS listens only at loopback addresses"), "{refused}");
    let refused = kennel.kennel(&["serve", "--tls-self-signed"]).fails(125);
    assert!(refused.contains("the server listens at no TCP address"), "{refused}");
    kennel.kennel(&["serve", "--listen", "0.0.0.0:0", "--tls-cert", "only.pem"]).fails(125);
    let missing = ["serve", "--listen", "0.0.0.0:0", "--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem"];
    assert!(kennel.kennel(&missing).fails(125).contains("/no/cert.pem"));

    // The files of an operator, here those that another server has made.
    drop(Serving::start_with(&kennel, &["--tls-self-signed"]));
    let state = kennel.home.path().join("state/tls");
    let file = |name: &str| state.join(name).display().to_string();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let mut call = kennel.call(&["serve", "--listen", "0.0.0.0:0", "--tls-cert", &certificate, "--tls-key", &key]);
    let server = Serving::start_by(&kennel, &mut call);
    let url = server.url.replace("0.0.0.0", "127.0.0.1");
    let pinned = format!("{url}#sha256={}", fingerprint(&kennel));
    assert_eq!(away(&pinned, &server.token(), &["ls", "-q"]), (Some(0), String::new(), String::new()));
    let made = kennel.kennel(&["create", "--start", "--network", "none", "--name", "box"]).ok();
    let token = server.token();
    let post = |path: &str, body: &Value| {
        let arguments = ["--insecure", "--json", &body.to_string()];
        let (status, body) = Serving::curl_at(&url, &token, &arguments, path);
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (status, preview) = post("/v1/sandboxes/box/previews", &json!({"port": 80}));
    assert!(status == 201 && preview["url"].as_str().unwrap().starts_with("https://80-"), "{preview}");
    kennel.kennel(&["rm", "--force", &made]).ok();
}

#[test]
fn a_server_runs_in_the_background_until_it_is_stopped() {
    let kennel = Kennel::among_others("native");
    assert_eq!(kennel.kennel(&["serve", "status"]).status, 1);
    assert_eq!(kennel.kennel(&["serve", "stop"]).status, 0);
    let started = kennel.kennel(&["serve", "--detach", "--listen", "127.0.0.1:0"]).ok();
    let url = started.lines().find_map(|line| line.strip_prefix("listening at ")).unwrap().to_owned();
    let status = kennel.kennel(&["serve", "status", "--json"]).json();
    assert_eq!((&status["running"], &status["addresses"][0]), (&json!(true), &json!(url)), "{status}");
    let pid = status["pid"].as_u64().unwrap();
    assert!(started.contains(&format!("running as process {pid}")), "{started}");
    let shown = kennel.kennel(&["serve", "status"]).ok();
    assert!(shown.starts_with(&format!("running as process {pid}\nlistening at {url}\n")), "{shown}");
    let again = kennel.kennel(&["serve", "--detach"]).fails(125);
    assert!(again.contains(&format!("as process {pid}")), "{again}");
    let (status, _) = Serving::curl_at(&url, "", &[], "/healthz");
    assert_eq!(status, 200);
    kennel.kennel(&["serve", "stop"]).ok();
    // A process that has ended has no command line, also before its parent takes notice.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(command.is_empty(), "it has not ended");
    assert_eq!(kennel.kennel(&["serve", "status", "--json"]).status, 1);
    let log = std::fs::read_to_string(kennel.home.path().join("state/serve.log")).unwrap();
    assert!(log.contains("responded") && log.contains("/healthz"), "{log}");

    // A start that fails says why.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = kennel.kennel(&["serve", "--detach", "--listen", &address]).fails(125);
    assert!(failed.contains("another program listens there"), "{failed}");
    assert_eq!(kennel.kennel(&["serve", "status"]).status, 1);
}

/// The arguments of the service's program, as `contrib` has them.
fn service() -> Vec<String> {
    let unit = include_str!("../../../../contrib/systemd/kennel.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    assert!(unit.contains("Type=notify\n") && unit.contains("Requires=kennel.socket\n"));
    let socket = include_str!("../../../../contrib/systemd/kennel.socket");
    assert!(socket.contains("ListenStream=127.0.0.1:7070\n"));
    start.split(' ').skip(1).map(ToOwned::to_owned).collect()
}

#[test]
fn a_service_manager_passes_sockets_and_is_told_when_the_server_is_ready() {
    // Opens the sockets as systemd does, and becomes the server.
    const MANAGER: &str = "
import os, socket, sys
tcp = socket.create_server(('127.0.0.1', 0))
unix = socket.socket(socket.AF_UNIX)
unix.bind(sys.argv[1])
unix.listen()
for at, passed in enumerate([tcp, unix]):
    os.dup2(passed.fileno(), 20 + at)
for at in range(2):
    os.dup2(20 + at, 3 + at)
    os.close(20 + at)
os.environ.update(LISTEN_FDS='2', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";
    let kennel = Kennel::among_others("native");
    let dir = tempfile::tempdir().unwrap();
    let (socket, notify) = (dir.path().join("passed.sock"), dir.path().join("notify.sock"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(CALL)).unwrap();
    let arguments = service();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let plain = kennel.call(&words);
    let mut call = Command::new("python3");
    call.args(["-c", MANAGER]).arg(&socket).arg(plain.get_program()).args(plain.get_args()).env_clear();
    call.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("NOTIFY_SOCKET", &notify);
    call.current_dir(plain.get_current_dir().unwrap()).stdin(Stdio::null());
    let mut server = Serving::start_by(&kennel, &mut call);
    let mut told = [0; 100];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1\n");
    assert_eq!(server.curl(&server.token(), &[], "/v1/sandboxes").0, 200);
    let at_unix = ["--unix-socket", socket.to_str().unwrap()];
    assert_eq!(Serving::curl_at("http://localhost", "", &at_unix, "/v1/sandboxes").0, 200);
    kennel.kennel(&["serve", "stop"]).ok();
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"STOPPING=1\n");
    assert!(server.process.wait().unwrap().success());
    assert!(socket.exists(), "a socket that was passed belongs to the service manager");
}

#[test]
fn the_log_follows_a_request_to_its_command_and_has_no_secrets() {
    let kennel = Kennel::among_others("native");
    let path = kennel.home.path().join("log");
    let mut call = kennel.call(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    let server = Serving::start_by(&kennel, call.stderr(File::create(&path).unwrap()));
    let token = server.token();
    server.post(&token, "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01");
    let body = json!({"argv": ["echo", "a-secret-argument"]}).to_string();
    let arguments = ["--header", "x-request-id: from-the-client", "--header", &parent, "--json", &body];
    assert_eq!(server.curl(&token, &arguments, "/v1/sandboxes/box/exec").0, 200);
    let ticket = server.post(&token, "/v1/tickets", &json!({"operation": "getToken", "path": "/v1/token"}), 201);
    assert_eq!(server.curl("", &[], ticket["path"].as_str().unwrap()).0, 200);
    server.curl(&token, &["--request", "DELETE"], "/v1/sandboxes/box?force=true");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    };
    let said = |message: &str| {
        lines()
            .into_iter()
            .find(|line| line["message"] == message && line["spans"][0]["request_id"] == "from-the-client")
    };
    assert!(within_blocking(CALL, || said("responded").is_some()), "{:?}", lines());
    let command = said("ran a command").unwrap();
    assert_eq!(command["exit_code"], 0);
    assert_eq!(command["spans"][0]["trace_id"], trace);
    assert_eq!(command["spans"][0]["path"], "/v1/sandboxes/box/exec");
    let text = std::fs::read_to_string(&path).unwrap();
    for secret in [token.as_str(), ticket["ticket"].as_str().unwrap(), "a-secret-argument"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn another_user_needs_a_token_at_a_unix_socket() {
    use std::os::unix::fs::PermissionsExt as _;
    let kennel = Kennel::among_others("native");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("api.sock");
    let listen = format!("unix:{}", socket.display());
    let server = Serving::start_with(&kennel, &["--listen", &listen]);
    let token = server.token();
    // As root, or as nobody.
    let status = |uid: &str, token: &str| {
        let mut curl = Command::new("setpriv");
        curl.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "curl", "--silent"]);
        curl.args(["--output", "/dev/null", "--write-out", "%{http_code}", "--unix-socket"]).arg(&socket);
        if !token.is_empty() {
            curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        let done = curl.arg("http://localhost/v1/sandboxes").output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(status("0", ""), "200");
    assert_eq!(status("65534", ""), "401");
    assert_eq!(status("65534", "kennel_wrong"), "401");
    assert_eq!(status("65534", &token), "200");
    assert_eq!(status("0", "kennel_wrong"), "401", "a token counts more than the user");
}
