//! Measures a cold `kennel run`, which creates, uses and removes a sandbox, compared with similar tools.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{once, succeed, take_turns};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

const WHAT: &str = "kennel run --network none -- true (native)";

fn kennel(environment: &BenchEnvironment) -> Result<()> {
    kennel_with(environment, &["--network", "none"])
}

fn kennel_with(environment: &BenchEnvironment, options: &[&str]) -> Result<()> {
    let program = ["--", environment.busybox(), "true"];
    succeed(&mut environment.kennel(&[&["--provider", "native", "run"], options, &program].concat()))
}

fn bwrap(environment: &BenchEnvironment) -> Result<()> {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--unshare-user", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
    command.args(["--tmpfs", "/tmp", "--new-session", "--die-with-parent", environment.busybox(), "true"]);
    succeed(&mut command)
}

/// Compares `kennel run` with programs that create namespaces, and with a plain process.
pub(super) fn light(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--cgroup"]);
        succeed(command.args(["--mount-proc", environment.busybox(), "true"]))
    };
    let [ours, bwrap, unshare, host] = take_turns(
        effort.times(80),
        [once(|| kennel(environment)), once(|| bwrap(environment)), once(unshare), once(|| environment.host_true())],
    )?;
    Ok(vec![
        Row::times(WHAT, &ours, "bwrap --unshare-all", &bwrap).at_most(1.0),
        Row::times(WHAT, &ours, "unshare, all namespaces", &unshare),
        Row::times(WHAT, &ours, "spawn on the host", &host),
    ])
}

/// Compares `kennel run` with the network `bridge` and with the network `none`.
pub(super) fn bridge(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    environment.with_internet(|environment| {
        let bridge = || kennel_with(environment, &["--network", "bridge"]);
        let [bridge, none] = take_turns(effort.times(80), [once(bridge), once(|| kennel(environment))])?;
        let what = "kennel run --network bridge -- true (native)";
        Ok(vec![Row::times(what, &bridge, "--network none", &none).at_most_more(1.0)])
    })
}

/// Compares `kennel run` of an ordinary user with `bwrap` of that user, without a network and with the default one.
pub(super) fn user(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    environment.as_user(|environment| {
        let default = || kennel_with(environment, &[]);
        let [none, default, bwrap, host] = take_turns(
            effort.times(80),
            [
                once(|| kennel(environment)),
                once(default),
                once(|| bwrap(environment)),
                once(|| environment.host_true()),
            ],
        )?;
        let (who, baseline) = (environment.who(), "bwrap --unshare-all");
        let what = format!("kennel run --network none -- true ({who})");
        Ok(vec![
            Row::times(&what, &none, baseline, &bwrap),
            Row::times(&what, &none, "spawn on the host", &host),
            Row::times(&format!("kennel run -- true ({who})"), &default, baseline, &bwrap),
        ])
    })
}

/// Compares `kennel run` with programs that create containers. They are slow, so fewer samples are taken.
pub(super) fn heavy(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let turns = effort.times(20);
    let bundle = bundle(environment)?;
    let runc = || {
        let mut command = Command::new("runc");
        command.arg("--root").arg(environment.path().join("runc")).arg("run").arg("--bundle").arg(&bundle);
        succeed(command.arg(format!("kennel-bench-{}", std::process::id())))
    };
    let Some(docker) = environment.docker() else {
        let [ours, runc] = take_turns(turns, [once(|| kennel(environment)), once(runc)])?;
        return Ok(vec![Row::times(WHAT, &ours, "runc run", &runc)]);
    };
    let docker_run = || succeed(&mut docker.command(&["run", "--rm", "--network", "none", &docker.image, "true"]));
    let [ours, runc, docker_run] = take_turns(turns, [once(|| kennel(environment)), once(runc), once(docker_run)])?;
    Ok(vec![
        Row::times(WHAT, &ours, "runc run", &runc),
        Row::times(WHAT, &ours, "docker run --rm --network none", &docker_run).at_most_one_in(30.0),
    ])
}

/// Measures the start of the program itself.
pub(super) fn help(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let help = || succeed(&mut environment.kennel(&["--help"]));
    let [ours, host] = take_turns(effort.times(80), [once(help), once(|| environment.host_true())])?;
    Ok(vec![Row::times("kennel --help", &ours, "spawn on the host", &host).at_most_more(10.0)])
}

/// Compares `kennel run` with settings files and without them.
pub(super) fn settings(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let project = environment.path().join("project");
    std::fs::create_dir_all(&project).context("make a project")?;
    let text = "[sandbox]\nprovider = \"native\"\nnetwork = \"none\"\nenv = { CI = \"1\" }\ntimeout = \"10m\"\n";
    std::fs::write(project.join("kennel.toml"), text).context("write its settings")?;
    let with = || succeed(environment.kennel(&["run", "--", environment.busybox(), "true"]).current_dir(&project));
    let [ours, without] = take_turns(effort.times(80), [once(with), once(|| kennel(environment))])?;
    Ok(vec![Row::times("kennel run, with a settings file", &ours, "without", &without).at_most_more(1.0)])
}

/// Creates an OCI bundle for runc: its default settings, busybox as the root filesystem, and no terminal.
fn bundle(environment: &BenchEnvironment) -> Result<PathBuf> {
    let dir = environment.path().join("bundle");
    if dir.exists() {
        return Ok(dir);
    }
    std::fs::create_dir_all(dir.join("rootfs/bin")).context("make a bundle for runc")?;
    std::fs::copy(environment.busybox(), dir.join("rootfs/bin/busybox")).context("copy busybox")?;
    succeed(Command::new("runc").arg("spec").arg("--bundle").arg(&dir))?;
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).context("read runc's defaults")?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/bin/busybox", "true"]);
    std::fs::write(&path, serde_json::to_vec(&config)?).context("write runc's settings")?;
    Ok(dir)
}
