//! `kennel serve` with clients that know only docs/server.md: curl and Python's urllib.

use crate::support::{Kennel, hear};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A running `kennel serve` at a TCP port. It is killed when this is dropped.
pub(crate) struct Serving {
    pub(crate) process: Child,
    pub(crate) url: String,
    pub(crate) state: PathBuf,
}

impl Serving {
    pub(crate) fn start(kennel: &Kennel) -> Self {
        Self::start_with(kennel, &[])
    }

    pub(crate) fn start_with(kennel: &Kennel, more: &[&str]) -> Self {
        Self::start_by(kennel, &mut kennel.call(&[&["serve", "--listen", "127.0.0.1:0"], more].concat()))
    }

    pub(crate) fn start_by(kennel: &Kennel, call: &mut Command) -> Self {
        let mut child = call.stdout(Stdio::piped()).spawn().expect("start kennel serve");
        let said = hear(child.stdout.as_mut().expect("standard output is a pipe"), "Ctrl-C\n");
        let url = said.lines().find_map(|line| line.strip_prefix("listening at ")).expect("it says where").to_owned();
        Self { process: child, url, state: kennel.home.path().join("state") }
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.state.join("token")).unwrap().trim_end().to_owned()
    }

    /// Calls curl with a token, if it is not empty, these arguments and a path. Returns the status and the body.
    #[track_caller]
    pub(crate) fn curl(&self, token: &str, args: &[&str], path: &str) -> (u16, Vec<u8>) {
        Self::curl_at(&self.url, token, args, path)
    }

    /// Sends JSON, which must succeed with this status.
    #[track_caller]
    pub(crate) fn post(&self, token: &str, path: &str, body: &Value, status: u16) -> Value {
        let (found, body) = self.curl(token, &["--json", &body.to_string()], path);
        assert_eq!(found, status, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Calls curl with another address of the server.
    #[track_caller]
    pub(crate) fn curl_at(url: &str, token: &str, args: &[&str], path: &str) -> (u16, Vec<u8>) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "100", "--write-out", "\n%{http_code}"]);
        if !token.is_empty() {
            curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        curl.args(args).arg(format!("{url}{path}"));
        let done = curl.stdin(Stdio::null()).output().expect("curl is installed");
        assert!(done.status.success(), "{done:?}");
        let end = done.stdout.iter().rposition(|byte| *byte == b'\n').unwrap();
        let status = String::from_utf8_lossy(&done.stdout[end + 1..]).parse().unwrap();
        (status, done.stdout[..end].to_vec())
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn curl_creates_uses_and_removes_a_sandbox() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let token = server.token();
    let made = server.post(&token, "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    assert_eq!(made["status"], "running");
    let done = server.post(&token, "/v1/sandboxes/box/exec", &json!({"shell": "echo out; echo err >&2; exit 3"}), 200);
    assert_eq!((&done["exitCode"], &done["stdout"], &done["stderr"]), (&json!(3), &json!("out\n"), &json!("err\n")));
    let file = kennel.here().join("notes.txt");
    std::fs::write(&file, "a note").unwrap();
    let path = "/v1/sandboxes/box/files?path=/tmp/notes.txt";
    assert_eq!(server.curl(&token, &["--upload-file", file.to_str().unwrap()], path).0, 204);
    assert_eq!(server.curl(&token, &[], path), (200, b"a note".to_vec()));
    assert_eq!(server.curl(&token, &["--range", "2-5"], path), (206, b"note".to_vec()));
    // The command line sees the same sandbox.
    assert_eq!(kennel.kennel(&["exec", "box", "--", "cat", "/tmp/notes.txt"]).ok(), "a note");
    assert_eq!(server.curl("kennel_wrong", &[], "/v1/sandboxes").0, 401);
    assert_eq!(server.curl(&token, &["--request", "DELETE"], "/v1/sandboxes/box?force=true").0, 204);
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "");
}

#[test]
fn tokens_of_the_command_line_work_until_they_are_revoked() {
    use std::os::unix::fs::PermissionsExt;
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let mode = std::fs::metadata(server.state.join("token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let reader = kennel.kennel(&["token", "create", "reader", "--scope", "read"]).ok();
    assert_eq!(server.curl(&reader, &[], "/v1/sandboxes").0, 200);
    assert_eq!(server.curl(&reader, &["--json", "{}"], "/v1/sandboxes").0, 403);
    let listed = kennel.kennel(&["token", "ls"]).ok();
    assert!(listed.contains("reader") && listed.contains("local") && !listed.contains(&reader), "{listed}");
    assert_eq!(kennel.kennel(&["token", "revoke", "reader"]).ok(), "reader");
    assert_eq!(server.curl(&reader, &[], "/v1/sandboxes").0, 401);
    assert!(kennel.kennel(&["token", "revoke", "reader"]).fails(125).contains("there is no token reader"));
    let socket = server.state.join("api.sock");
    let own = server.curl("", &["--unix-socket", socket.to_str().unwrap()], "/v1/token");
    assert_eq!(own.0, 200, "{own:?}");
}

#[test]
fn pythons_urllib_is_enough_for_a_client() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    // The client of the documentation, as it is there.
    let script = docs.split("```python\n").find(|script| script.contains("import json, urllib.request")).unwrap();
    let script = script.split("```").next().unwrap();
    let script = script.replace("http://127.0.0.1:7070", &server.url);
    let done = Command::new("python3").arg("-c").arg(script).current_dir(&server.state).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "0 hello\n\n", "{done:?}");
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "");
}

#[test]
fn a_key_creates_one_sandbox_although_the_server_is_killed() {
    let kennel = Kennel::among_others("native");
    let body = json!({"network": "none"});
    let key = ["--header", "Idempotency-Key: once"];
    let create = |server: &Serving| {
        let body = body.to_string();
        let args = [&key[..], &["--json", &body]].concat();
        let (status, body) = server.curl(&server.token(), &args, "/v1/sandboxes");
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let server = Serving::start(&kennel);
    let first = create(&server);
    // As if the server had been killed before it recorded the response.
    server.kill();
    let database = kennel.home.path().join("state/kennel.db");
    let sql = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); \
               print(c.execute('UPDATE idempotency SET status=NULL, response=NULL').rowcount); c.commit()";
    let done = Command::new("python3").args(["-c", sql]).arg(database).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "1\n", "{done:?}");
    let server = Serving::start(&kennel);
    assert_eq!(create(&server), first);
    assert_eq!(create(&server), first);
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), first);
    kennel.kennel(&["rm", "--force", &first]).ok();
}

#[test]
fn previews_have_names_below_the_chosen_domain() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start_with(&kennel, &["--preview-domain", "Preview.Example.com"]);
    let token = server.token();
    let made = server.post(&token, "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let preview = server.post(&token, "/v1/sandboxes/box/previews", &json!({"port": 8080}), 201);
    let port = server.url.rsplit(':').next().unwrap();
    let host = format!("8080-{}.preview.example.com:{port}", made["id"].as_str().unwrap());
    assert_eq!(preview["origin"], format!("http://{host}"));
    let link = preview["url"].as_str().unwrap().strip_prefix(&format!("http://{host}")).unwrap();
    let (status, _) = server.curl("", &["--header", &format!("host: {host}")], link);
    assert_eq!(status, 303);
    let (status, _) = server.curl("", &["--header", &format!("host: 8080-x.localhost:{port}")], link);
    assert_eq!(status, 421, "names below localhost are not names of ports any more");
    server.curl(&token, &["-X", "DELETE"], "/v1/sandboxes/box?force=true");
    for wrong in ["", "a-.example", "a..b", "a b", "1.2.3.4"] {
        let done = kennel.call(&["serve", "--preview-domain", wrong]).output().unwrap();
        assert_eq!(done.status.code(), Some(125), "{wrong:?}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("expected a domain name"), "{done:?}");
    }
}
