//! The first minutes of a new user: an empty home, the commands of the README, a typo, a missing image, and the
//! lifecycle of one sandbox.

use crate::support::{Finished, Kennel, finish};
use kennel_testkit::{docker, host, within_blocking};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The home of a new user: no settings, and no variables.
struct NewUser {
    home: tempfile::TempDir,
    docker_host: String,
}

impl NewUser {
    fn types(&self, words: &[&str]) -> Finished {
        let mut call = Command::new(env!("CARGO_BIN_EXE_kennel"));
        call.args(words).current_dir(self.home.path().join("project")).env_clear().stdin(Stdio::null());
        call.env("PATH", kennel_testkit::environment::variable("PATH").unwrap()).env("HOME", self.home.path());
        call.env("DOCKER_HOST", &self.docker_host);
        finish(call, None)
    }
}

/// The words after `cargo run --release --` in the README's first command.
fn first_command() -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("cargo run --release -- ")).expect("the first command");
    // Split as a shell does: words, and one quoted string.
    let (words, quoted) = line.split_once('\'').expect("a quoted script");
    let words = words.split_whitespace().map(ToOwned::to_owned);
    words.chain([quoted.strip_suffix('\'').expect("the other quote").to_owned()]).collect()
}

#[test]
fn the_first_steps_of_a_new_user() {
    // Only to have an engine with an image.
    let engine = Kennel::on("docker");
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("project")).unwrap();
    std::fs::write(home.path().join("project/mine"), "mine").unwrap();
    let socket = docker::socket();
    let _net = kennel_testkit::Net::alone();
    let user = NewUser { home, docker_host: format!("unix://{}", socket.display()) };
    let types = |words: &[&str]| user.types(words);

    // The first command of the README.
    let words = first_command();
    let told = types(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let said = told.text();
    assert!(said.contains("uid=0(root)") && said.contains("\nmine\n") && said.contains("exit code:"), "{told:?}");
    assert!(Path::new("/usr/bin").exists(), "the machine's files are still there");

    // Two typos.
    let said = types(&["rnu", "--", "true"]).fails(125);
    assert!(said.contains("similar") && said.contains("'run'"), "{said}");
    let said = types(&["run", "--", "gti", "status"]).fails(127);
    assert!(said.contains("gti"), "{said}");
    let said = types(&["run", "--", "ls -l"]).fails(127);
    assert!(said.contains("kennel run -c 'ls -l'"), "{said}");

    // A missing image.
    let said = types(&["run", "--pull", "never", "--image", "kennel-test/none", "--", "true"]).fails(125);
    assert!(said.contains("there is no image kennel-test/none") && said.contains("try: docker pull"), "{said}");
    assert!(said.contains("kennel build --tag kennel-test/none DIR"), "{said}");
    let image = engine.image().unwrap();
    assert_eq!(types(&["run", "--image", image, "--", "cat", "/workspace/mine"]).ok(), "mine");

    // The lifecycle of one sandbox.
    assert_eq!(types(&["create", "--name", "box", "--start"]).ok(), "box");
    assert!(types(&["ls"]).ok().contains("box"));
    types(&["exec", "box", "-c", "echo $((6 * 7)) > /root/answer"]).ok();
    types(&["cp", "box:/root/answer", "answer"]).ok();
    assert_eq!(std::fs::read_to_string(user.home.path().join("project/answer")).unwrap(), "42\n");
    let said = types(&["create", "--name", "box"]).fails(125);
    assert!(said.contains("already a sandbox called box") && said.contains("try: kennel rm box"), "{said}");
    types(&["stop", "--timeout", "1s", "box"]).ok();
    let said = types(&["exec", "box", "--", "true"]).fails(125);
    assert!(said.contains("try: kennel start box"), "{said}");
    types(&["start", "box"]).ok();
    assert_eq!(types(&["exec", "box", "--", "cat", "/root/answer"]).ok(), "42", "its files stay");
    let said = types(&["rm", "box"]).fails(125);
    assert!(said.contains("kennel rm --force box"), "{said}");
    types(&["rm", "--force", "box"]).ok();
    assert_eq!(types(&["ls", "--all", "-q"]).ok(), "");

    let mark = user.home.path().display().to_string();
    let state = user.home.path().join(".local/state/kennel/native");
    let gone = within_blocking(Duration::from_secs(90), || host::leftovers(&mark, &[], &state).is_empty());
    assert!(gone, "{:?}", host::leftovers(&mark, &[], &state));
}
