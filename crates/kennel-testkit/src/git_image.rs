//! An image with git, for tests that clone a repository in a container. No registry is needed: it has the host's git.

use crate::docker;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates the image on a given engine, unless it exists: the small image of [`docker::image_on`], and the host's git
/// with its libraries. Returns its name.
pub fn git_image_on(socket: &Path) -> String {
    let base = docker::image_on(socket);
    let version = output(Command::new("git").arg("version"));
    let version: String = version.chars().filter(|char| char.is_ascii_digit() || *char == '.').collect();
    let name = format!("{}-{version}", base.replace("/busybox:", "/git:"));
    let _only_one = docker::lock("git-image");
    if !docker::has_image(socket, &name) {
        let container = docker::docker(socket, &["create", &base, "true"]);
        let copied = copy_git(socket, &container);
        if copied {
            docker::docker(socket, &["commit", &container, &name]);
        }
        docker::docker(socket, &["rm", "--force", &container]);
        assert!(copied, "git could not be copied to the image {name}");
    }
    name
}

/// Copies git to a container. It has the same paths there as on the host.
fn copy_git(socket: &Path, container: &str) -> bool {
    let programs = output(Command::new("git").arg("--exec-path"));
    let git = output(Command::new("sh").args(["-c", "command -v git"]));
    let more = ["git", "git-remote-http", "git-remote-https"].map(|name| format!("{programs}/{name}"));
    copy_files(socket, container, &with_libraries(std::iter::once(git).chain(more)))
}

/// Returns programs with the libraries that they load.
pub(crate) fn with_libraries(programs: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let mut files: BTreeSet<String> = programs.into_iter().collect();
    for program in files.clone() {
        let libraries = output(Command::new("ldd").arg(&program));
        files.extend(libraries.split_whitespace().filter(|word| word.starts_with('/')).map(ToOwned::to_owned));
    }
    files
}

/// Copies files and directories of the host to a container. They have the same paths there.
pub(crate) fn copy_files(socket: &Path, container: &str, files: &BTreeSet<String>) -> bool {
    // Symlinks are stored as what they lead to.
    let mut tar = Command::new("tar");
    tar.args(["--create", "--dereference", "--directory=/", "--file=-"]);
    tar.args(files.iter().map(|file| file.trim_start_matches('/')));
    let mut tar = tar.stdout(Stdio::piped()).spawn().expect("start tar");
    let archive = tar.stdout.take().expect("its output is a pipe");
    let copied = docker::command(socket).args(["cp", "-", &format!("{container}:/")]).stdin(archive).status();
    let packed = tar.wait();
    copied.is_ok_and(|status| status.success()) && packed.is_ok_and(|status| status.success())
}

/// Runs a program, which must succeed, and returns its output.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
