//! The resource usage of the sandbox: from its cgroup if that is visible inside, otherwise summed over its processes.

use kennel_proto::StatsReport;
use rustix::fd::OwnedFd;

/// Returns the resource usage of the sandbox.
pub(crate) fn read(oom_fd: Option<&OwnedFd>, engine: bool) -> StatsReport {
    let mut stats = if engine { from_cgroup() } else { None }.unwrap_or_else(from_processes);
    stats.oom_kills = oom_kills(oom_fd, engine);
    stats
}

/// Returns the number of processes killed so far because memory ran out: from the inherited descriptor, or from the
/// sandbox's own cgroup if an `engine` shows it.
pub(crate) fn oom_kills(fd: Option<&OwnedFd>, engine: bool) -> Option<u64> {
    let text = match fd {
        Some(fd) => {
            let mut buffer = [0; 1024];
            let count = rustix::io::pread(fd, &mut buffer, 0).ok()?;
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        }
        None if engine => {
            text("/sys/fs/cgroup/memory.events").or_else(|| text("/sys/fs/cgroup/memory/memory.oom_control"))?
        }
        None => return None,
    };
    field(&text, "oom_kill")
}

fn from_cgroup() -> Option<StatsReport> {
    if let Some(memory_bytes) = number("/sys/fs/cgroup/memory.current") {
        let io = text("/sys/fs/cgroup/io.stat").unwrap_or_default();
        let sum =
            |key: &str| io.split_whitespace().filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok()).sum();
        return Some(StatsReport {
            cpu_micros: field(&text("/sys/fs/cgroup/cpu.stat")?, "usage_usec")?,
            memory_bytes,
            memory_limit_bytes: number("/sys/fs/cgroup/memory.max"),
            pids: number("/sys/fs/cgroup/pids.current")?,
            read_bytes: Some(sum("rbytes=")),
            written_bytes: Some(sum("wbytes=")),
            oom_kills: None,
        });
    }
    // Version 1 does not charge writes through the page cache to the cgroup that made them.
    let (read_bytes, written_bytes) = io_of_processes();
    let limit = number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    Some(StatsReport {
        cpu_micros: number("/sys/fs/cgroup/cpuacct/cpuacct.usage")? / 1000,
        memory_bytes: number("/sys/fs/cgroup/memory/memory.usage_in_bytes")?,
        memory_limit_bytes: limit.filter(|limit| *limit < 1 << 60),
        pids: number("/sys/fs/cgroup/pids/pids.current")?,
        read_bytes,
        written_bytes,
        oom_kills: None,
    })
}

/// Returns the bytes that the keeper and all processes below it have read from and written to disks. The kernel adds
/// the bytes of an ended process to those of the process that reaped it. The keeper cannot open its own file in
/// `/proc`, because it is not dumpable.
fn io_of_processes() -> (Option<u64>, Option<u64>) {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let (mut read, mut written) = crate::sys::disk_use();
    for pid in crate::tree::descendants(me) {
        let Some(io) = text(&format!("/proc/{pid}/io")) else { continue };
        read += field(&io, "read_bytes:").unwrap_or(0);
        written += field(&io, "write_bytes:").unwrap_or(0);
    }
    (Some(read), Some(written))
}

/// Sums over all processes below the keeper. The CPU time of ended processes counts once they were reaped.
fn from_processes() -> StatsReport {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let (page, tick) = (rustix::param::page_size() as u64, 1_000_000 / rustix::param::clock_ticks_per_second());
    let mut stats = StatsReport::default();
    for pid in crate::tree::descendants(me).into_iter().chain([me]) {
        let Some(stat) = text(&format!("/proc/{pid}/stat")) else { continue };
        let Some((_, fields)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<u64> = fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        // The fields start with the state, right after the name: utime, stime, cutime, cstime are 11 to 14.
        stats.pids += 1;
        stats.cpu_micros += fields.iter().skip(11).take(4).sum::<u64>() * tick;
        stats.memory_bytes += fields.get(21).copied().unwrap_or(0) * page;
    }
    (stats.read_bytes, stats.written_bytes) = io_of_processes();
    stats
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
