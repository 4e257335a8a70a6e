//! A sandbox made, used once and removed, from nothing: `kennel run`, and what others do in its place.

use super::Effort;
use super::arena::Arena;
use super::row::Row;
use super::sample::{once, succeed, take_turns};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

const WHAT: &str = "kennel run --network none -- true (native)";

fn kennel(arena: &Arena) -> Result<()> {
    succeed(&mut arena.kennel(&["--provider", "native", "run", "--network", "none", "--", arena.busybox(), "true"]))
}

/// Beside programs that make namespaces, and beside nothing at all.
pub(super) fn light(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let bwrap = || {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--unshare-user", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
        command.args(["--tmpfs", "/tmp", "--new-session", "--die-with-parent", arena.busybox(), "true"]);
        succeed(&mut command)
    };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--cgroup"]);
        succeed(command.args(["--mount-proc", arena.busybox(), "true"]))
    };
    let [ours, bwrap, unshare, host] =
        take_turns(effort.times(80), [once(|| kennel(arena)), once(bwrap), once(unshare), once(|| arena.host_true())])?;
    Ok(vec![
        Row::times(WHAT, &ours, "bwrap --unshare-all", &bwrap).at_most(1.0),
        Row::times(WHAT, &ours, "unshare, all namespaces", &unshare),
        Row::times(WHAT, &ours, "spawn on the host", &host),
    ])
}

/// Beside those that make containers. They are slow, and take fewer turns.
pub(super) fn heavy(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let turns = effort.times(20);
    let bundle = bundle(arena)?;
    let runc = || {
        let mut command = Command::new("runc");
        command.arg("--root").arg(arena.path().join("runc")).arg("run").arg("--bundle").arg(&bundle);
        succeed(command.arg(format!("kennel-bench-{}", std::process::id())))
    };
    let Some(docker) = arena.docker() else {
        let [ours, runc] = take_turns(turns, [once(|| kennel(arena)), once(runc)])?;
        return Ok(vec![Row::times(WHAT, &ours, "runc run", &runc)]);
    };
    let docker_run = || succeed(&mut docker.command(&["run", "--rm", "--network", "none", &docker.image, "true"]));
    let [ours, runc, docker_run] = take_turns(turns, [once(|| kennel(arena)), once(runc), once(docker_run)])?;
    Ok(vec![
        Row::times(WHAT, &ours, "runc run", &runc),
        Row::times(WHAT, &ours, "docker run --rm --network none", &docker_run).at_most_one_in(30.0),
    ])
}

/// The program itself, doing nothing.
pub(super) fn help(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let help = || succeed(&mut arena.kennel(&["--help"]));
    let [ours, host] = take_turns(effort.times(80), [once(help), once(|| arena.host_true())])?;
    Ok(vec![Row::times("kennel --help", &ours, "spawn on the host", &host).at_most_more(10.0)])
}

/// With settings, beside the same without any.
pub(super) fn settings(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let project = arena.path().join("project");
    std::fs::create_dir_all(&project).context("make a project")?;
    let text = "[sandbox]\nprovider = \"native\"\nnetwork = \"none\"\nenv = { CI = \"1\" }\ntimeout = \"10m\"\n";
    std::fs::write(project.join("kennel.toml"), text).context("write its settings")?;
    let with = || succeed(arena.kennel(&["run", "--", arena.busybox(), "true"]).current_dir(&project));
    let [ours, without] = take_turns(effort.times(80), [once(with), once(|| kennel(arena))])?;
    Ok(vec![Row::times("kennel run, with a settings file", &ours, "without", &without).at_most_more(1.0)])
}

/// What runc runs: its own defaults, a busybox for a root, and no terminal.
fn bundle(arena: &Arena) -> Result<PathBuf> {
    let dir = arena.path().join("bundle");
    if dir.exists() {
        return Ok(dir);
    }
    std::fs::create_dir_all(dir.join("rootfs/bin")).context("make a bundle for runc")?;
    std::fs::copy(arena.busybox(), dir.join("rootfs/bin/busybox")).context("copy busybox")?;
    succeed(Command::new("runc").arg("spec").arg("--bundle").arg(&dir))?;
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).context("read runc's defaults")?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/bin/busybox", "true"]);
    std::fs::write(&path, serde_json::to_vec(&config)?).context("write runc's settings")?;
    Ok(dir)
}
