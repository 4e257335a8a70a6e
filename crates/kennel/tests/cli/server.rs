//! `kennel serve` with clients that know only docs/server.md: curl and Python's urllib.

use crate::git_server::{CONTENT, GitServer};
use crate::support::{Kennel, hear};
use kennel_testkit::docker;
use kennel_testkit::registry::Registry;
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
        Self::start_saying(kennel, more).0
    }

    pub(crate) fn start_by(kennel: &Kennel, call: &mut Command) -> Self {
        Self::start_and_hear(kennel, call).0
    }

    /// Starts a server, and returns what it says.
    fn start_saying(kennel: &Kennel, more: &[&str]) -> (Self, String) {
        Self::start_and_hear(kennel, &mut kennel.call(&[&["serve", "--listen", "127.0.0.1:0"], more].concat()))
    }

    fn start_and_hear(kennel: &Kennel, call: &mut Command) -> (Self, String) {
        let mut child = call.stdout(Stdio::piped()).spawn().expect("start kennel serve");
        let said = hear(child.stdout.as_mut().expect("standard output is a pipe"), "Ctrl-C\n");
        let url = said.lines().find_map(|line| line.strip_prefix("listening at ")).expect("it says where").to_owned();
        (Self { process: child, url, state: kennel.home.path().join("state") }, said)
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
    server.kill();
    forget_responses(&kennel, 1);
    let server = Serving::start(&kennel);
    assert_eq!(create(&server), first);
    assert_eq!(create(&server), first);
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), first);
    kennel.kennel(&["rm", "--force", &first]).ok();
}

/// Makes the store as if the server had been killed before it recorded its responses.
fn forget_responses(kennel: &Kennel, count: usize) {
    let database = kennel.home.path().join("state/kennel.db");
    let sql = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); \
               print(c.execute('UPDATE idempotency SET status=NULL, response=NULL').rowcount); c.commit()";
    let done = Command::new("python3").args(["-c", sql]).arg(database).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{count}\n"), "{done:?}");
}

#[test]
fn a_key_opens_one_session_and_starts_one_command_although_the_server_is_killed() {
    let kennel = Kennel::among_others("native");
    let create = |server: &Serving, key: &str, path: &str, body: &Value| {
        let (key, body) = (format!("Idempotency-Key: {key}"), body.to_string());
        let (status, body) = server.curl(&server.token(), &["--header", &key, "--json", &body], path);
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    let session = json!({"name": "fix", "ownWorkspace": true, "sandbox": {"network": "none"}});
    let command = json!({"argv": ["sleep", "1000"], "tag": "mine"});
    let profile = json!({"name": "dev", "sandbox": {"network": "none"}});
    let all = |server: &Serving| {
        let opened = create(server, "session", "/v1/sessions", &session);
        let started = create(server, "command", "/v1/sandboxes/fix/processes", &command);
        let made = create(server, "profile", "/v1/profiles", &profile);
        (opened["id"].clone(), opened["sandbox"].clone(), started["process"].clone(), made["name"].clone())
    };
    let server = Serving::start(&kennel);
    let first = all(&server);
    server.kill();
    forget_responses(&kennel, 3);
    let server = Serving::start(&kennel);
    assert_eq!(all(&server), first);
    let (_, listed) = server.curl(&server.token(), &[], "/v1/sandboxes/fix/processes");
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(kennel.kennel(&["session", "ls", "--json"]).json().as_array().unwrap().len(), 1);
    kennel.kennel(&["session", "rm", "--force", "fix"]).ok();
    kennel.kennel(&["profile", "delete", "--force", "dev"]).ok();
}

#[test]
fn a_server_with_a_profile_uses_it_for_sessions() {
    let kennel = Kennel::among_others("native");
    kennel.kennel(&["profile", "create", "dev", "--network", "none", "-e", "TEAM=red"]).ok();
    let (server, said) = Serving::start_saying(&kennel, &["--profile", "dev"]);
    assert!(said.contains("Using container profile: dev\n"), "{said}");
    assert!(kennel.kennel(&["profile", "status", "dev"]).ok().contains("running"));
    let token = server.token();
    let made = server.post(&token, "/v1/sessions", &json!({"name": "fix"}), 201);
    assert_eq!((&made["profile"], &made["workspace"]), (&json!("dev"), &json!(kennel.here())));
    let body = json!({"shell": "echo $TEAM; pwd"});
    let done = server.post(&token, "/v1/sessions/fix/exec", &body, 200);
    assert_eq!(done["stdout"], "red\n/workspace\n");
    kennel.kennel(&["session", "rm", "--force", "fix"]).ok();
    kennel.kennel(&["profile", "delete", "--force", "dev"]).ok();
    server.kill();
    let missing = kennel.kennel(&["serve", "--profile", "nothing"]).fails(125);
    assert!(missing.contains("there is no profile nothing"), "{missing}");
}

#[test]
fn a_session_of_the_api_clones_only_public_repositories() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let token = server.token();
    let body = |url: String| json!({"name": "fix", "clone": url, "sandbox": {"network": "host"}});
    let public = GitServer::public();
    let made = server.post(&token, "/v1/sessions", &body(public.url()), 201);
    assert_eq!(made["source"], public.url());
    let done = server.post(&token, "/v1/sessions/fix/exec", &json!({"argv": ["cat", "README.md"]}), 200);
    assert_eq!(done["stdout"], CONTENT);
    kennel.kennel(&["session", "rm", "--force", "fix"]).ok();
    // The credentials of the server's user are not used.
    let helper = "[credential]\n\thelper = \"!printf 'username=ann\\\\npassword=secret\\\\n'\"\n";
    std::fs::write(kennel.home.path().join(".gitconfig"), helper).unwrap();
    let private = GitServer::private("ann", "secret");
    let refused = server.post(&token, "/v1/sessions", &body(private.url()), 403);
    assert_eq!(refused["error"]["code"], "permission_denied", "{refused}");
    assert_eq!(kennel.kennel(&["ls", "--all", "-q"]).ok(), "");
    kennel.kennel(&["session", "rm", "fix"]).ok();
}

/// The lines of a response.
fn lines(body: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(body).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_image_is_pulled_and_removed_through_a_server() {
    let (socket, registry) = (docker::socket(), Registry::start());
    let name = registry.push(&socket, &docker::image_on(&socket), "team/busybox:1");
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let token = server.token();
    let body = json!({"image": name}).to_string();
    let (status, body) = server.curl(&token, &["--json", &body], "/v1/images/pull");
    let said = lines(&body);
    assert_eq!((status, &said.last().unwrap()["image"]["name"]), (200, &json!(name)), "{said:?}");
    assert!(said.iter().any(|line| line["type"] == "progress" && line["part"].is_string()), "{said:?}");
    assert_eq!(kennel.kennel(&["image", "ls", "--format", "name"]).ok(), name);
    let path = format!("/v1/images?name={name}");
    assert_eq!(server.curl(&token, &["--request", "DELETE"], &path).0, 200);
    assert_eq!(kennel.kennel(&["image", "ls", "-q"]).ok(), "");
    assert_eq!(server.curl(&token, &["--request", "DELETE"], &path).0, 404);
}

#[test]
fn an_image_is_built_from_an_archive_through_a_server() {
    let kennel = Kennel::on("docker");
    let server = Serving::start(&kennel);
    let socket = docker::socket();
    let secret = kennel.kennel(&["token", "create", "dev", "--scope", "create"]).ok();
    let own: Value = serde_json::from_slice(&server.curl(&secret, &[], "/v1/token").1).unwrap();
    let tag = format!("localhost/{}/app", own["id"].as_str().unwrap());
    let archive = kennel.here().join("context.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&archive).unwrap());
    let text = format!("FROM {}\nARG WORD\nCOPY words /words\nRUN echo $WORD >> /words\n", kennel.image().unwrap());
    for (name, content) in [("images/app", text.as_str()), ("words", "hello\n")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        tar.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap();
    let from = format!("@{}", archive.display());
    let path = format!("/v1/builds/upload?tag={tag}&file=images/app&arg=WORD=built");
    let (status, body) = server.curl(&secret, &["--data-binary", &from], &path);
    let said = lines(&body);
    assert_eq!((status, &said.last().unwrap()["image"]), (200, &json!(tag)), "{said:?}");
    assert!(said.iter().any(|line| line["type"] == "output"), "{said:?}");
    let made = server.post(&secret, "/v1/sandboxes", &json!({"name": "box", "image": tag, "pull": "never"}), 201);
    let done = server.post(&secret, "/v1/sandboxes/box/exec", &json!({"argv": ["cat", "/words"]}), 200);
    assert_eq!(done["stdout"], "hello\nbuilt\n", "{made}");
    server.curl(&secret, &["--request", "DELETE"], "/v1/sandboxes/box?force=true");
    docker::docker(&socket, &["rmi", &tag]);
    // A step that fails, and a directory of the host.
    let failing = format!("/v1/builds/upload?tag={tag}&file=words");
    let said = lines(&server.curl(&secret, &["--data-binary", &from], &failing).1);
    assert_eq!(said.last().unwrap()["type"], "error", "{said:?}");
    let host = json!({"context": "/etc", "tag": "x"}).to_string();
    assert_eq!(server.curl(&secret, &["--json", &host], "/v1/builds").0, 403);
    assert_eq!(std::fs::read_dir(server.state.join("builds")).unwrap().count(), 0, "no context is left");
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
