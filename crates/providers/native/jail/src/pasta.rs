//! Connects the sandbox of an ordinary user, who may not create interfaces on the host. The program `pasta` creates one
//! inside, and opens connections outside as this user.
//!
//! So the host's firewall cannot tell the sandbox from the user. The rules in the sandbox's own network namespace block
//! what must not be reached; see `guard.rs`.

use crate::sys;
use crate::{NAMES_BY_PASTA, Publish};
use kennel_keeper::StartError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions};
use std::ffi::CString;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// How long the start may take.
const WITHIN: Duration = Duration::from_secs(5);

/// How long to wait before looking again whether there is a default route. It is short compared with the start of
/// `pasta`, and long compared with one look.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// The `pasta` process for one sandbox. It ends when this is dropped, and with its parent.
pub(crate) struct Pasta(i32);

impl Pasta {
    /// Starts `pasta` in the namespaces of a process that this user has created.
    pub(crate) fn start(program: &str, pid: i32, ports: &[Publish], names: bool) -> Result<Self, StartError> {
        let failed = |why: &dyn std::fmt::Display| StartError::from(format!("start {program}: {why}"));
        let namespaces = ["user", "net"].map(|name| format!("/proc/{pid}/ns/{name}"));
        let at = Ipv4Addr::from(NAMES_BY_PASTA).to_string();
        let (tcp, udp) = (published(ports, false), published(ports, true));
        let mut arguments = vec![
            // Its own name, whatever the program's file is called: it makes `pasta` of `passt`.
            "pasta",
            "--foreground",
            "--quiet",
            "--config-net",
            "--ipv4-only",
            // No address inside stands for the host, and no port is forwarded by default.
            "--no-map-gw",
            "--tcp-ports",
            &tcp,
            "--udp-ports",
            &udp,
            "--tcp-ns",
            "none",
            "--udp-ns",
            "none",
            "--userns",
            &namespaces[0],
            "--netns",
            &namespaces[1],
        ];
        if names {
            // Forward to the resolvers of this user, even on the host's own loopback.
            arguments.extend(["--dns-forward", &at]);
        }
        let text = |word: &str| CString::new(word).map_err(|error| failed(&error));
        let file = text(&fastest(program))?;
        let arguments = arguments.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let nothing = nothing.map_err(|error| failed(&error))?;
        let child = kennel_keeper::sys::fork_until_exec(|| {
            sys::die_with_parent();
            // The socket to the jail's parent is not for `pasta`: the parent waits until it is closed.
            if kennel_keeper::sys::put_at(&nothing, 0).is_err() {
                kennel_keeper::sys::exit_now(127)
            }
            // `pasta` fails if this signal is already ignored.
            kennel_keeper::sys::default_signal(libc::SIGPIPE);
            kennel_keeper::sys::execve(&file, &arguments, &[]);
            kennel_keeper::sys::exit_now(127)
        });
        let pasta = Self(child.map_err(|error| failed(&error))?);
        // `pasta` runs as the same user. So this user must be able to write to the `/proc` files of this process and
        // its forks again.
        let _ = kennel_keeper::sys::dumpable();
        Ok(pasta)
    }

    /// Waits until the network of that process has a default route. `pasta` does not report when it is ready.
    pub(crate) fn wait(&self, program: &str, pid: i32) -> Result<(), StartError> {
        let failed = |why: &dyn std::fmt::Display| StartError::from(format!("start {program}: {why}"));
        let process = Pid::from_raw(self.0).ok_or(rustix::io::Errno::SRCH);
        let process = process.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
        let process = process.map_err(|error| failed(&error))?;
        let began = Instant::now();
        while !has_way_out(pid) {
            let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK)).is_ok_and(|ready| ready > 0);
            if ended {
                return Err(failed(&"it ended at once; check that this user can open /dev/net/tun"));
            }
            if began.elapsed() > WITHIN {
                return Err(failed(&format!("the sandbox had no default route within {WITHIN:?}")));
            }
        }
        Ok(())
    }
}

impl Drop for Pasta {
    fn drop(&mut self) {
        kennel_keeper::sys::kill(self.0, libc::SIGKILL);
        let _ = rustix::process::waitpid(Pid::from_raw(self.0), WaitOptions::empty());
    }
}

/// Returns the variant of the program that it would execute itself on this CPU, which would take as long again. Only
/// x86 has variants.
fn fastest(program: &str) -> String {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        let variant = format!("{program}.avx2");
        if rustix::fs::access(&*variant, rustix::fs::Access::EXEC_OK).is_ok() {
            return variant;
        }
    }
    program.to_owned()
}

/// Formats the ports of one protocol for `pasta`.
fn published(ports: &[Publish], udp: bool) -> String {
    let wanted = ports.iter().filter(|port| port.udp == udp);
    let words: Vec<String> = wanted.map(|port| format!("{}:{}", port.host, port.inside)).collect();
    if words.is_empty() { "none".into() } else { format!("127.0.0.1/{}", words.join(",")) }
}

/// Whether the network of that process has a default route.
fn has_way_out(pid: i32) -> bool {
    let routes = std::fs::read_to_string(format!("/proc/{pid}/net/route")).unwrap_or_default();
    routes.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some("00000000"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn must(words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        let status = Command::new(words[0]).args(&words[1..]).status();
        assert!(status.is_ok_and(|status| status.success()), "{words:?}");
    }

    fn is_gone(pid: i32) -> bool {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    /// Runs as an ordinary user, in a private network namespace. This process stays that user, so each test needs its
    /// own process.
    #[test]
    fn pasta_connects_the_namespace_and_ends_with_it() {
        assert!(rustix::process::geteuid().is_root(), "only root can become another user");
        sys::move_into(libc::CLONE_NEWNET | libc::CLONE_NEWNS).unwrap();
        must("mount --make-rprivate /");
        // A device that everyone can open. The machine's own stays unchanged.
        must("mount -t tmpfs none /dev/net");
        must("mknod -m 666 /dev/net/tun c 10 200");
        must("ip link add up0 type veth peer name up1");
        must("ip address add 203.0.113.1/24 dev up0");
        must("ip link set up0 up");
        must("ip link set up1 up");
        must("ip route add default via 203.0.113.2");
        kennel_keeper::sys::become_user(61_207, 61_207, &[]).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sleep", "1000"]).stdout(Stdio::null());
        let holder = Holder(command.spawn().unwrap());
        let pid = holder.0.id() as i32;
        let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
        let began = Instant::now();
        while network(&pid.to_string()) == network("thread-self") || network(&pid.to_string()).is_none() {
            assert!(began.elapsed() < WITHIN);
            std::thread::yield_now();
        }
        let failed = Pasta::start("/usr/bin/false", pid, &[], false).unwrap();
        let refused = failed.wait("/usr/bin/false", pid).unwrap_err();
        assert!(refused.message().contains("/usr/bin/false: it ended at once"), "{refused}");
        let pasta = Pasta::start("/usr/bin/pasta", pid, &[], true).unwrap();
        pasta.wait("/usr/bin/pasta", pid).unwrap();
        assert!(has_way_out(pid));
        let number = pasta.0;
        drop(pasta);
        assert!(is_gone(number));
    }

    struct Holder(std::process::Child);

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
