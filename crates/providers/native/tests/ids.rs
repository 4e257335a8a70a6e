//! The host ids of root's sandboxes: each sandbox has its own range, and limits that the kernel counts per user are
//! counted there. It needs root.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::inside::{ok, read_until};
use kennel_testkit::{Home, Net, host};
use kennel_types::{Cache, ExecSpec, NetworkMode, SandboxSpec};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The first id of sandboxes that were created before each had its own range: the first subordinate id on Debian.
const SHARED: u32 = 100_000;

/// A script that creates inotify instances until the kernel refuses, prints their number, and keeps them until its
/// input ends.
const INSTANCES: &str =
    "my $n = 0; while ($n < 2000 && syscall(253) >= 0) { $n++ } $| = 1; print \"made $n\\n\"; my $end = <STDIN>;";

struct Fixture {
    home: Home,
    /// A private network, so that no rule of this machine is changed.
    _net: Net,
}

impl Fixture {
    fn new() -> Self {
        Self { home: Home::new(), _net: Net::alone() }
    }

    fn native(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.programs()))
    }

    fn spec(&self) -> SandboxSpec {
        let mut spec = SandboxSpec { network: Some(NetworkMode::None), ..SandboxSpec::default() };
        spec.env.insert("KENNEL_TEST_HOME".into(), self.home.mark());
        spec
    }

    async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = Sandbox::create(self.native(), spec).await.unwrap();
        sandbox.start().await.unwrap();
        sandbox
    }
}

async fn remove(sandbox: Sandbox) {
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}

/// Returns the first host id of a sandbox, from its id map.
async fn first_id(sandbox: &Sandbox) -> u32 {
    let map = ok(sandbox, "cat /proc/self/uid_map").await;
    let fields: Vec<u32> = map.split_whitespace().map(|field| field.parse().unwrap()).collect();
    assert_eq!((fields[0], fields[2], fields.len()), (0, 65_536, 3), "{map}");
    assert_eq!(ok(sandbox, "cat /proc/self/gid_map").await, map);
    fields[1]
}

#[tokio::test]
async fn each_sandbox_has_its_own_id_range() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.started(&fixture.spec()).await, fixture.started(&fixture.spec()).await);
    let (first, second) = (first_id(&one).await, first_id(&other).await);
    assert_ne!(first, second);
    for first in [first, second] {
        let claim = std::path::PathBuf::from(format!("/var/lib/kennel/ids/{first}"));
        assert!(claim.exists(), "{}", claim.display());
        let ids = u64::from(first)..u64::from(first) + 65_536;
        for file in ["/etc/subuid", "/etc/subgid"] {
            for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
                let fields: Vec<u64> = line.split(':').skip(1).map(|field| field.parse().unwrap()).collect();
                assert!(fields[0] >= ids.end || fields[0] + fields[1] <= ids.start, "{file}: {line}");
            }
        }
        for file in ["/etc/passwd", "/etc/group"] {
            let text = std::fs::read_to_string(file).unwrap();
            let taken = text.lines().find(|line| ids.contains(&line.split(':').nth(2).unwrap().parse().unwrap()));
            assert_eq!(taken, None);
        }
    }
    // It keeps its range.
    one.stop(std::time::Duration::ZERO).await.unwrap();
    one.start().await.unwrap();
    assert_eq!(first_id(&one).await, first);
    remove(one).await;
    remove(other).await;
    for first in [first, second] {
        let claim = format!("/var/lib/kennel/ids/{first}");
        let owner = std::fs::read_to_string(&claim).unwrap_or_default();
        assert!(!owner.contains(&fixture.home.mark()), "{claim} is still claimed by {owner}");
    }
}

#[tokio::test]
async fn an_old_record_keeps_the_ids_it_had() {
    let fixture = Fixture::new();
    let sandbox = Sandbox::create(fixture.native(), &fixture.spec()).await.unwrap();
    let path = fixture.home.state().join(sandbox.id().as_str()).join("sandbox.json");
    let record = std::fs::read_to_string(&path).unwrap();
    let (before, number) = record.split_once(",\"firstId\":").expect("a new record has its ids");
    let after = number.trim_start_matches(|digit: char| digit.is_ascii_digit());
    std::fs::write(&path, format!("{before}{after}")).unwrap();
    let sandbox = Sandbox::find(fixture.native(), sandbox.id().as_str()).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(first_id(&sandbox).await, SHARED);
    ok(&sandbox, "echo x > /var/file && chown 5:6 /var/file").await;
    remove(sandbox).await;
}

/// Whether a process of that user may send a signal to another process.
fn may_signal(user: u32, pid: u32) -> bool {
    Command::new("kill")
        .args(["-0", &pid.to_string()])
        .uid(user)
        .gid(user)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[tokio::test]
async fn subordinate_ids_of_a_user_cannot_signal_roots_keepers() {
    let fixture = Fixture::new();
    let sandbox = fixture.started(&fixture.spec()).await;
    let mut sleep = ExecSpec::argv(["sleep", "1000"]);
    sleep.env.insert("KENNEL_TEST_COMMAND".into(), format!("{}-sleep", fixture.home.mark()));
    let _exec = sandbox.exec(&sleep).await.unwrap();
    let pid = host::marked_soon(&format!("{}-sleep", fixture.home.mark())).await[0];
    let keeper = keeper_of(pid);
    assert!(!may_signal(SHARED, keeper) && !may_signal(SHARED, pid));
    // The control: it can signal its own processes, and a process with the sandbox's ids can signal the keeper.
    let mut own = Command::new("sleep").arg("1000").uid(SHARED).gid(SHARED).spawn().unwrap();
    assert!(may_signal(SHARED, own.id()));
    own.kill().unwrap();
    own.wait().unwrap();
    assert!(may_signal(first_id(&sandbox).await, keeper));
    remove(sandbox).await;
}

/// Returns process 1 of the sandbox that a process is in.
fn keeper_of(mut pid: u32) -> u32 {
    let field = |pid: u32, name: &str| -> Vec<u32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap().to_owned();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    while field(pid, "NSpid")[1..] != [1] {
        pid = field(pid, "PPid")[0];
    }
    pid
}

#[tokio::test]
async fn inotify_instances_are_not_charged_to_the_hosts_root() {
    let fixture = Fixture::new();
    let sandbox = fixture.started(&fixture.spec()).await;
    let mut inside =
        sandbox.exec(&ExecSpec { stdin: true, ..ExecSpec::argv(["perl", "-e", INSTANCES]) }).await.unwrap();
    let seen = read_until(&mut inside, |seen| seen.ends_with(b"\n")).await;
    let made: u32 = String::from_utf8(seen).unwrap().trim().strip_prefix("made ").unwrap().parse().unwrap();
    assert!(made >= 100, "the kernel allowed {made}");
    // The sandbox can create no more, but root outside can.
    let free: Vec<_> = (0..4).map(|_| rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)).collect();
    assert!(free.iter().all(Result::is_ok), "{free:?}");
    remove(sandbox).await;

    // The control: they are counted per user. Of two processes of one user, the second can create none. Not with root,
    // who already has some.
    const NOBODYS: u32 = 2_147_000_000;
    let first = Plain::start(NOBODYS);
    assert_eq!(first.made, made, "the same number as a plain process");
    assert_eq!(Plain::start(NOBODYS).made, 0);
}

/// A plain host process that holds inotify instances.
struct Plain {
    child: Child,
    made: u32,
}

impl Plain {
    fn start(user: u32) -> Self {
        let mut command = Command::new("perl");
        command.args(["-e", INSTANCES]).uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { made: line.trim().strip_prefix("made ").unwrap().parse().unwrap(), child }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.child.stdin.take().map(|mut input| input.write_all(b"\n"));
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn volumes_keep_their_owners_between_ranges() {
    let fixture = Fixture::new();
    let caches = vec![Cache::new(fixture.home.mark().to_lowercase(), "/shared")];
    let spec = SandboxSpec { caches, ..fixture.spec() };
    let (one, other) = (fixture.started(&spec).await, fixture.started(&spec).await);
    assert_ne!(first_id(&one).await, first_id(&other).await);
    let made = "cd /shared && echo x > file && chown 5:6 file && mkdir -m 700 dir && chown 1000:1000 dir && stat -c %u:%g . file dir";
    assert_eq!(ok(&one, made).await, "0:0\n5:6\n1000:1000");
    assert_eq!(ok(&other, "cd /shared && stat -c %u:%g . file dir").await, "0:0\n5:6\n1000:1000");
    ok(&other, "echo more >> /shared/file && chown 7:8 /shared/file").await;
    assert_eq!(ok(&one, "stat -c %u:%g /shared/file").await, "7:8");
    remove(one).await;
    remove(other).await;
}

#[tokio::test]
async fn no_user_namespace_can_be_made_inside() {
    let fixture = Fixture::new();
    let sandbox = fixture.started(&fixture.spec()).await;
    assert_eq!(ok(&sandbox, "cat /proc/sys/user/max_user_namespaces").await, "0");
    remove(sandbox).await;
    let nesting = fixture.started(&SandboxSpec { nesting: true, ..fixture.spec() }).await;
    assert_ne!(ok(&nesting, "cat /proc/sys/user/max_user_namespaces").await, "0");
    remove(nesting).await;
}
