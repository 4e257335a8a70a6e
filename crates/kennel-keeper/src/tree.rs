//! Process trees: finds and ends all descendants of a process.

use crate::sys;
use rustix::fs::{Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// How often a process lets others run before it looks for processes to kill.
const YIELDS: usize = 50;

/// Returns all processes below `root`, without `root` itself.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        open.extend(below);
    }
    found
}

/// Returns the parent of a process, or `None` if it is gone or a zombie.
fn parent(pid: i32) -> Option<i32> {
    let file = rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // The needed fields are at its beginning, so one read is enough.
    let mut buffer = [MaybeUninit::uninit(); 512];
    let (stat, _) = rustix::io::read(file, &mut buffer).ok()?;
    // The name is in parentheses and may contain any character, so search from the end.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = stat[after..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let state = fields.next()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    (state != b"Z").then_some(parent)
}

/// Kills everything below this process, including processes that keep forking. Returns when nothing is left, or after
/// `most`. Children of the caller are reaped.
pub(crate) fn kill_all_below_me(most: Duration) {
    // The last child often is about to exit. Letting it run takes less time than reading `/proc`.
    for _ in 0..YIELDS {
        if has_no_children() {
            return;
        }
        rustix::thread::sched_yield();
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let until = Instant::now() + most;
    loop {
        // Stopped processes do not fork. So stop them until no new one is found, then kill them.
        let mut seen = HashSet::new();
        loop {
            let new: Vec<i32> = descendants(me).into_iter().filter(|pid| seen.insert(*pid)).collect();
            if new.is_empty() || Instant::now() > until {
                break;
            }
            for pid in new {
                sys::kill(pid, libc::SIGSTOP);
            }
        }
        for pid in seen {
            sys::kill(pid, libc::SIGKILL);
        }
        if reap_until_none(Duration::from_millis(20)) || Instant::now() > until {
            return;
        }
    }
}

/// Whether nothing is below this process. It reaps orphans, so everything below it is below one of its children.
pub(crate) fn has_no_children() -> bool {
    reap_until_none(Duration::ZERO)
}

/// Reaps children for at most this long, and returns whether none is left.
#[expect(clippy::disallowed_methods, reason = "a backoff: there is no wait with a deadline for all children")]
fn reap_until_none(most: Duration) -> bool {
    let until = Instant::now() + most;
    loop {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Err(_) => return true, // There are no children.
            Ok(Some(_)) => {}
            Ok(None) if Instant::now() > until => return false,
            Ok(None) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}
