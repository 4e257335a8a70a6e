//! Isolation: every layer that the mode promises is enforced. A mode without isolation must not promise any.

use crate::inside::{code, files, ok, run, sh};
use crate::{Stage, host, programs};
use kennel_core::WriteOptions;
use kennel_types::{Backing, ErrorCode, ExecSpec, IsolationLayer, SandboxSpec, Support};

/// Whether the sandbox is isolated. If not, it must not report any layer.
async fn has_walls(stage: &Stage) -> bool {
    if !stage.mode().layers.is_empty() {
        return true;
    }
    let sandbox = stage.create(&stage.spec()).await;
    assert_eq!(sandbox.inspect().await.unwrap().enforcement.layers, []);
    false
}

/// The kernel reports every layer of the mode, as seen from inside.
pub async fn every_layer_of_the_mode_is_enforced(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let status = ok(&sandbox, "cat /proc/self/status").await;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_default().trim().to_owned()
    };
    let enforcement = sandbox.inspect().await.unwrap().enforcement;
    for layer in enforcement.layers {
        let namespace = match layer {
            IsolationLayer::MountNamespace => "mnt",
            IsolationLayer::PidNamespace => "pid",
            IsolationLayer::IpcNamespace => "ipc",
            IsolationLayer::UtsNamespace => "uts",
            IsolationLayer::NetNamespace => "net",
            IsolationLayer::UserNamespace => "user",
            IsolationLayer::CgroupNamespace => "cgroup",
            IsolationLayer::NoNewPrivileges => {
                assert_eq!(field("NoNewPrivs"), "1");
                continue;
            }
            IsolationLayer::Seccomp => {
                assert_eq!(field("Seccomp"), "2");
                continue;
            }
            // The first two have their own cases. Nothing in /proc shows the third.
            IsolationLayer::ReducedCapabilities | IsolationLayer::NetworkFilter | IsolationLayer::Landlock => continue,
        };
        let outside = std::fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
        let inside = ok(&sandbox, &format!("readlink /proc/self/ns/{namespace}")).await;
        assert_ne!(inside, outside.to_string_lossy(), "{layer:?}");
        assert!(inside.starts_with(namespace), "{inside}");
    }
}

/// Neither a command nor any program that it executes has a dangerous capability.
pub async fn no_dangerous_capabilities(stage: &Stage) {
    if !stage.mode().layers.contains(&IsolationLayer::ReducedCapabilities) {
        return assert!(!has_walls(stage).await || stage.mode().layers.contains(&IsolationLayer::UserNamespace));
    }
    // FSETID, NET_ADMIN, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, SETFCAP, MAC_ADMIN, SYSLOG, BPF.
    const DANGEROUS: [u32; 12] = [4, 12, 16, 17, 19, 21, 22, 25, 31, 33, 34, 39];
    let sandbox = stage.running().await;
    let status =
        run(&sandbox, &ExecSpec { user: Some("0".into()), ..ExecSpec::argv(["cat", "/proc/self/status"]) }).await;
    let status = status.stdout_text();
    for set in ["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"] {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:"))).expect(set);
        let bits = u64::from_str_radix(line.trim(), 16).unwrap();
        for capability in DANGEROUS {
            assert_eq!(bits >> capability & 1, 0, "{set} has capability {capability}");
        }
    }
}

/// A sandbox sees only its own processes, and cannot signal those of the host.
pub async fn only_own_processes_are_visible(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let inside = ok(&sandbox, "ls /proc | grep -c '^[0-9]'").await;
    let inside: usize = inside.parse().unwrap();
    assert!((1..10).contains(&inside), "{inside} processes are seen inside");
    ok(&sandbox, "kill -0 $$").await;
    assert!(!sh(&sandbox, &format!("kill -0 {}", std::process::id())).await.status.success());
}

/// A sandbox has its own host name.
pub async fn host_name_is_separate(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let outside = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let inside = ok(&sandbox, "hostname").await;
    assert!(!inside.is_empty() && inside != outside.trim(), "{inside}");
}

/// A command has only its standard streams. The fourth descriptor in the output is the directory that `ls` opens.
pub async fn no_descriptor_is_inherited(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let ls = ExecSpec::argv(["ls", "/proc/self/fd"]);
    let list = async |spec: ExecSpec| run(&sandbox, &spec).await.stdout_text().replace('\n', " ");
    assert_eq!(list(ls.clone()).await, "0 1 2 3 ");
    let with_input = sandbox.run(&ls, Some(b"x"), 1000).await.unwrap();
    assert_eq!(with_input.stdout_text(), "0\n1\n2\n3\n");
    let terminal = ExecSpec { tty: Some(crate::inside::SIZE), ..ExecSpec::shell("ls -1 /proc/self/fd") };
    assert_eq!(run(&sandbox, &terminal).await.stdout_text(), "0\r\n1\r\n2\r\n3\r\n");
}

/// Changes to the root filesystem inside do not change the host's files.
pub async fn host_files_are_not_changed(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    // The mark alone is the name of the home directory.
    let name = format!("{}-inside", stage.home().mark());
    let mut written = Vec::new();
    for dir in ["/", "/etc", "/tmp", "/var", "/root", "/usr", "/dev/shm"] {
        let wrote = sh(&sandbox, &format!("echo inside > {dir}/{name} && cat {dir}/{name}")).await;
        written.extend((wrote.stdout_text() == "inside\n").then_some(dir));
        let outside = std::path::Path::new(dir).join(&name);
        assert!(!outside.exists(), "{} is outside", outside.display());
    }
    assert!(written.contains(&"/tmp") && written.contains(&"/dev/shm"), "only {written:?} could be written inside");
    let before = std::fs::read("/etc/passwd").unwrap();
    sh(&sandbox, "echo intruder >> /etc/passwd; rm -rf /etc/hostname /root /home").await;
    assert_eq!(std::fs::read("/etc/passwd").unwrap(), before);
    assert!(std::path::Path::new("/root").exists());
    // The host's devices are not accessible either.
    ok(&sandbox, "head -c 1 /dev/zero").await;
    for device in ["/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmsg", "/dev/kvm"] {
        assert!(!sh(&sandbox, &format!("head -c 1 {device}")).await.status.success(), "{device}");
    }
}

/// Kernel settings can be read but not written. The test writes the existing value, so that a failure does no harm.
pub async fn kernel_settings_cannot_be_changed(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    for setting in ["/proc/sys/kernel/panic", "/proc/sys/vm/swappiness", "/proc/sys/kernel/core_pattern"] {
        // The control: the setting exists and can be read.
        ok(&sandbox, &format!("cat {setting}")).await;
        let write = format!("v=$(cat {setting}) && echo \"$v\" > {setting}");
        assert!(!sh(&sandbox, &write).await.status.success(), "{setting} can be written");
    }
    for hidden in ["/proc/kcore", "/proc/sysrq-trigger"] {
        // The file may be masked by /dev/null, which has this device number.
        let write = format!("test \"$(stat -c %t:%T {hidden})\" != 1:3 && echo h > {hidden}");
        assert!(!sh(&sandbox, &write).await.status.success(), "{hidden} can be written");
    }
}

/// Mounting is refused, and so are new namespaces that would allow it.
pub async fn mounting_is_refused(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    const TRIED: [&str; 4] = ["mount -t tmpfs none /tmp", "mount -t proc none /tmp", "umount /proc", "unshare -m true"];
    let sandbox = stage.running().await;
    // The control: the programs exist, and root can do all of this outside.
    ok(&sandbox, "command -v mount && command -v umount && command -v unshare && test -d /tmp").await;
    if rustix::process::geteuid().is_root() {
        for script in TRIED {
            let apart = ["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script];
            let done = std::process::Command::new("unshare").args(apart).output().unwrap();
            assert!(done.status.success(), "outside, {script} fails: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
    for script in TRIED {
        assert!(!sh(&sandbox, script).await.status.success(), "{script}");
    }
}

/// Numbers and arguments of system calls that no sandbox may make. From 424 on the numbers are the same everywhere.
#[cfg(target_arch = "x86_64")]
pub const FILTERED: [&str; 10] = [
    "425:1",           // io_uring_setup
    "41:40:1",         // socket, of the family vsock
    "41:4294967336:1", // the same to the kernel, which looks at the lower half only
    "41:38:5",         // of the family alg
    "250:0:-3",        // keyctl
    "248",             // add_key
    "323",             // userfaultfd
    "321",             // bpf
    "298",             // perf_event_open
    "428:-100",        // open_tree
];
/// Numbers and arguments of system calls that no sandbox may make.
#[cfg(target_arch = "aarch64")]
pub const FILTERED: [&str; 10] =
    ["425:1", "198:40:1", "198:4294967336:1", "198:38:5", "219:0:-3", "217", "282", "280", "241", "428:-100"];

/// `ENOSYS`, as on a kernel that does not have them.
const NO_SUCH_CALL: &str = "38";

/// Whether this is the result of a refused call of [`FILTERED`]. For calls that are filtered by arguments, Docker 20.10
/// can only return `EPERM`.
pub fn is_refusal(call: &str, answer: &str) -> bool {
    answer == NO_SUCH_CALL
        || (answer == "1" && call.contains(":40:") | call.contains(":4294967336:") | call.contains(":38:"))
}

/// A system call that is not allowed returns `ENOSYS`, as on an older kernel, so that programs use another one. Threads
/// and sockets work.
pub async fn system_calls_are_filtered(stage: &Stage) {
    let program = stage.home().path().join("calls");
    programs::compile(programs::SYSCALLS, &program);
    // The control: the kernel supports all of them, and clone3.
    let calls: Vec<&str> = FILTERED.into_iter().chain(["435"]).collect();
    let outside = std::process::Command::new(&program).args(&calls).output().unwrap();
    let outside = String::from_utf8(outside.stdout).unwrap();
    assert_eq!(outside.lines().filter(|line| *line != NO_SUCH_CALL).count(), calls.len(), "{outside}");
    if !stage.mode().layers.contains(&IsolationLayer::Seccomp) || !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let (bytes, options) = (std::fs::read(&program).unwrap(), WriteOptions { mode: Some(0o755), parents: true });
    files(&sandbox).await.write("/tmp/calls", &bytes, options).await.unwrap();
    let inside = run(&sandbox, &ExecSpec::argv(["/tmp/calls"].iter().chain(&calls).copied())).await.stdout_text();
    assert_eq!(inside.lines().count(), calls.len(), "{inside}");
    for (call, answer) in calls.iter().zip(inside.lines()) {
        assert!(is_refusal(call, answer), "{call} returned {answer}");
    }
    let usual =
        if cfg!(target_arch = "x86_64") { ["41:1:1", "41:2:1", "41:16:3"] } else { ["198:1:1", "198:2:1", "198:16:3"] };
    let inside = run(&sandbox, &ExecSpec::argv(["/tmp/calls"].iter().chain(&usual).copied())).await.stdout_text();
    assert_eq!(inside, "ok\nok\nok\n", "sockets of unix, inet and netlink");
}

/// A sandbox reaches neither the state directory nor the files and processes of another sandbox.
pub async fn other_sandboxes_cannot_be_reached(stage: &Stage) {
    if !has_walls(stage).await {
        return;
    }
    let (one, other) = (stage.running().await, stage.running().await);
    let mut sleep = ExecSpec::argv(["sleep", "1000"]);
    let mark = stage.mark(&mut sleep, "other");
    let _exec = other.exec(&sleep).await.unwrap();
    let state = stage.home().state();
    let shown = sh(&one, &format!("ls -A {}", state.display())).await;
    assert!(!shown.status.success() || shown.stdout.is_empty(), "the state directory shows {}", shown.stdout_text());
    if matches!(stage.mode().backing, Backing::HostOverlay | Backing::HostParts) {
        let reads = sh(&one, &format!("find {} -type f", state.display())).await;
        assert_eq!(reads.stdout_text(), "", "files of the state directory");
    }
    assert_eq!(ok(&one, "cat /proc/[0-9]*/cmdline | grep -c 'sleep.100[0]' || true").await, "0");
    assert_eq!(host::marked(&mark).len(), 1);
}

/// Sandboxes can be created inside only on request, because this exposes more of the kernel.
pub async fn nested_sandboxes_need_the_nesting_option(stage: &Stage) {
    let spec = SandboxSpec { nesting: true, workspace: None, workdir: Some("/".into()), ..stage.spec() };
    if stage.mode().nesting == Support::Refused {
        return stage.refuses(&spec).await;
    }
    // Files can get capabilities there. In a shared directory of root's, these would also apply outside.
    let shared = SandboxSpec { nesting: true, ..stage.spec() };
    if rustix::process::geteuid().is_root() {
        assert_eq!(code(stage.try_create(&shared).await), ErrorCode::InvalidConfig);
    } else {
        stage.create(&shared).await;
    }
    const MADE: &str = "unshare -r -m -p -f sh -c 'mount -t proc proc /proc && mount -t tmpfs t /tmp && echo $$'";
    let plain = stage.running().await;
    assert!(!sh(&plain, MADE).await.status.success());
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, MADE).await, "1");
    // An inner sandbox has no more rights than the outer one.
    for script in ["echo x > /proc/sys/kernel/core_pattern", "echo h > /proc/sysrq-trigger", "mknod /tmp/mem c 1 1"] {
        let inside = format!("unshare -r -m sh -c '{script}'");
        assert!(!sh(&sandbox, &inside).await.status.success(), "{script}");
    }
    let layers = |sandbox: Vec<IsolationLayer>| sandbox.contains(&IsolationLayer::Landlock);
    assert!(!layers(sandbox.inspect().await.unwrap().enforcement.layers), "it blocks nested sandboxes");
}
