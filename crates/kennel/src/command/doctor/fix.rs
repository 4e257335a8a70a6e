//! What gets something that is missing, on which distribution. Here is only decided: nothing is looked at, nothing is
//! run.

use super::host::{Host, Manager, Program};
use serde::Serialize;

/// Something that is not here, or not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// A program that comes in a package.
    Program(Program),
    /// Docker is installed and nobody answers where it listens.
    DockerService,
    /// Podman does not listen.
    PodmanService,
    /// Nobody answers where `DOCKER_HOST` says.
    DockerHost,
    /// Docker's socket is not for this user.
    DockerGroup { user: String },
    /// The kernel does not know overlay yet.
    OverlayModule,
    /// The user has no ids but their own; so many from `first` on are nobody's.
    SubordinateIds { user: String, first: u32 },
    /// A setting of the kernel, `name=value`, that someone has made otherwise.
    Setting(&'static str),
    /// Control groups are not this user's to divide.
    Delegation,
    /// What no command of ours gets: what to do, in a line.
    Other(String),
}

/// How many subordinate ids a user gets: what the tools of all distributions give.
pub(super) const SUBORDINATE_IDS: u32 = 65_536;

/// Hands the user's own part of the control groups over. It counts from the next login on.
const DELEGATE: &str = "sudo mkdir -p /etc/systemd/system/user@.service.d \
    && printf '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf \
    && sudo systemctl daemon-reload";

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A command that `--fix` runs, after asking.
    Run(Vec<String>),
    /// A line for a person: what a program should not do by itself.
    Show(String),
}

impl Step {
    /// As it is typed.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Run(command) => command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
            Self::Show(line) => line.clone(),
        }
    }
}

/// What to type about one finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    /// One line.
    pub(super) command: String,
    /// Whether `--fix` runs all of it.
    pub(super) automatic: bool,
}

impl Fix {
    /// The line for these; none if nothing is missing.
    pub(super) fn of(lacks: &[Lack], host: &Host) -> Option<Self> {
        let mut steps = steps(lacks, host);
        // Nothing goes on after what only a person can do.
        if let Some(at) = steps.iter().position(|step| matches!(step, Step::Show(_))) {
            steps.truncate(at + 1);
        }
        let automatic = steps.iter().all(|step| matches!(step, Step::Run(_)));
        let lines: Vec<String> = steps.iter().map(Step::line).collect();
        (!lines.is_empty()).then(|| Self { command: lines.join(" && "), automatic })
    }
}

/// What gets all of these here, in order: packages first, and all at once.
pub(super) fn steps(lacks: &[Lack], host: &Host) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut packages = Vec::new();
    for lack in lacks {
        if let Lack::Program(program) = lack
            && let Some(package) = host.package(*program)
            && !packages.contains(&package)
        {
            packages.push(package);
        }
    }
    if let (Some(manager), false) = (host.manager, packages.is_empty()) {
        steps.extend(install(manager, &packages).into_iter().map(|command| run(&command, host)));
    }
    for lack in lacks {
        let step = step(lack, host);
        if let Some(step) = step.filter(|step| !steps.contains(step)) {
            steps.push(step);
        }
    }
    steps
}

fn install<'a>(manager: Manager, packages: &[&'a str]) -> Vec<Vec<&'a str>> {
    let command: &[&[&str]] = match manager {
        Manager::Apt { lists: true } => &[&["apt-get", "install", "-y"]],
        // A fresh image has no list of what there is.
        Manager::Apt { lists: false } => &[&["apt-get", "update"], &["apt-get", "install", "-y"]],
        Manager::Dnf { .. } => &[&["dnf", "install", "-y"]],
        Manager::Pacman => &[&["pacman", "-S", "--needed", "--noconfirm"]],
    };
    let mut commands: Vec<Vec<&str>> = command.iter().map(|words| words.to_vec()).collect();
    commands.last_mut().expect("every manager has a command").extend(packages);
    commands
}

/// What gets one of them, where that is not a package.
fn step(lack: &Lack, host: &Host) -> Option<Step> {
    let sudo = if host.root { "" } else { "sudo " };
    let show = |line: String| Some(Step::Show(line));
    match lack {
        Lack::Program(program) if host.package(*program).is_some() => None,
        Lack::Program(program) => show(program.by_hand().to_owned()),
        Lack::DockerService if host.systemd => Some(run(&["systemctl", "start", "docker"], host)),
        // There is nobody to start it for good.
        Lack::DockerService => show(format!("{sudo}sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'")),
        Lack::PodmanService if host.systemd && host.root => Some(run(&["systemctl", "start", "podman.socket"], host)),
        Lack::PodmanService if host.systemd => {
            Some(Step::Run(["systemctl", "--user", "start", "podman.socket"].map(ToOwned::to_owned).into()))
        }
        Lack::PodmanService => show("mkdir -p /run/podman && podman system service --time 0 &".into()),
        Lack::DockerHost => show("unset DOCKER_HOST".into()),
        // Whoever is in that group is root by another name.
        Lack::DockerGroup { user } => show(format!("{sudo}usermod -aG docker {} && newgrp docker", quoted(user))),
        Lack::OverlayModule => Some(run(&["modprobe", "overlay"], host)),
        Lack::SubordinateIds { user, first } => {
            let range = format!("{first}-{}", first + (SUBORDINATE_IDS - 1));
            Some(run(&["usermod", "--add-subuids", &range, "--add-subgids", &range, user], host))
        }
        // Somebody has made it so, for the whole machine.
        Lack::Setting(setting) => show(format!("{sudo}sysctl -w {setting}")),
        Lack::Delegation if host.root => show("mount -o remount,rw /sys/fs/cgroup".into()),
        Lack::Delegation if host.systemd => show(DELEGATE.into()),
        Lack::Delegation => show("run as root: without systemd, cgroups are not delegated to users".into()),
        Lack::Other(line) => show(line.clone()),
    }
}

/// A command that needs root, as this user would type it.
fn run(command: &[&str], host: &Host) -> Step {
    let sudo: &[&str] = if host.root { &[] } else { &["sudo"] };
    Step::Run(sudo.iter().chain(command).map(ToString::to_string).collect())
}

/// A word as a shell takes it for one.
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

    /// What is to be done, one a line; what is only shown has a `#` before it.
    fn told(lacks: &[Lack], host: &Host) -> Vec<String> {
        let mark = |step: &Step| if matches!(step, Step::Run(_)) { "" } else { "# " };
        steps(lacks, host).iter().map(|step| format!("{}{}", mark(step), step.line())).collect()
    }

    #[test]
    fn packages_are_installed_at_once_and_first() {
        let lacks = [
            Lack::OverlayModule,
            Lack::Program(Program::Pasta),
            Lack::Program(Program::Newuidmap),
            Lack::Program(Program::Pasta),
        ];
        assert_eq!(told(&lacks, &DEBIAN), ["sudo apt-get install -y passt uidmap", "sudo modprobe overlay"]);
        let fresh = Host { manager: Some(Manager::Apt { lists: false }), root: true, ..DEBIAN };
        assert_eq!(told(&lacks, &fresh), ["apt-get update", "apt-get install -y passt uidmap", "modprobe overlay"]);
        let fedora = Host { manager: Some(Manager::Dnf { fedora: true }), ..DEBIAN };
        assert_eq!(told(&lacks[1..], &fedora), ["sudo dnf install -y passt shadow-utils"]);
        let arch = Host { manager: Some(Manager::Pacman), ..DEBIAN };
        assert_eq!(told(&lacks[1..], &arch), ["sudo pacman -S --needed --noconfirm passt shadow"]);
        let other = Host { manager: None, ..DEBIAN };
        assert_eq!(told(&lacks[..2], &other), ["sudo modprobe overlay", "# install passt: https://passt.top"]);
        assert_eq!(told(&[], &DEBIAN), [""; 0]);
    }

    #[test]
    fn docker_is_installed_and_started_where_something_starts_services() {
        let lacks = [Lack::Program(Program::Docker), Lack::DockerService];
        let started = ["sudo apt-get install -y docker.io", "sudo systemctl start docker"];
        assert_eq!(told(&lacks, &DEBIAN), started);
        assert_eq!(Fix::of(&lacks, &DEBIAN), Some(Fix { command: started.join(" && "), automatic: true }));
        let bare = Host { systemd: false, root: true, ..DEBIAN };
        let by_hand = "sh -c 'dockerd >/var/log/dockerd.log 2>&1 &'";
        assert_eq!(told(&lacks, &bare), ["apt-get install -y docker.io".into(), format!("# {by_hand}")]);
        let command = format!("apt-get install -y docker.io && {by_hand}");
        assert_eq!(Fix::of(&lacks, &bare), Some(Fix { command, automatic: false }));
        // What it is called there is not known: nothing can be started after it either.
        let rocky = Host { manager: Some(Manager::Dnf { fedora: false }), ..DEBIAN };
        let fix = Fix::of(&lacks, &rocky).unwrap();
        assert_eq!((&*fix.command, fix.automatic), (Program::Docker.by_hand(), false));
        assert_eq!(told(&lacks[1..], &DEBIAN), ["sudo systemctl start docker"]);
    }

    #[test]
    fn what_a_program_should_not_do_by_itself_is_only_shown() {
        let user = || "ann".to_owned();
        let shown = [
            Lack::DockerGroup { user: user() },
            Lack::DockerHost,
            Lack::Setting("user.max_user_namespaces=15000"),
            Lack::Delegation,
            Lack::Other("boot a newer kernel".into()),
        ];
        let lines = told(&shown, &DEBIAN);
        assert!(lines.iter().all(|line| line.starts_with("# ")), "{lines:?}");
        assert_eq!(lines[0], "# sudo usermod -aG docker ann && newgrp docker");
        assert_eq!(lines[2], "# sudo sysctl -w user.max_user_namespaces=15000");
        let root = Host { root: true, ..DEBIAN };
        assert!(!told(&shown, &root).iter().any(|line| line.contains("sudo")));
        let ids = Lack::SubordinateIds { user: user(), first: 200_000 };
        let range = "200000-265535";
        assert_eq!(told(&[ids], &DEBIAN), [format!("sudo usermod --add-subuids {range} --add-subgids {range} ann")]);
    }

    #[test]
    fn a_line_can_be_pasted() {
        let odd = Lack::SubordinateIds { user: "ann; rm -rf 'x'".into(), first: 200_000 };
        assert!(told(&[odd], &DEBIAN)[0].ends_with(r" 'ann; rm -rf '\''x'\'''"));
        assert!(
            told(&[Lack::Delegation], &DEBIAN)[0]
                .contains(r"printf '[Service]\nDelegate=cpu memory pids\n' | sudo tee")
        );
    }
}
