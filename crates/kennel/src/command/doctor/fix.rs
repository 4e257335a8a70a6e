//! Decides which commands fix what is missing, depending on the distribution. This module only decides: it checks
//! nothing and runs nothing.

use super::host::{Host, Manager, Program};
use serde::Serialize;

/// Something that is missing or wrong on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A program that comes in a package.
    Program(Program),
    /// Docker is installed, but its engine does not respond.
    DockerService,
    /// Podman's service does not run.
    PodmanService,
    /// No engine responds at `DOCKER_HOST`.
    DockerHost,
    /// The user has no access to Docker's socket.
    DockerGroup { user: String },
    /// The kernel module for overlay filesystems is not loaded.
    OverlayModule,
    /// The user has no subordinate ids. A free range starts at `first`.
    SubordinateIds { user: String, first: u32 },
    /// A kernel setting that must be changed, as `name=value`.
    Setting(&'static str),
    /// No cgroup controllers are delegated to the user.
    Delegation,
    /// Anything that Kennel has no command for, with a line that says what to do.
    Other(String),
}

/// The number of subordinate ids that a user gets, as by the tools of all distributions.
pub(super) const SUBORDINATE_IDS: u32 = 65_536;

/// Delegates cgroup controllers to users. It takes effect at the next login.
const DELEGATE: &str = "sudo mkdir -p /etc/systemd/system/user@.service.d \
    && printf '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf \
    && sudo systemctl daemon-reload";

/// One step of a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A command that `--fix` runs, after asking.
    Run(Vec<String>),
    /// A line for the user to run, because a program should not do this on its own.
    Show(String),
}

impl Step {
    /// Returns the step as the user would type it.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Run(command) => command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
            Self::Show(line) => line.clone(),
        }
    }
}

/// The fix for one finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    /// The commands, joined to one line.
    pub(super) command: String,
    /// Whether `--fix` runs the whole line.
    pub(super) automatic: bool,
}

impl Fix {
    /// Returns the fix for what is missing, or `None` if nothing is missing.
    pub(super) fn for_problems(problems: &[Problem], host: &Host) -> Option<Self> {
        let mut steps = steps(problems, host);
        // The line ends with the first step that only the user can take.
        if let Some(at) = steps.iter().position(|step| matches!(step, Step::Show(_))) {
            steps.truncate(at + 1);
        }
        let automatic = steps.iter().all(|step| matches!(step, Step::Run(_)));
        let lines: Vec<String> = steps.iter().map(Step::line).collect();
        (!lines.is_empty()).then(|| Self { command: lines.join(" && "), automatic })
    }
}

/// Returns the steps that fix everything, in order. The first one installs all packages.
pub(super) fn steps(problems: &[Problem], host: &Host) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut packages = Vec::new();
    for problem in problems {
        if let Problem::Program(program) = problem
            && let Some(package) = host.package(*program)
            && !packages.contains(&package)
        {
            packages.push(package);
        }
    }
    if let (Some(manager), false) = (host.manager, packages.is_empty()) {
        steps.extend(install(manager, &packages).into_iter().map(|command| run(&command, host)));
    }
    for problem in problems {
        let step = step(problem, host);
        if let Some(step) = step.filter(|step| !steps.contains(step)) {
            steps.push(step);
        }
    }
    steps
}

fn install<'a>(manager: Manager, packages: &[&'a str]) -> Vec<Vec<&'a str>> {
    let command: &[&[&str]] = match manager {
        Manager::Apt { lists: true } => &[&["apt-get", "install", "-y"]],
        // A fresh image has no package lists.
        Manager::Apt { lists: false } => &[&["apt-get", "update"], &["apt-get", "install", "-y"]],
        Manager::Dnf { .. } => &[&["dnf", "install", "-y"]],
        Manager::Pacman => &[&["pacman", "-S", "--needed", "--noconfirm"]],
    };
    let mut commands: Vec<Vec<&str>> = command.iter().map(|words| words.to_vec()).collect();
    commands.last_mut().expect("every manager has a command").extend(packages);
    commands
}

/// Returns the step that fixes one thing, unless it is a package.
fn step(problem: &Problem, host: &Host) -> Option<Step> {
    let sudo = if host.root { "" } else { "sudo " };
    let show = |line: String| Some(Step::Show(line));
    match problem {
        Problem::Program(program) if host.package(*program).is_some() => None,
        Problem::Program(program) => show(program.by_hand().to_owned()),
        Problem::DockerService if host.systemd => Some(run(&["systemctl", "start", "docker"], host)),
        // Without systemd, Kennel cannot start it as a service.
        Problem::DockerService => show(format!("{sudo}sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'")),
        Problem::PodmanService if host.systemd && host.root => {
            Some(run(&["systemctl", "start", "podman.socket"], host))
        }
        Problem::PodmanService if host.systemd => {
            Some(Step::Run(["systemctl", "--user", "start", "podman.socket"].map(ToOwned::to_owned).into()))
        }
        Problem::PodmanService => show("mkdir -p /run/podman && podman system service --time 0 &".into()),
        Problem::DockerHost => show("unset DOCKER_HOST".into()),
        // Members of this group are effectively root.
        Problem::DockerGroup { user } => show(format!("{sudo}usermod -aG docker {} && newgrp docker", quoted(user))),
        Problem::OverlayModule => Some(run(&["modprobe", "overlay"], host)),
        Problem::SubordinateIds { user, first } => {
            let range = format!("{first}-{}", first + (SUBORDINATE_IDS - 1));
            Some(run(&["usermod", "--add-subuids", &range, "--add-subgids", &range, user], host))
        }
        // An administrator may have chosen this setting, and it applies to the whole machine.
        Problem::Setting(setting) => show(format!("{sudo}sysctl -w {setting}")),
        Problem::Delegation if host.root => show("mount -o remount,rw /sys/fs/cgroup".into()),
        Problem::Delegation if host.systemd => show(DELEGATE.into()),
        Problem::Delegation => show("run as root: without systemd, cgroups are not delegated to users".into()),
        Problem::Other(line) => show(line.clone()),
    }
}

/// Returns a step that runs a command as root, with `sudo` if necessary.
fn run(command: &[&str], host: &Host) -> Step {
    let sudo: &[&str] = if host.root { &[] } else { &["sudo"] };
    Step::Run(sudo.iter().chain(command).map(ToString::to_string).collect())
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: Host = Host { manager: Some(Manager::Apt { lists: true }), root: false, systemd: true };

    /// Returns the steps, one per line. Those that are only shown start with `#`.
    fn told(problems: &[Problem], host: &Host) -> Vec<String> {
        let mark = |step: &Step| if matches!(step, Step::Run(_)) { "" } else { "# " };
        steps(problems, host).iter().map(|step| format!("{}{}", mark(step), step.line())).collect()
    }

    #[test]
    fn packages_are_installed_first_and_with_one_command() {
        let problems = [
            Problem::OverlayModule,
            Problem::Program(Program::Pasta),
            Problem::Program(Program::Newuidmap),
            Problem::Program(Program::Pasta),
        ];
        assert_eq!(told(&problems, &DEBIAN), ["sudo apt-get install -y passt uidmap", "sudo modprobe overlay"]);
        let fresh = Host { manager: Some(Manager::Apt { lists: false }), root: true, ..DEBIAN };
        assert_eq!(told(&problems, &fresh), ["apt-get update", "apt-get install -y passt uidmap", "modprobe overlay"]);
        let fedora = Host { manager: Some(Manager::Dnf { fedora: true }), ..DEBIAN };
        assert_eq!(told(&problems[1..], &fedora), ["sudo dnf install -y passt shadow-utils"]);
        let arch = Host { manager: Some(Manager::Pacman), ..DEBIAN };
        assert_eq!(told(&problems[1..], &arch), ["sudo pacman -S --needed --noconfirm passt shadow"]);
        let other = Host { manager: None, ..DEBIAN };
        assert_eq!(told(&problems[..2], &other), ["sudo modprobe overlay", "# install passt: https://passt.top"]);
        assert_eq!(told(&[], &DEBIAN), [""; 0]);
    }

    #[test]
    fn docker_is_started_if_there_is_a_service_manager() {
        let problems = [Problem::Program(Program::Docker), Problem::DockerService];
        let started = ["sudo apt-get install -y docker.io", "sudo systemctl start docker"];
        assert_eq!(told(&problems, &DEBIAN), started);
        assert_eq!(Fix::for_problems(&problems, &DEBIAN), Some(Fix { command: started.join(" && "), automatic: true }));
        let bare = Host { systemd: false, root: true, ..DEBIAN };
        let by_hand = "sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'";
        assert_eq!(told(&problems, &bare), ["apt-get install -y docker.io".into(), format!("# {by_hand}")]);
        let command = format!("apt-get install -y docker.io && {by_hand}");
        assert_eq!(Fix::for_problems(&problems, &bare), Some(Fix { command, automatic: false }));
        // The name of Docker's package is not known there, so no service can be started afterwards.
        let rocky = Host { manager: Some(Manager::Dnf { fedora: false }), ..DEBIAN };
        let fix = Fix::for_problems(&problems, &rocky).unwrap();
        assert_eq!((&*fix.command, fix.automatic), (Program::Docker.by_hand(), false));
        assert_eq!(told(&problems[1..], &DEBIAN), ["sudo systemctl start docker"]);
    }

    #[test]
    fn risky_fixes_are_only_shown() {
        let user = || "ann".to_owned();
        let shown = [
            Problem::DockerGroup { user: user() },
            Problem::DockerHost,
            Problem::Setting("user.max_user_namespaces=15000"),
            Problem::Delegation,
            Problem::Other("boot a newer kernel".into()),
        ];
        let lines = told(&shown, &DEBIAN);
        assert!(lines.iter().all(|line| line.starts_with("# ")), "{lines:?}");
        assert_eq!(lines[0], "# sudo usermod -aG docker ann && newgrp docker");
        assert_eq!(lines[2], "# sudo sysctl -w user.max_user_namespaces=15000");
        let root = Host { root: true, ..DEBIAN };
        assert!(!told(&shown, &root).iter().any(|line| line.contains("sudo")));
        let ids = Problem::SubordinateIds { user: user(), first: 200_000 };
        let range = "200000-265535";
        assert_eq!(told(&[ids], &DEBIAN), [format!("sudo usermod --add-subuids {range} --add-subgids {range} ann")]);
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let odd = Problem::SubordinateIds { user: "ann; rm -rf 'x'".into(), first: 200_000 };
        assert!(told(&[odd], &DEBIAN)[0].ends_with(r" 'ann; rm -rf '\''x'\'''"));
        assert!(
            told(&[Problem::Delegation], &DEBIAN)[0]
                .contains(r"printf '[Service]\nDelegate=cpu memory pids\n' | sudo tee")
        );
    }
}
