//! An image with Node, npm, bash and the libraries of published agents, for tests that run agents in a container. No registry is needed: it has the host's programs.

use crate::docker;
use crate::git_image::{copy_files, output, with_libraries};
use std::path::Path;
use std::process::Command;

/// Creates the image on a given engine, unless it exists: the small image of [`docker::image_on`], and the host's programs with
/// their libraries. Returns its name.
pub fn node_image_on(socket: &Path) -> String {
    let base = docker::image_on(socket);
    let version = output(Command::new("node").arg("--version"));
    let packages = crate::acp::fingerprint();
    let name = format!("{}-{}-{packages}", base.replace("/busybox:", "/node:"), version.trim_start_matches('v'));
    let _only_one = docker::lock("node-image");
    if !docker::has_image(socket, &name) {
        let find = |program: &str| output(Command::new("sh").args(["-c", &format!("command -v {program}")]));
        let codex = crate::acp::codex().display().to_string();
        let mut files = with_libraries(["node", "bash"].map(find).into_iter().chain([codex.clone()]));
        // It is mounted, and only its libraries are in the image.
        files.remove(&codex);
        // npm's program is in the directory of its package.
        let npm = std::fs::canonicalize(find("npm")).expect("npm is a file");
        let package = npm.ancestors().nth(2).expect("npm is in a package").display().to_string();
        files.insert(package.clone());
        let script = format!(
            "ln -sf {package}/bin/npm-cli.js /bin/npm; [ -e /bin/bash ] || ln -s {} /bin/bash; \
             mkdir -p /usr/bin; [ -e /usr/bin/env ] || ln -s /bin/busybox /usr/bin/env",
            find("bash")
        );
        let container = docker::docker(socket, &["create", &base, "sh", "-c", &script]);
        let copied = copy_files(socket, &container, &files);
        if copied {
            docker::docker(socket, &["start", "--attach", &container]);
            docker::docker(socket, &["commit", "--change", "CMD [\"sh\"]", &container, &name]);
        }
        docker::docker(socket, &["rm", "--force", &container]);
        assert!(copied, "Node could not be copied to the image {name}");
    }
    name
}
