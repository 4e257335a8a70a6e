//! The command line with the sandboxes of a server.

use crate::server::Serving;
use crate::support::{Finished, Kennel};
use expectrl::Expect;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// A command line that knows only the address and the token of a server. It has its own empty home.
struct Away {
    home: tempfile::TempDir,
    url: String,
    token: String,
}

impl Away {
    fn from(server: &Serving) -> Self {
        Self { home: tempfile::tempdir().unwrap(), url: server.url.clone(), token: server.token() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", self.home.path());
        command.env("KENNEL_URL", &self.url).env("KENNEL_TOKEN", &self.token).current_dir(self.home.path());
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Finished {
        finished(&mut self.command(args))
    }

    /// Calls with this standard input.
    #[track_caller]
    fn fed(&self, args: &[&str], input: &[u8]) -> Finished {
        let path = self.home.path().join("input");
        std::fs::write(&path, input).unwrap();
        finished(self.command(args).stdin(std::fs::File::open(path).unwrap()))
    }
}

#[track_caller]
fn finished(command: &mut Command) -> Finished {
    let done = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    Finished { status: done.status.code().unwrap_or(-1), stdout: done.stdout, stderr }
}

#[test]
fn run_exec_ls_inspect_logs_stop_and_rm_go_through_a_server() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let away = Away::from(&server);
    let run = ["run", "--no-workspace", "--network", "none"];
    let done = away.fed(&[&run[..], &["-c", "cat; echo problem >&2; exit 7"]].concat(), b"hello\n");
    assert_eq!((done.status, done.text().as_str()), (7, "hello\n"), "{done:?}");
    assert!(done.stderr.contains("problem"), "{done:?}");
    assert_eq!(away.run(&["ls", "--all", "-q"]).ok(), "", "the sandbox of the run is gone");

    // More than all windows together, in both directions.
    let much: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let body = json!({"name": "box", "network": "none", "command": ["sh", "-c", "echo out; echo err >&2; sleep 1000"]});
    let made = server.post(&server.token(), "/v1/sandboxes", &body, 201);
    assert!(away.fed(&["exec", "box", "--", "cat"], &much).stdout == much);

    assert_eq!(away.run(&["ls", "-q"]).ok(), made["id"].as_str().unwrap());
    let listed = away.run(&["ls", "--json", "--filter", "name=box"]).json();
    let here = finished(&mut kennel.call(&["ls", "--json"])).json();
    assert_eq!(listed, here, "a list is the same here and there");
    let inspected = away.run(&["inspect", "box"]).json();
    assert_eq!(inspected, finished(&mut kennel.call(&["inspect", "box"])).json());
    let json = away.run(&["exec", "--json", "box", "--", "sh", "-c", "echo x; exit 3"]);
    let object = json.json();
    assert_eq!((json.status, &object["exitCode"], &object["stdout"]), (3, &json!(3), &json!("x\n")), "{object}");
    assert_eq!((&object["provider"], &object["sandboxId"]), (&json!("native"), &made["id"]));
    let late = away.run(&["exec", "--timeout", "200ms", "box", "--", "sleep", "1000"]);
    assert!(late.fails(124).contains("did not finish within 200ms"));
    assert_eq!(away.run(&["exec", "box", "--", "/no/such"]).status, 127);
    let logs = away.run(&["logs", "box"]);
    assert_eq!((logs.text().as_str(), logs.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(away.run(&["logs", "--tail", "1", "box"]).status, 0);
    let number = away.run(&["exec", "-d", "box", "--", "sleep", "1000"]).ok();
    assert!(number.parse::<u64>().is_ok(), "{number}");

    assert_eq!(away.run(&["stop", "--timeout", "1s", "box"]).ok(), made["id"].as_str().unwrap());
    let stopped = away.run(&["exec", "box", "--", "true"]);
    assert!(stopped.fails(125).contains("not running"));
    assert_eq!(away.run(&["rm", "box"]).ok(), made["id"].as_str().unwrap());
    assert!(away.run(&["inspect", "box"]).fails(125).contains("no sandbox box"));
}

#[test]
fn files_and_archives_are_copied_through_a_server() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let away = Away::from(&server);
    server.post(&server.token(), "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let at = |name: &str| away.home.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("notes"), "some text").unwrap();
    away.run(&["cp", &at("notes"), "box:/tmp/"]).ok();
    away.run(&["cp", &at("notes"), "box:/tmp/dir/other"]).ok();
    away.fed(&["cp", "-", "box:/tmp/dir/piped"], b"from a pipe").ok();
    assert_eq!(away.run(&["cp", "box:/tmp/notes", "-"]).ok(), "some text");
    away.run(&["cp", "box:/tmp/dir/piped", &at("back")]).ok();
    assert_eq!(std::fs::read_to_string(at("back")).unwrap(), "from a pipe");
    away.run(&["cp", "--archive", "box:/tmp/dir", &at("dir.tar")]).ok();
    away.run(&["cp", "--archive", &at("dir.tar"), "box:/tmp/again"]).ok();
    let found = away.run(&["exec", "box", "--", "sh", "-c", "cd /tmp/again && find . -type f | sort"]).ok();
    assert_eq!(found, "./dir/other\n./dir/piped");
    let refused = away.run(&["cp", "box:/tmp/dir", &at("copy")]);
    assert!(refused.fails(125).contains("--archive"), "a directory is copied as an archive");
    assert!(!std::path::Path::new(&at("copy")).exists());
    assert!(away.run(&["cp", "box:/no/such", &at("x")]).fails(125).contains("/no/such"));
    assert!(!std::path::Path::new(&at("x")).exists(), "an incomplete file does not stay");
    away.run(&["rm", "--force", "box"]).ok();
}

#[test]
fn a_terminal_works_through_a_server() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let away = Away::from(&server);
    server.post(&server.token(), "/v1/sandboxes", &json!({"name": "box", "network": "none"}), 201);
    let spawn = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", away.home.path());
        command.env("KENNEL_URL", &away.url).env("KENNEL_TOKEN", &away.token).env("TERM", "xterm");
        let mut session = expectrl::Session::spawn(command).unwrap();
        session.set_expect_timeout(Some(std::time::Duration::from_mins(1)));
        session
    };
    let mut shell = spawn(&["exec", "-it", "box", "--", "sh", "-c", "echo ready; read line; echo got $line; tty"]);
    shell.expect("ready").unwrap();
    shell.send_line("word").unwrap();
    shell.expect("got word").unwrap();
    shell.expect("/dev/pts/").unwrap();
    // A shell stays when the user detaches, and is there again.
    let mut first = spawn(&["attach", "box"]);
    first.send_line("VALUE=kept; echo be''gun").unwrap();
    first.expect("begun").unwrap();
    first.send("\x10\x11").unwrap();
    first.expect("detached").unwrap();
    let mut again = spawn(&["attach", "box"]);
    again.send_line("echo still-$VALUE").unwrap();
    again.expect("still-kept").unwrap();
    again.send_line("exit 5").unwrap();
    again.expect(expectrl::Eof).unwrap();
    away.run(&["rm", "--force", "box"]).ok();
}

#[test]
fn what_does_not_work_through_a_server_is_refused_by_name() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let away = Away::from(&server);
    for args in [
        &["create", "--name", "x"][..],
        &["start", "x"],
        &["pause", "x"],
        &["stats"],
        &["events"],
        &["gc"],
        &["doctor"],
        &["token", "ls"],
        &["serve"],
        &["profile", "list"],
        &["session", "ls"],
        &["image", "ls"],
        &["volume", "ls"],
        &["config", "show"],
        &["wait", "x"],
    ] {
        let refused = away.run(args);
        assert_eq!(refused.status, 125, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("does not work through a server"), "{args:?}: {refused:?}");
    }
    away.run(&["version"]).ok();
    for (args, said) in [
        (&["run", "--", "true"][..], "--no-workspace"),
        (&["run", "--no-workspace", "-v", "/tmp:/x", "--", "true"], "--volume"),
        (&["run", "--workspace", "/tmp", "--", "true"], "--workspace"),
        (&["run", "--no-workspace", "--profile", "p", "--", "true"], "--profile"),
        (&["ls", "--watch"], "--watch"),
    ] {
        let refused = away.run(args).fails(125);
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    let listed: Value = serde_json::from_slice(&away.run(&["ls", "--all", "--json"]).stdout).unwrap();
    assert_eq!(listed, json!([]), "nothing was created");
    // The option counts more than the variable, and a wrong token is refused.
    let mut wrong = away.command(&["--server", &away.url, "ls"]);
    assert_eq!(finished(wrong.env("KENNEL_TOKEN", "kennel_wrong").env("KENNEL_URL", "http://127.0.0.1:1")).status, 125);
    let mut gone = away.command(&["--server", "http://127.0.0.1:1", "ls"]);
    assert!(finished(&mut gone).fails(125).contains("connect to the server at http://127.0.0.1:1"));
    let mut invalid = away.command(&["--server", "nonsense", "ls"]);
    assert!(finished(&mut invalid).fails(125).contains("invalid server address"));
    // On the same machine, the files of the server's user are enough.
    let mut here = kennel.call(&["--server", &away.url, "ls", "--json"]);
    assert_eq!(finished(&mut here).ok(), "[]");
    let socket = format!("unix:{}", server.state.join("api.sock").display());
    let mut here = kennel.call(&["--server", &socket, "ls", "--json"]);
    assert_eq!(finished(&mut here).ok(), "[]");
}

#[test]
fn run_copies_the_current_directory_to_a_server_on_request() {
    let kennel = Kennel::among_others("native");
    let server = Serving::start(&kennel);
    let away = Away::from(&server);
    let project = away.home.path().join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    std::fs::write(project.join("src/main.txt"), "hello").unwrap();
    std::fs::write(project.join("run.sh"), "#!/bin/sh\ncat src/main.txt; echo changed > src/main.txt\n").unwrap();
    std::fs::set_permissions(project.join("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("src/main.txt", project.join("link")).unwrap();
    let at = |args: &[&str]| finished(away.command(args).current_dir(&project));
    let run = ["run", "--upload", "--network", "none"];
    let done = at(&[&run[..], &["--", "./run.sh"]].concat());
    assert_eq!((done.status, done.text().as_str()), (0, "hello"), "{done:?}");
    assert_eq!(std::fs::read_to_string(project.join("src/main.txt")).unwrap(), "hello");
    assert_eq!(at(&[&run[..], &["--", "readlink", "/workspace/link"]].concat()).ok(), "src/main.txt");
    assert_eq!(at(&[&run[..], &["--workdir", "/tmp", "--", "pwd"]].concat()).ok(), "/tmp");
    assert_eq!(at(&["ls", "--all", "-q"]).ok(), "");
    for conflict in ["--no-workspace", "--workspace=/tmp", "--profile=x"] {
        assert_eq!(at(&["run", "--upload", conflict, "--", "true"]).status, 125, "{conflict}");
    }
    let home = finished(away.command(&["run", "--upload", "--", "true"]).env("HOME", away.home.path()));
    assert!(home.fails(125).contains("it would copy all of"));
    let here = finished(kennel.call(&["run", "--upload", "--", "true"]).current_dir(&project));
    assert!(here.fails(125).contains("for the sandboxes of a server"));
}
