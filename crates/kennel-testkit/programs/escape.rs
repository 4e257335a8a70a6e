//! Attacks a sandbox from inside, as root. Prints a line for each attack: its name, `held` or `ESCAPED`, and the
//! reason. It uses raw system calls and is compiled separately, so it needs no other files.
//!
//! Arguments: a host file that contains a secret, a host process, and the name of an abstract socket on which a host
//! process listens.

use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

// SAFETY: as the C library declares them.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn __errno_location() -> *mut i32;
}

type Attack = Result<String, String>;

/// System calls by their numbers on x86-64 and on ARM. From 424 on, the numbers are the same everywhere.
const NUMBERS: [(i64, i64); 42] = [
    (3, 57),    // close
    (16, 29),   // ioctl
    (41, 198),  // socket
    (44, 206),  // sendto
    (45, 207),  // recvfrom
    (54, 208),  // setsockopt
    (56, 220),  // clone
    (62, 129),  // kill
    (81, 50),   // fchdir
    (101, 117), // ptrace
    (103, 116), // syslog
    (155, 41),  // pivot_root
    (159, 171), // adjtimex
    (161, 51),  // chroot
    (163, 89),  // acct
    (164, 170), // settimeofday
    (165, 40),  // mount
    (166, 39),  // umount2
    (167, 224), // swapon
    (169, 142), // reboot
    (172, NONE), // iopl
    (173, NONE), // ioperm
    (175, 105), // init_module
    (176, 106), // delete_module
    (179, 60),  // quotactl
    (227, 112), // clock_settime
    (246, 104), // kexec_load
    (248, 217), // add_key
    (249, 218), // request_key
    (250, 219), // keyctl
    (259, 33),  // mknodat
    (272, 97),  // unshare
    (298, 241), // perf_event_open
    (304, 265), // open_by_handle_at
    (308, 268), // setns
    (310, 270), // process_vm_readv
    (311, 271), // process_vm_writev
    (313, 273), // finit_module
    (320, 294), // kexec_file_load
    (321, 280), // bpf
    (323, 282), // userfaultfd
    (X32 + 165, NONE),
];
/// A call that ARM does not have.
const NONE: i64 = -1;
/// Numbers of the x32 interface, which only x86-64 has.
const X32: i64 = 0x4000_0000;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the numbers of system calls on this architecture are not in NUMBERS");

/// Returns the number of a system call on this architecture, by its number on x86-64. A call that is not in the table
/// is a bug of this program.
fn number_here(number: i64) -> Option<i64> {
    if (424..X32).contains(&number) {
        return Some(number);
    }
    let (intel, arm) = *NUMBERS.iter().find(|(intel, _)| *intel == number).unwrap_or_else(|| panic!("call {number} is not in NUMBERS"));
    Some(if cfg!(target_arch = "x86_64") { intel } else { arm }).filter(|number| *number != NONE)
}

/// Makes a system call, by its number on x86-64, that must fail. `Ok` is an escape.
fn call(number: i64, arguments: [i64; 6]) -> Attack {
    let [a, b, c, d, e, f] = arguments;
    let Some(number) = number_here(number) else { return Err("this architecture has no such call".into()) };
    // SAFETY: the arguments are numbers, or point to memory that outlives the call. The effect of a call on this
    // process is intended.
    let answer = unsafe { syscall(number, a, b, c, d, e, f) };
    if answer < 0 {
        // SAFETY: the C library's own location of `errno`.
        Err(std::io::Error::from_raw_os_error(unsafe { *__errno_location() }).to_string())
    } else {
        Ok(format!("it answered {answer}"))
    }
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// Whether a file can be opened, and for what.
fn opens(path: &str, write: bool) -> Attack {
    let opened = fs::OpenOptions::new().read(true).write(write).open(path);
    match opened {
        Ok(mut file) => {
            let mut byte = [0];
            // Some files can be opened by anyone, and refuse to be read. A file without content reveals nothing.
            match (write, file.read(&mut byte)) {
                (true, _) => Ok(format!("{path} was opened for writing")),
                (false, Ok(count)) if count > 0 => Ok(format!("{path} was read")),
                (false, Ok(_)) => Err("it is empty".into()),
                (false, Err(error)) => Err(error.to_string()),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn writes(path: &str, what: &str) -> Attack {
    match fs::OpenOptions::new().write(true).open(path).and_then(|mut file| std::io::Write::write_all(&mut file, what.as_bytes())) {
        Ok(()) => Ok(format!("{path} was written")),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the first of several attempts that succeeds.
fn any(attacks: impl IntoIterator<Item = Attack>) -> Attack {
    let mut reasons = Vec::new();
    for attack in attacks {
        match attack {
            Ok(how) => return Ok(how),
            Err(why) if !reasons.contains(&why) => reasons.push(why),
            Err(_) => {}
        }
    }
    Err(reasons.join("; "))
}

/// Leaves a root through an open directory, the classic escape from chroot.
fn climb(secret: &str) -> Attack {
    let _ = fs::create_dir("/tmp/pit");
    let held = fs::File::open("/").map_err(|error| error.to_string())?;
    let pit = text("/tmp/pit");
    call(161, [pit.as_ptr() as i64, 0, 0, 0, 0, 0]).map_err(|why| format!("no chroot: {why}"))?;
    let _ = call(81, [held.as_raw_fd().into(), 0, 0, 0, 0, 0]);
    for _ in 0..64 {
        let _ = std::env::set_current_dir("..");
    }
    let here = text(".");
    let _ = call(161, [here.as_ptr() as i64, 0, 0, 0, 0, 0]);
    opens(secret, false)
}

/// Through the links in /proc to the roots, directories and files of other processes.
fn magic_links(secret: &str) -> Attack {
    let mut tried = Vec::new();
    for pid in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let dir = pid.path();
        if !dir.join("root").exists() && fs::symlink_metadata(dir.join("root")).is_err() {
            continue;
        }
        for link in ["root", "cwd"] {
            tried.push(opens(&format!("{}/{link}{secret}", dir.display()), false));
        }
        for descriptor in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
            tried.push(opens(&format!("{}{secret}", descriptor.path().display()), false));
            tried.push(opens(&format!("{}/../../../../../../..{secret}", descriptor.path().display()), false));
        }
    }
    any(tried)
}

/// Processes that are not in this sandbox.
fn strangers(host: i64) -> Attack {
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let (Ok(pid), Ok(line)) = (name.parse::<i64>(), fs::read(entry.path().join("cmdline"))) {
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains("systemd") || line.contains("dockerd") || line.contains("nextest") {
                seen.push(format!("{pid} {line}"));
            }
        }
    }
    if !seen.is_empty() {
        return Ok(seen.join(", "));
    }
    // The process id may also exist inside. Only an id that does not must be unreachable.
    if Path::new(&format!("/proc/{host}")).exists() {
        return Err("that number is one of ours".into());
    }
    any([call(62, [host, 0, 0, 0, 0, 0]), call(101, [16, host, 0, 0, 0, 0]), call(434, [host, 0, 0, 0, 0, 0])])
}

fn socket_connect(path: &str, is_abstract: bool) -> Attack {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let address = if is_abstract { SocketAddr::from_abstract_name(path) } else { SocketAddr::from_pathname(path) };
    match address.and_then(|address| UnixStream::connect_addr(&address)) {
        Ok(_) => Ok(format!("{path} answers")),
        Err(error) => Err(error.to_string()),
    }
}

/// The program of the sandbox's keeper, through the link to it.
fn overwrite_the_keeper() -> Attack {
    any(["/proc/1/exe", "/proc/self/exe"].map(|link| {
        let target = fs::read_link(link).unwrap_or_default();
        // A copy in the workspace is the sandbox's own, and may be written.
        if link == "/proc/self/exe" && target.starts_with("/workspace") {
            return Err("it is our own".into());
        }
        writes(link, "overwritten")
    }))
}

/// Memory and secrets of the keeper.
fn read_the_keeper() -> Attack {
    any(["mem", "environ", "maps", "auxv", "stack", "syscall"].map(|file| opens(&format!("/proc/1/{file}"), false)))
}

/// Sets an option of a new socket to 1.
fn set_option(family: i64, kind: i64, protocol: i64, level: i64, option: i64) -> Attack {
    let socket = opened(family, kind, protocol)?;
    let one = [1u32; 64];
    let answer = call(54, [socket, level, option, one.as_ptr() as i64, 4, 0]);
    let _ = call(3, [socket, 0, 0, 0, 0, 0]);
    answer
}

fn opened(family: i64, kind: i64, protocol: i64) -> Result<i64, String> {
    let socket = call(41, [family, kind, protocol, 0, 0, 0])?;
    socket.rsplit(' ').next().and_then(|number| number.parse().ok()).ok_or(socket)
}

/// Sets flags, addresses and routes by requests on a socket. Each requests the existing state, or does no harm.
fn change_network() -> Attack {
    let socket = opened(2, 2, 0)?;
    let mut tried = Vec::new();
    for name in ["lo", "eth0"] {
        // A name of 16 bytes, then flags, or an address.
        let (mut flags, mut address) = ([0u8; 40], [0u8; 40]);
        flags[..name.len()].copy_from_slice(name.as_bytes());
        flags[16..18].copy_from_slice(&0x41u16.to_ne_bytes());
        tried.push(call(16, [socket, 0x8914, flags.as_ptr() as i64, 0, 0, 0]));
        let alias = format!("{name}:k");
        address[..alias.len()].copy_from_slice(alias.as_bytes());
        address[16..24].copy_from_slice(&[2, 0, 0, 0, 127, 66, 66, 66]);
        tried.push(call(16, [socket, 0x8916, address.as_ptr() as i64, 0, 0, 0]));
    }
    // A route to one address of loopback.
    let mut route = [0u8; 120];
    route[8..16].copy_from_slice(&[2, 0, 0, 0, 127, 66, 66, 67]);
    route[40..42].copy_from_slice(&[2, 0]);
    route[44..48].copy_from_slice(&[255; 4]);
    route[56] = 1;
    tried.push(call(16, [socket, 0x890b, route.as_ptr() as i64, 0, 0, 0]));
    let _ = call(3, [socket, 0, 0, 0, 0, 0]);
    any(tried)
}

/// Deletes a firewall table that does not exist: whoever may do that may also create one.
fn delete_rules() -> Attack {
    let socket = opened(16, 3, 12)?;
    let begin: [u32; 5] = [20, 0x0001_0010, 1, 0, 0x0a00_0000];
    let delete: [u32; 8] = [32, 0x0005_0a02, 2, 0, 1, 0x0001_000b, u32::from_ne_bytes(*b"nowh"), u32::from_ne_bytes(*b"ere\0")];
    let end: [u32; 5] = [20, 0x0001_0011, 3, 0, 0x0a00_0000];
    let bytes: Vec<u8> = begin.iter().chain(&delete).chain(&end).flat_map(|word| word.to_ne_bytes()).collect();
    call(44, [socket, bytes.as_ptr() as i64, bytes.len() as i64, 0, 0, 0])?;
    let mut answer = [0u8; 512];
    call(45, [socket, answer.as_mut_ptr() as i64, 512, 0, 0, 0])?;
    let _ = call(3, [socket, 0, 0, 0, 0, 0]);
    // "Not permitted" is -1. Only a permitted process would learn that there is no such table.
    let code = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
    if code == -1 { Err("not permitted".into()) } else { Ok(format!("it was looked for: {code}")) }
}

/// Any open descriptor that was inherited.
fn leaked_descriptors() -> Attack {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number: i32 = entry.file_name().to_string_lossy().parse().unwrap_or(0);
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if number > 2 && !target.starts_with("/proc") {
            found.push(format!("{number} {}", target.display()));
        }
    }
    if found.is_empty() { Err("none".into()) } else { Ok(found.join(", ")) }
}

/// 32-bit calls have other numbers: 21 is mount there. A child makes the call, because it may be killed for it.
#[cfg(target_arch = "x86_64")]
fn other_numbers() -> Attack {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let status = std::process::Command::new(me).arg("--int80").status().map_err(|error| error.to_string())?;
    let x32 = call(X32 + 165, [0; 6]);
    match (status.code(), x32) {
        (Some(7), _) => Ok("a 32-bit call was answered".into()),
        (_, Ok(how)) => Ok(format!("x32: {how}")),
        (code, Err(why)) => Err(format!("{code:?}; {why}")),
    }
}

#[cfg(target_arch = "x86_64")]
fn int80() -> ! {
    let answer: i64;
    // SAFETY: `getpid` by its 32-bit number touches no memory.
    unsafe { std::arch::asm!("int 0x80", inlateout("rax") 20i64 => answer, lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _) };
    std::process::exit(if answer > 0 { 7 } else { 0 })
}

#[cfg(not(target_arch = "x86_64"))]
fn other_numbers() -> Attack {
    Err("this machine has none".into())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    #[cfg(target_arch = "x86_64")]
    if arguments.first().is_some_and(|word| word == "--int80") {
        int80();
    }
    if arguments.first().is_some_and(|word| word == "--type") {
        // Into the controlling terminal, as if a user had typed it, and through the console.
        let (key, paste) = ([b'x'], [3u8]);
        let typed = any([call(16, [0, 0x5412, key.as_ptr() as i64, 0, 0, 0]), call(16, [0, 0x541c, paste.as_ptr() as i64, 0, 0, 0])]);
        return println!("{typed:?}");
    }
    // The attacks are real: outside of a sandbox they would change this machine.
    let own = std::env::current_exe().unwrap();
    assert!(own.starts_with("/workspace"), "only to be run in a sandbox");
    let [secret, host, socket] = &arguments[..] else { panic!("usage: escape SECRET PID SOCKET") };
    let host: i64 = host.parse().unwrap();
    let (root, proc, tmpfs, none) = (text("/"), text("/proc"), text("tmpfs"), text("none"));
    let (mnt, overlay) = (text("/mnt"), text("overlay"));
    let p = |text: &CString| text.as_ptr() as i64;
    let buffer = [0u64; 64];
    let b = buffer.as_ptr() as i64;
    // Values to change: the frequency of the clock, an address in this program, and the first address of the keeper's
    // program.
    let (adjustment, here, there) = ([1u64; 32], [b, 8], [0x0020_0000i64, 8]);
    let (set, local, remote) = (adjustment.as_ptr() as i64, here.as_ptr() as i64, there.as_ptr() as i64);
    const NEW_USER: i64 = 0x1000_0000;
    const NEW_NS: i64 = 0x0002_0000;
    let attacks: Vec<(&str, Attack)> = vec![
        ("read a file of the host", opens(secret, false)),
        ("read it through magic links", magic_links(secret)),
        ("climb out of the root", climb(secret)),
        ("find a file by its handle", call(304, [-100, b, 0, 0, 0, 0])),
        ("see or touch processes of the host", strangers(host)),
        ("mount", call(165, [p(&none), p(&mnt), p(&tmpfs), 0, 0, 0])),
        ("remount", call(165, [p(&none), p(&proc), 0, 32, 0, 0])),
        ("unmount", call(166, [p(&proc), 2, 0, 0, 0, 0])),
        ("pivot back", call(155, [p(&root), p(&mnt), 0, 0, 0, 0])),
        ("new mount interface", any([
            call(428, [-100, p(&root), 1, 0, 0, 0]),
            call(430, [p(&overlay), 0, 0, 0, 0, 0]),
            call(442, [-100, p(&root), 0, b, 32, 0]),
            call(429, [-100, p(&root), -100, p(&mnt), 0, 0]),
            call(432, [0, 0, 0, 0, 0, 0]),
        ])),
        ("enter or make namespaces", any([
            call(308, [0, 0, 0, 0, 0, 0]),
            call(272, [NEW_USER | NEW_NS, 0, 0, 0, 0, 0]),
            call(272, [NEW_NS, 0, 0, 0, 0, 0]),
            call(435, [b, 88, 0, 0, 0, 0]),
        ])),
        ("fork into a user namespace", {
            let answer = call(56, [NEW_USER | 17, 0, 0, 0, 0, 0]);
            if answer.as_ref().is_ok_and(|how| how.ends_with(" 0")) {
                std::process::exit(0);
            }
            answer
        }),
        ("make devices", any([
            call(259, [-100, p(&text("/tmp/mem")), 0o020_666, 0x101, 0, 0]),
            call(259, [-100, p(&text("/tmp/disk")), 0o060_666, 0x800, 0, 0]),
            call(259, [-100, p(&text("/tmp/null")), 0o020_666, 0x103, 0, 0]),
        ])),
        ("open devices of the host", any(
            ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/loop-control"]
                .map(|path| opens(path, true)),
        )),
        ("read the kernel's memory", any(["/proc/kcore", "/proc/keys", "/proc/timer_list"].map(|path| opens(path, false)))),
        ("load a module", any([call(175, [b, 8, p(&none), 0, 0, 0]), call(313, [0, p(&none), 0, 0, 0, 0]), call(176, [p(&none), 0, 0, 0, 0, 0])])),
        ("change kernel settings", any([
            writes("/proc/sys/kernel/core_pattern", "|/tmp/x"),
            writes("/proc/sys/kernel/hostname", "pwned"),
            writes("/proc/sys/vm/overcommit_memory", "1"),
            writes("/proc/sys/kernel/modprobe", "/tmp/x"),
            writes("/proc/sysrq-trigger", "h"),
            writes("/sys/kernel/uevent_helper", "/tmp/x"),
            writes("/proc/self/oom_score_adj", "-1000"),
        ])),
        ("release agents of control groups", any([
            writes("/sys/fs/cgroup/release_agent", "/tmp/x"),
            writes("/sys/fs/cgroup/memory/release_agent", "/tmp/x"),
            writes("/sys/fs/cgroup/cgroup.procs", "1"),
            writes("/sys/fs/cgroup/memory/cgroup.procs", "1"),
        ])),
        ("talk to an engine", any(
            ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket"]
                .map(|path| socket_connect(path, false)),
        )),
        ("abstract sockets of the host", socket_connect(socket, true)),
        ("raw packets", any([call(41, [17, 3, 0, 0, 0, 0]), call(41, [2, 3, 255, 0, 0, 0])])),
        ("change interfaces, addresses and routes", change_network()),
        ("send in another's name", any(
            // Transparent sockets of either kind, a mark, and a recorded route.
            [(0, 19), (41, 75), (1, 36)].map(|(level, option)| set_option(2, 2, 0, level, option)),
        )),
        ("the firewall", any([
            // Legacy firewall rules, for both address families.
            set_option(2, 3, 255, 0, 64),
            set_option(2, 2, 0, 0, 64),
            set_option(10, 2, 0, 41, 64),
            delete_rules(),
        ])),
        ("overwrite the keeper", overwrite_the_keeper()),
        ("read the keeper", read_the_keeper()),
        ("trace the keeper", any([call(101, [16, 1, 0, 0, 0, 0]), call(310, [1, local, 1, remote, 1, 0]), call(311, [1, local, 1, remote, 1, 0]), call(438, [1, 0, 0, 0, 0, 0])])),
        ("leaked descriptors", leaked_descriptors()),
        ("keys of the kernel", any([call(250, [0, -3, 1, 0, 0, 0]), call(248, [p(&none), p(&none), b, 1, -3, 0]), call(249, [p(&none), p(&none), 0, 0, 0, 0])])),
        ("bpf", call(321, [0, b, 64, 0, 0, 0])),
        ("userfaultfd", call(323, [0, 0, 0, 0, 0, 0])),
        ("performance counters", call(298, [b, 0, -1, -1, 0, 0])),
        ("io_uring", call(425, [1, b, 0, 0, 0, 0])),
        ("kexec", any([call(246, [0, 0, 0, 0, 0, 0]), call(320, [0, 0, 0, 0, 0, 0])])),
        ("reboot", call(169, [0xfee1_dead, 672_274_793, 0, 0, 0, 0])),
        ("set the clock", any([call(164, [b, 0, 0, 0, 0, 0]), call(227, [0, b, 0, 0, 0, 0]), call(159, [set, 0, 0, 0, 0, 0])])),
        ("swap, accounting, quota", any([call(167, [p(&none), 0, 0, 0, 0, 0]), call(163, [p(&text("/tmp/acct")), 0, 0, 0, 0, 0]), call(179, [0, 0, 0, 0, 0, 0])])),
        ("input and output ports", any([call(172, [3, 0, 0, 0, 0, 0]), call(173, [0, 1, 1, 0, 0, 0])])),
        ("the kernel's log", call(103, [3, b, 64, 0, 0, 0])),
        ("other tables of system calls", other_numbers()),
    ];
    for (name, attack) in attacks {
        match attack {
            Ok(how) => println!("{name}: ESCAPED: {how}"),
            Err(why) => println!("{name}: held: {why}"),
        }
    }
}
