//! Checks what this machine's kernel and programs support: by reading files and, if that is not enough, by trying.

use super::fix::{Fix, Problem, SUBORDINATE_IDS};
use super::host::{Host, Program, user};
use kennel_engine::Engine;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckResult {
    Ok,
    Missing,
    NotNeeded,
}

/// A check of something that native sandboxes need or can make use of.
#[derive(Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: CheckResult,
    /// What the check found.
    pub(super) detail: String,
    /// The command that fixes the problem.
    pub(super) fix: Option<Fix>,
    #[serde(skip)]
    pub(super) problems: Vec<Problem>,
}

pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Check {
    Check { name, state: CheckResult::Ok, detail: detail.into(), fix: None, problems: Vec::new() }
}

pub(super) fn not_needed(name: &'static str, detail: impl Into<String>) -> Check {
    Check { state: CheckResult::NotNeeded, ..ok(name, detail) }
}

pub(super) fn missing(name: &'static str, detail: impl Into<String>, problem: Option<Problem>) -> Check {
    Check { state: CheckResult::Missing, problems: problem.into_iter().collect(), ..ok(name, detail) }
}

/// Runs all checks.
pub(super) fn checks(engine: &Engine, host: &Host) -> Vec<Check> {
    let (namespaces, landlock) = tried(engine);
    let mut checks = vec![kernel(), namespaces, control_groups(Path::new("/sys/fs/cgroup"), host), overlay(), landlock];
    checks.extend([super::network::check(host), pasta(host), newuidmap(host), subordinate_ids(host)]);
    for check in &mut checks {
        check.fix = Fix::for_problems(&check.problems, host);
    }
    checks
}

fn kernel() -> Check {
    const NAME: &str = "kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let detail = format!("Linux {release} on {}", uname.machine().to_string_lossy());
    // This version is the first with idmapped mounts of overlay layers.
    if version >= (5, 19) {
        return ok(NAME, detail);
    }
    missing(NAME, detail, Some(Problem::Other("native needs Linux 5.19 or later: boot a newer kernel".into())))
}

/// Checks user namespaces and Landlock by trying them, because a kernel that supports them may refuse them to this
/// user.
fn tried(engine: &Engine) -> (Check, Check) {
    const NAMESPACES: &str = "user namespaces";
    const LANDLOCK: &str = "landlock";
    let support = match engine.probe_kernel() {
        Ok(support) => support,
        Err(error) => {
            let untried = |name| missing(name, format!("could not be tested: {error}"), None);
            return (untried(NAMESPACES), untried(LANDLOCK));
        }
    };
    let namespaces = match support.user_namespace {
        Ok(()) => ok(NAMESPACES, "one was created and used"),
        Err(why) => missing(NAMESPACES, format!("refused: {why}"), Some(refusal(Path::new("/proc/sys")))),
    };
    let landlock = match support.landlock {
        Ok(version) => ok(LANDLOCK, format!("ABI {version}")),
        Err(why) => not_needed(LANDLOCK, format!("{why}; used where available, never required")),
    };
    (namespaces, landlock)
}

/// Returns the known kernel setting that refuses user namespaces, if one does.
fn refusal(settings: &Path) -> Problem {
    let known = [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ];
    let is = |path: &str, value: &str| fs::read_to_string(settings.join(path)).is_ok_and(|text| text.trim() == value);
    let found = known.into_iter().find(|(path, value, _)| is(path, value));
    found.map_or_else(
        || Problem::Other("boot a kernel with CONFIG_USER_NS=y; in a container, start it with more privileges".into()),
        |(_, _, setting)| Problem::Setting(setting),
    )
}

/// Checks the cgroup version, and whether this user can create cgroups with limits.
fn control_groups(mount: &Path, host: &Host) -> Check {
    const NAME: &str = "cgroups";
    const WANTED: [&str; 3] = ["cpu", "memory", "pids"];
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unified = mount.join("cgroup.controllers");
    if let Ok(all) = fs::read_to_string(&unified) {
        // Root creates cgroups at the top of the hierarchy, an ordinary user below the current cgroup.
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_start_matches('/');
        let dir = if host.root { mount.to_owned() } else { mount.join(own) };
        let given = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or(all);
        let given: Vec<&str> = given.split_whitespace().collect();
        let writable = access(&dir, Access::WRITE_OK).is_ok();
        let without: Vec<&str> = WANTED.into_iter().filter(|name| !given.contains(name)).collect();
        return match (writable, without.is_empty()) {
            (true, true) => ok(NAME, format!("version 2, writable, with {}", given.join(" "))),
            (true, false) => {
                missing(NAME, format!("version 2, without {}", without.join(", ")), Some(Problem::Delegation))
            }
            (false, _) => missing(NAME, "version 2, not writable: limits are refused", Some(Problem::Delegation)),
        };
    }
    let unified = || Some(Problem::Other("boot with systemd.unified_cgroup_hierarchy=1".into()));
    let without: Vec<&str> = WANTED.into_iter().filter(|name| !mount.join(name).is_dir()).collect();
    if !without.is_empty() {
        return missing(NAME, format!("version 1, without {}", without.join(", ")), unified());
    }
    let writable = WANTED.iter().all(|name| access(mount.join(name), Access::WRITE_OK).is_ok());
    match (writable, host.root) {
        (true, _) => ok(NAME, "version 1, writable, with cpu memory pids"),
        (false, true) => missing(NAME, "version 1, read-only: limits are refused", Some(Problem::Delegation)),
        (false, false) => missing(NAME, "version 1, not writable: limits are refused", unified()),
    }
}

fn overlay() -> Check {
    const NAME: &str = "overlay";
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().last() == Some(NAME)) {
        ok(NAME, "supported by the kernel")
    } else {
        missing(NAME, "not listed in /proc/filesystems", Some(Problem::OverlayModule))
    }
}

fn pasta(host: &Host) -> Check {
    const WITHOUT: &str = "no network for sandboxes of ordinary users";
    program("pasta", Program::Pasta, WITHOUT, host)
}

fn newuidmap(host: &Host) -> Check {
    const WITHOUT: &str = "only one user id inside";
    program("newuidmap", Program::Newuidmap, WITHOUT, host)
}

/// Checks for a program that only ordinary users need.
fn program(name: &'static str, program: Program, without: &str, host: &Host) -> Check {
    match program.find() {
        Some(path) => ok(name, path.display().to_string()),
        None if host.root => not_needed(name, "not installed; root does not need it"),
        None => missing(name, format!("not installed: {without}"), Some(Problem::Program(program))),
    }
}

fn subordinate_ids(host: &Host) -> Check {
    const NAME: &str = "subordinate ids";
    if host.root {
        return not_needed(NAME, "root does not need them");
    }
    let (user, uid) = (user(), rustix::process::getuid().as_raw());
    let files = ["/etc/subuid", "/etc/subgid"];
    let listed = files.map(|path| fs::read_to_string(path).unwrap_or_default());
    let without: Vec<&str> =
        files.into_iter().zip(&listed).filter(|(_, text)| !lists(text, user.as_deref(), uid)).map(|it| it.0).collect();
    if without.is_empty() {
        return ok(NAME, "in /etc/subuid and /etc/subgid");
    }
    let detail = format!("none in {}: only one user id inside", without.join(" and "));
    let problem = first_free(&listed).map(|first| match user {
        Some(user) => Problem::SubordinateIds { user, first },
        // The user is not in /etc/passwd, and `usermod` changes only users who are.
        None => Problem::Other(format!("echo {uid}:{first}:{SUBORDINATE_IDS} | sudo tee -a {}", without.join(" "))),
    });
    missing(NAME, detail, problem)
}

/// Whether `/etc/subuid` or `/etc/subgid`, of which this is the text, lists a user.
fn lists(text: &str, user: Option<&str>, uid: u32) -> bool {
    let uid = uid.to_string();
    text.lines().filter_map(|line| line.split(':').next()).any(|who| Some(who) == user || who == uid)
}

/// Returns the start of a free range of subordinate ids. Two users must not share ids, because they could then access
/// each other's files.
fn first_free(listed: &[String; 2]) -> Option<u32> {
    // The range must be above the ids that root's sandboxes use.
    const LOWEST: u32 = 200_000;
    let ends = listed.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut parts = line.split(':').skip(1).map(|part| part.trim().parse::<u32>());
        Some(parts.next()?.ok()?.saturating_add(parts.next()?.ok()?))
    });
    let first = ends.max().unwrap_or(0).max(LOWEST);
    first.checked_add(SUBORDINATE_IDS).map(|_| first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::host::Manager;

    fn host(root: bool) -> Host {
        Host { manager: Some(Manager::Pacman), root, systemd: true }
    }

    #[test]
    fn the_kernel_setting_that_refuses_namespaces_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(refusal(dir.path()), Problem::Other(_)));
        for part in ["kernel", "user"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        fs::write(dir.path().join("user/max_user_namespaces"), "63000\n").unwrap();
        assert!(matches!(refusal(dir.path()), Problem::Other(_)));
        fs::write(dir.path().join("kernel/apparmor_restrict_unprivileged_userns"), "1\n").unwrap();
        assert_eq!(refusal(dir.path()), Problem::Setting("kernel.apparmor_restrict_unprivileged_userns=0"));
        fs::write(dir.path().join("user/max_user_namespaces"), "0\n").unwrap();
        assert_eq!(refusal(dir.path()), Problem::Setting("user.max_user_namespaces=15000"));
    }

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let seen = || {
            let check = control_groups(dir.path(), &host(true));
            (check.state, check.detail, check.problems)
        };
        let (state, detail, _) = seen();
        assert_eq!((state, &*detail), (CheckResult::Missing, "version 1, without cpu, memory, pids"));
        for name in ["cpu", "memory", "pids"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(seen().0, CheckResult::Ok);
        let controllers = dir.path().join("cgroup.controllers");
        fs::write(&controllers, "cpuset cpu io memory pids\n").unwrap();
        assert_eq!((seen().0, &*seen().1), (CheckResult::Ok, "version 2, writable, with cpuset cpu io memory pids"));
        fs::write(&controllers, "memory pids\n").unwrap();
        assert_eq!(seen(), (CheckResult::Missing, "version 2, without cpu".into(), vec![Problem::Delegation]));
    }

    #[test]
    fn suggested_id_ranges_do_not_overlap() {
        let free = |users: &str, groups: &str| first_free(&[users.to_owned(), groups.to_owned()]);
        assert_eq!(free("", ""), Some(200_000));
        assert_eq!(free("ann:100000:65536\n", ""), Some(200_000));
        assert_eq!(free("ann:200000:65536\n", "bob:265536:65536\nnonsense\n"), Some(331_072));
        assert_eq!(free("ann:4294900000:65536\n", ""), None);
        assert!(lists("ann:100000:65536\n1001:1:1\n", Some("ann"), 1000));
        assert!(lists("ann:100000:65536\n1001:1:1\n", None, 1001));
        assert!(!lists("ann:100000:65536\n", Some("an"), 1000));
    }
}
