//! The machine on which a task runs. Finds what is missing, and installs it if the task may do so.

use crate::stage::cargo;
use anyhow::{Context, Result, bail};
use kennel_testkit::{acp, bun, python};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program and the Debian package that contains it.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    program: &'static str,
    name: &'static str,
}

pub(crate) const fn package(program: &'static str, name: &'static str) -> Package {
    Package { program, name }
}

/// The packages that the tests need.
pub(crate) const FOR_TESTS: &[Package] = &[
    package("dockerd", "docker.io"),
    package("docker", "docker.io"),
    package("iptables", "iptables"),
    package("nft", "nftables"),
    package("ip", "iproute2"),
    package("pasta", "passt"),
    package("busybox", "busybox-static"),
    package("docker-registry", "docker-registry"),
    package("newuidmap", "uidmap"),
    package("podman", "podman"),
    package("conmon", "conmon"),
    package("runc", "runc"),
    package("slirp4netns", "slirp4netns"),
    package("rootlesskit", "rootlesskit"),
    // The program is not in PATH, but in a directory that Podman searches.
    package("../lib/podman/netavark", "netavark"),
    // Makes a system call slow.
    package("strace", "strace"),
    // For tests that run a real project's tests and real git in a sandbox.
    package("git", "git"),
    package("bwrap", "bubblewrap"),
    package("ssh-agent", "openssh-client"),
    package("python3", "python3"),
    package("../lib/python3.11/test/test_json/__init__.py", "libpython3.11-testsuite"),
];

/// The packages of the programs that Kennel is compared with.
pub(crate) const FOR_BENCH: &[Package] = &[
    package("bwrap", "bubblewrap"),
    package("runc", "runc"),
    package("socat", "socat"),
    package("unshare", "util-linux"),
];

/// The machine, and what was skipped on it.
pub(crate) struct Machine {
    pub(crate) root: bool,
    debian: bool,
    ci: bool,
    left_out: Vec<String>,
}

impl Machine {
    /// Returns the current machine.
    pub(crate) fn here() -> Self {
        Self {
            root: rustix::process::geteuid().is_root(),
            debian: Path::new("/etc/debian_version").exists(),
            ci: kennel_testkit::environment::variable("CI")
                .is_some_and(|value| !value.is_empty() && value != "false" && value != "0"),
            left_out: Vec::new(),
        }
    }

    /// Reports that something is skipped. In CI it is a failure.
    pub(crate) fn leave_out(&mut self, what: &str, why: &str) -> Result<()> {
        if self.ci {
            bail!("{what} cannot be left out in CI: {why}");
        }
        eprintln!("\n!!! LEFT OUT: {what}\n!!! because {why}\n");
        self.left_out.push(format!("{what} ({why})"));
        Ok(())
    }

    /// Returns everything that was skipped, for the summary.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Installs the packages whose programs are missing, as root on Debian. Otherwise reports what to install.
    pub(crate) fn install(&mut self, wanted: &[Package]) -> Result<()> {
        let mut missing: Vec<&str> = wanted.iter().filter(|it| find(it.program).is_none()).map(|it| it.name).collect();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let names = missing.join(" ");
        if !(self.root && self.debian) {
            let why = format!("only root on Debian has packages installed here; missing: {names}");
            return self.leave_out("what needs these programs", &why);
        }
        eprintln!("== installing {names}");
        if !apt(&missing)? {
            // The package lists may be old or missing.
            if !apt_get(&["update"])? || !apt(&missing)? {
                bail!("apt-get could not install {names}");
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Installs npm's `bun` package, with which a test runs a real project's tests.
    pub(crate) fn install_bun(&mut self) -> Result<()> {
        if bun::is_installed() {
            return Ok(());
        }
        self.install(&[package("npm", "npm")])?;
        if find("npm").is_none() {
            return Ok(()); // `install` has reported it
        }
        eprintln!("== installing npm's bun {}", bun::VERSION);
        bun::install().context("install npm's bun package")
    }

    /// Installs ACP agents and clients from npm, with which tests play turns.
    pub(crate) fn install_acp(&mut self) -> Result<()> {
        if acp::is_installed() {
            return Ok(());
        }
        self.install(&[package("npm", "npm")])?;
        if find("npm").is_none() {
            return Ok(()); // `install` has reported it
        }
        eprintln!("== installing ACP agents and clients from npm");
        acp::install().context("install npm's packages for ACP")
    }
}

impl Machine {
    /// Installs the Python packages of the tests with real clients.
    pub(crate) fn install_python(&mut self) -> Result<()> {
        if python::is_installed() {
            return Ok(());
        }
        // The module is not in PATH, but next to a directory that is.
        self.install(&[package("../lib/python3.11/ensurepip/__init__.py", "python3-venv")])?;
        if find("python3").is_none() {
            return Ok(()); // `install` has reported it
        }
        eprintln!(
            "== installing PyPI's websockets {}, agent-client-protocol {}, schemathesis {}",
            python::WEBSOCKETS,
            python::ACP,
            python::SCHEMATHESIS
        );
        python::install().context("install the packages of PyPI")
    }
}

impl Machine {
    /// Creates an ordinary user with subordinate ids, for the tests that run as one.
    pub(crate) fn make_tester(&mut self) -> Result<()> {
        const NAME: &str = "kennel-tester";
        let has = |path: &str| is_named(path, NAME);
        if has("/etc/passwd") && has("/etc/subuid") && has("/etc/subgid") {
            return Ok(());
        }
        if !self.root {
            return self.leave_out("sandboxes of users with ids to give", "only root can make such a user");
        }
        if !has("/etc/passwd") && !works("useradd", &["--system", "--no-create-home", "--user-group", NAME]) {
            bail!("useradd could not make the user {NAME}");
        }
        for (path, flag) in [("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")] {
            if !has(path) && !works("usermod", &[flag, "1000000000-1000065535", NAME]) {
                bail!("usermod could not give {NAME} a range in {path}");
            }
        }
        Ok(())
    }

    /// Gives root's Podman a range of ids for user namespaces, under the user name that it looks for. This user need
    /// not exist.
    pub(crate) fn give_ids_to_podman(&mut self) -> Result<()> {
        const NAME: &str = "containers";
        for path in ["/etc/subuid", "/etc/subgid"] {
            if is_named(path, NAME) {
                continue;
            }
            if !self.root {
                return self.leave_out("user namespaces of root's Podman", "only root can give it ids");
            }
            let mut text = std::fs::read_to_string(path).unwrap_or_default();
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.extend([NAME, ":1100000000:16777216\n"]);
            std::fs::write(path, text).with_context(|| format!("give {NAME} a range in {path}"))?;
        }
        Ok(())
    }
}

/// Whether a file such as `/etc/subuid` has a line for this name.
fn is_named(path: &str, name: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().any(|line| line.split(':').next() == Some(name))
}

impl Machine {
    /// Lets ordinary users open `/dev/net/tun`, as on most machines, because their sandboxes' network needs it.
    pub(crate) fn open_tunnels(&mut self) -> Result<()> {
        const TUN: &str = "/dev/net/tun";
        let mode = std::fs::metadata(TUN).map(|found| found.permissions().mode() & 0o666);
        if mode.is_ok_and(|mode| mode == 0o666) {
            return Ok(());
        }
        if !self.root || std::fs::set_permissions(TUN, PermissionsExt::from_mode(0o666)).is_err() {
            return self.leave_out(
                "networks of ordinary users",
                "they may not open /dev/net/tun, and only root can change that",
            );
        }
        Ok(())
    }
}

/// Finds a program in `PATH` or in the directories of root's programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = kennel_testkit::environment::variable("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(usual);
    places.find_map(|dir| Some(dir.join(program)).filter(|path| path.is_file()))
}

/// Whether a program with these arguments can be run and succeeds.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds and installs a cargo subcommand if it is missing. The first time, this takes minutes.
pub(crate) fn install_tool(subcommand: &str, package: &str) -> Result<()> {
    if works("cargo", &[subcommand, "--version"]) {
        return Ok(());
    }
    eprintln!("== installing {package}");
    if !cargo(&["install", "--locked", package]).status().context("run cargo")?.success() {
        bail!("cargo could not install {package}");
    }
    Ok(())
}

fn apt(packages: &[&str]) -> Result<bool> {
    apt_get(&[&["install", "--yes", "--quiet", "--no-install-recommends"], packages].concat())
}

pub(crate) fn apt_get(arguments: &[&str]) -> Result<bool> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    Ok(command.status().context("run apt-get")?.success())
}
