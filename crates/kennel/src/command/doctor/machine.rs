//! What this machine's kernel and programs offer, found by looking and, where that is not enough, by trying.

use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Something that sandboxes can be made of.
#[derive(Serialize)]
pub(super) struct Feature {
    pub(super) name: &'static str,
    pub(super) here: bool,
    pub(super) detail: String,
    /// What to type.
    pub(super) fix: Option<String>,
}

fn feature(name: &'static str, here: bool, detail: impl Into<String>, fix: &str) -> Feature {
    Feature { name, here, detail: detail.into(), fix: (!here).then(|| fix.to_owned()) }
}

/// All of them.
pub(super) fn features() -> Vec<Feature> {
    vec![kernel(), user_namespaces(), control_groups(), overlay(), landlock(), pasta(), subordinate_ids()]
}

fn kernel() -> Feature {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let detail = format!("Linux {release} on {}", uname.machine().to_string_lossy());
    // Idmapped mounts of overlay layers.
    feature("kernel", version >= (5, 19), detail, "native needs Linux 5.19 or later: boot a newer kernel")
}

/// Really tried: a kernel that has them may still refuse them to this user.
fn user_namespaces() -> Feature {
    const NAME: &str = "user namespaces";
    const FIX: &str = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=15000";
    let mut attempt = Command::new("unshare");
    attempt.args(["--user", "--map-root-user", "true"]);
    attempt.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    match attempt.output() {
        Ok(done) if done.status.success() => feature(NAME, true, "one was made", FIX),
        Ok(done) => feature(NAME, false, String::from_utf8_lossy(&done.stderr).trim().to_owned(), FIX),
        Err(error) => feature(NAME, false, format!("cannot be tried: unshare: {error}"), "apt-get install util-linux"),
    }
}

fn control_groups() -> Feature {
    const NAME: &str = "control groups";
    const FIX: &str = "boot with systemd.unified_cgroup_hierarchy=1";
    let root = Path::new("/sys/fs/cgroup");
    if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
        let wanted = ["cpu", "memory", "pids"];
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_start_matches('/');
        let writable = rustix::fs::access(root.join(own), rustix::fs::Access::WRITE_OK).is_ok();
        let all = wanted.iter().all(|name| controllers.split_whitespace().any(|found| found == *name));
        let held = if writable { "ours to divide" } else { "not ours to divide" };
        let detail = format!("version 2, {held}: {}", controllers.trim());
        return feature(
            NAME,
            all && writable,
            detail,
            "sudo loginctl enable-linger $USER, and Delegate=yes for user@.service",
        );
    }
    let first = |name: &str| root.join(name).is_dir();
    let here = first("memory") && first("pids") && first("cpu");
    feature(NAME, here, if here { "version 1: cpu, memory, pids" } else { "no controllers are mounted" }, FIX)
}

fn overlay() -> Feature {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let here = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    let detail = if here { "the kernel has it" } else { "the kernel does not list it" };
    feature("overlay", here, detail, "sudo modprobe overlay")
}

fn landlock() -> Feature {
    let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    let here = modules.split(',').any(|module| module.trim() == "landlock");
    let detail = match (here, modules.trim()) {
        (true, _) => "one of the kernel's security modules".to_owned(),
        (false, "") => "cannot be told: /sys/kernel/security is not mounted".to_owned(),
        (false, modules) => format!("not one of the kernel's security modules: {modules}"),
    };
    let fix = match modules.trim() {
        "" => "sudo mount -t securityfs securityfs /sys/kernel/security",
        _ => "boot with lsm=landlock,... (used where it is there, needed nowhere)",
    };
    feature("landlock", here, detail, fix)
}

fn pasta() -> Feature {
    let found = in_path("pasta");
    let detail = found.clone().unwrap_or_else(|| "not installed: no network for sandboxes of ordinary users".into());
    feature("pasta", found.is_some(), detail, "sudo apt-get install passt")
}

fn subordinate_ids() -> Feature {
    const NAME: &str = "subordinate ids";
    if rustix::process::geteuid().is_root() {
        return feature(NAME, true, "root needs none", "");
    }
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name =
        entries.find(|entry| entry.get(2) == Some(&&*uid)).and_then(|entry| entry.first().map(ToString::to_string));
    let listed = fs::read_to_string("/etc/subuid").unwrap_or_default();
    let here =
        listed.lines().filter_map(|line| line.split(':').next()).any(|who| Some(who) == name.as_deref() || who == uid);
    let detail = if here { "in /etc/subuid" } else { "none in /etc/subuid: one user inside at most" };
    let fix = format!("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}", name.unwrap_or(uid));
    feature(NAME, here, detail, &fix)
}

fn in_path(program: &str) -> Option<String> {
    let path = crate::environment::named("PATH")?;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    places
        .find(|place| rustix::fs::access(place, rustix::fs::Access::EXEC_OK).is_ok())
        .map(|place| place.display().to_string())
}
