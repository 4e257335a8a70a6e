//! The system call filter of containers: native's list, as a seccomp profile for engines.
//!
//! Docker accepts the profile itself in the request. Podman accepts only the path of a file that it can read, so it
//! gets one only on this machine; elsewhere its own profile applies. Engines compare all 64 bits of an argument, but
//! the kernel uses only the lower half of an `int`. So every comparison here uses a mask.
//!
//! 32-bit programs run too. Their additional system calls are listed here, except `socketcall`: its arguments are
//! behind a pointer, where no filter can see the address family. C libraries that use nothing else (glibc on i386) get
//! no sockets.

use crate::engine::EngineKind;
use kennel_core::{Error, Result};
use kennel_syscalls::{ALLOWED, Call, Condition, Operation, allowed_if, calls};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

const ENOSYS: u32 = 38;

/// System calls of 32-bit programs that do the same as calls on the list.
const OF_32_BIT: &[&str] = &[
    // i386 and ARM: calls with wider numbers.
    "_llseek",
    "_newselect",
    "chown32",
    "fadvise64_64",
    "fchown32",
    "fcntl64",
    "fstat64",
    "fstatat64",
    "fstatfs64",
    "ftruncate64",
    "getegid32",
    "geteuid32",
    "getgid32",
    "getgroups32",
    "getresgid32",
    "getresuid32",
    "getuid32",
    "lchown32",
    "lstat64",
    "mmap2",
    "sendfile64",
    "setfsgid32",
    "setfsuid32",
    "setgid32",
    "setgroups32",
    "setregid32",
    "setresgid32",
    "setresuid32",
    "setreuid32",
    "setuid32",
    "stat64",
    "statfs64",
    "truncate64",
    "ugetrlimit",
    // Calls with wider times.
    "clock_adjtime64",
    "clock_getres_time64",
    "clock_gettime64",
    "clock_nanosleep_time64",
    "futex_time64",
    "io_pgetevents_time64",
    "mq_timedreceive_time64",
    "mq_timedsend_time64",
    "ppoll_time64",
    "pselect6_time64",
    "recvmmsg_time64",
    "rt_sigtimedwait_time64",
    "sched_rr_get_interval_time64",
    "semtimedop_time64",
    "timer_gettime64",
    "timer_settime64",
    "timerfd_gettime64",
    "timerfd_settime64",
    "utimensat_time64",
    // Older forms.
    "ipc",
    "nice",
    "oldfstat",
    "oldlstat",
    "oldolduname",
    "oldstat",
    "olduname",
    "readdir",
    "recv",
    "send",
    "sgetmask",
    "sigaction",
    "signal",
    "sigpending",
    "sigprocmask",
    "sigreturn",
    "sigsuspend",
    "ssetmask",
    "waitpid",
    // Calls that only x86_64 has among the 64-bit architectures.
    "access",
    "alarm",
    "chmod",
    "chown",
    "creat",
    "dup2",
    "epoll_create",
    "epoll_wait",
    "eventfd",
    "fork",
    "futimesat",
    "getdents",
    "getpgrp",
    "inotify_init",
    "lchown",
    "link",
    "lstat",
    "mkdir",
    "mknod",
    "open",
    "pause",
    "pipe",
    "poll",
    "readlink",
    "rename",
    "rmdir",
    "select",
    "signalfd",
    "stat",
    "symlink",
    "time",
    "unlink",
    "utime",
    "utimes",
    "vfork",
    // Calls of ARM.
    "arm_fadvise64_64",
    "arm_sync_file_range",
    "breakpoint",
    "cacheflush",
    "get_tls",
    "set_tls",
    "sync_file_range2",
];

/// System calls that return `ENOSYS` even on engines whose only default is `EPERM`, so that programs fall back to
/// others. Calls that are refused because of their arguments return `EPERM` there: a rule for these would contradict
/// the rules that allow the other arguments.
const WITH_FALLBACK: &[&str] = &[
    "clone3",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "name_to_handle_at",
    "open_by_handle_at",
    "fanotify_init",
    "socketcall",
    "statmount",
    "listmount",
];

/// The profile in the engines' JSON format.
static PROFILE: LazyLock<String> = LazyLock::new(|| profile().to_string());

/// Returns the option for an engine, if it accepts one. Podman's file is written to `programs`.
pub(crate) fn option(kind: EngineKind, here: bool, programs: &Path) -> Result<Option<String>> {
    match (kind, here) {
        (EngineKind::Docker, _) => Ok(Some(format!("seccomp={}", *PROFILE))),
        (EngineKind::Podman, true) => put(programs).map(|path| Some(format!("seccomp={path}"))),
        (EngineKind::Podman, false) => Ok(None),
    }
}

/// Writes the profile to a file atomically, under a name derived from its content.
fn put(programs: &Path) -> Result<String> {
    let path = programs.join(format!("seccomp-{}.json", crate::rundir::part_of(&PROFILE)));
    let failed = |error| Error::io(format!("write the seccomp profile {}", path.display()), error);
    if std::fs::metadata(&path).ok().map(|file| file.len()) != Some(PROFILE.len() as u64) {
        std::fs::create_dir_all(programs).map_err(failed)?;
        let partial = programs.join(format!(".seccomp-{}", std::process::id()));
        std::fs::write(&partial, PROFILE.as_bytes()).map_err(failed)?;
        std::fs::rename(&partial, &path).map_err(failed)?;
    }
    let text = path.to_str().map(ToOwned::to_owned);
    text.ok_or_else(|| failed(std::io::Error::other("Podman accepts only UTF-8 paths")))
}

fn profile() -> Value {
    let of_64_bit = calls(ALLOWED).map(Call::name);
    let names: BTreeSet<&str> = of_64_bit.chain(OF_32_BIT.iter().copied()).collect();
    let mut rules = vec![json!({ "names": names, "action": "SCMP_ACT_ALLOW" })];
    for rule in allowed_if() {
        rules.extend(alternatives(&rule.conditions).into_iter().map(|tests| {
            let tests = tests.into_iter().map(|(index, test)| {
                json!({ "index": index, "value": test.mask, "valueTwo": test.bits, "op": "SCMP_CMP_MASKED_EQ" })
            });
            json!({ "names": [rule.call.name()], "action": "SCMP_ACT_ALLOW", "args": tests.collect::<Vec<_>>() })
        }));
    }
    rules.push(json!({ "names": WITH_FALLBACK, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS }));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        // Calls of an architecture that is not listed would kill the process. Calls of x32 return ENOSYS anyway,
        // because of the keeper's filter for commands.
        "archMap": [
            { "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"] },
            { "architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"] },
        ],
        "syscalls": rules,
    })
}

/// Matches if the argument has these bits where the mask has ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Test {
    mask: u32,
    bits: u32,
}

/// Returns rules that together allow what the conditions allow. An engine treats two tests of one argument in a rule as
/// alternatives, so each rule has at most one.
fn alternatives(conditions: &[Condition]) -> Vec<Vec<(u8, Test)>> {
    let mut by_argument: BTreeMap<u8, Vec<(Operation, u32)>> = BTreeMap::new();
    for (argument, operation, value) in conditions {
        by_argument.entry(*argument).or_default().push((*operation, *value as u32));
    }
    let mut rules = vec![Vec::new()];
    for (argument, all) in by_argument {
        let tests = match all[..] {
            [(Operation::Is, value)] => vec![Test { mask: u32::MAX, bits: value }],
            [(Operation::Masked(mask), value)] => vec![Test { mask: mask as u32, bits: value }],
            _ => {
                let is_not = |operation| matches!(operation, Operation::IsNot);
                assert!(all.iter().all(|(operation, _)| is_not(*operation)), "conditions that no rule can hold");
                let values: Vec<u32> = all.iter().map(|(_, value)| *value).collect();
                all_but(&values)
            }
        };
        let with = |rule: &Vec<(u8, Test)>, test: &Test| rule.iter().copied().chain([(argument, *test)]).collect();
        rules = rules.iter().flat_map(|rule| tests.iter().map(move |test| with(rule, test))).collect();
    }
    rules
}

/// Returns tests, one of which matches for every number except these.
fn all_but(values: &[u32]) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut mixed = vec![Test { mask: 0, bits: 0 }];
    // From the highest bit down: halves without any of the values are taken as a whole.
    for bit in (0..u32::BITS).rev() {
        let halves = mixed.iter().flat_map(|test| {
            let mask = test.mask | 1 << bit;
            [Test { mask, bits: test.bits }, Test { mask, bits: test.bits | 1 << bit }]
        });
        let has_value = |test: &Test| values.iter().any(|value| value & test.mask == test.bits);
        let (with, without) = halves.partition(has_value);
        mixed = with;
        tests.extend(without);
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_masks_match_all_other_numbers() {
        let tests = all_but(&[38, 40]);
        let holds = |number: u32| tests.iter().any(|test| number & test.mask == test.bits);
        for number in (0..100_000).chain([u32::MAX, (1 << 31) + 38, (1 << 16) + 40]) {
            assert_eq!(holds(number), number != 38 && number != 40, "{number}");
        }
        assert!(tests.len() < 40);
    }

    #[test]
    fn no_rule_tests_an_argument_twice() {
        let rules = alternatives(&[(0, Operation::IsNot, 1), (0, Operation::IsNot, 2), (1, Operation::Is, 7)]);
        for rule in &rules {
            let arguments: Vec<u8> = rule.iter().map(|(argument, _)| *argument).collect();
            assert_eq!(arguments, [0, 1]);
        }
        assert!(!rules.is_empty());
    }

    #[test]
    fn the_profile_allows_what_the_list_allows() {
        let profile = profile();
        let rules = profile["syscalls"].as_array().unwrap();
        let names = rules[0]["names"].as_array().unwrap();
        let has = |name: &str| names.iter().any(|known| known == name);
        for name in ["read", "newfstatat", "futex", "mmap2", "seccomp"] {
            assert!(has(name), "{name}");
        }
        for name in ["clone", "clone3", "socket", "socketcall", "io_uring_setup", "mount", "bpf", "keyctl", "ioctl"] {
            assert!(!has(name), "{name}");
        }
        let allows = |name: &str, number: u64| {
            rules.iter().filter(|rule| rule["names"][0] == name && rule["action"] == "SCMP_ACT_ALLOW").any(|rule| {
                let test = &rule["args"][0];
                number & test["value"].as_u64().unwrap() == test["valueTwo"].as_u64().unwrap()
            })
        };
        assert!(allows("socket", 2) && !allows("socket", 40) && !allows("socket", (1 << 32) + 40));
        assert!(allows("clone", 0x11) && !allows("clone", 0x1000_0000));
        assert!(allows("ioctl", 0x5413) && !allows("ioctl", 0x5412));
        assert!(PROFILE.len() < 32 * 1024, "{}", PROFILE.len());
    }

    #[test]
    fn podman_gets_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let programs = dir.path().join("programs");
        let option = |kind, here| option(kind, here, &programs).unwrap();
        assert!(option(EngineKind::Docker, false).unwrap().starts_with("seccomp={"));
        assert_eq!(option(EngineKind::Podman, false), None);
        assert!(!programs.exists());
        let path = option(EngineKind::Podman, true).unwrap();
        assert_eq!(std::fs::read_to_string(path.strip_prefix("seccomp=").unwrap()).unwrap(), *PROFILE);
        assert_eq!(option(EngineKind::Podman, true).unwrap(), path);
        assert_eq!(std::fs::read_dir(&programs).unwrap().count(), 1);
    }
}
