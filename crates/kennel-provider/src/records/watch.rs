//! Events of sandboxes on disk.
//!
//! The kernel reports changes of the directories (inotify), and only a sandbox whose directory changed is looked at
//! again. What a change means is not read from the report: the sandbox's state is compared with the one before, and the
//! state machine says which events lead from one to the other.
//!
//! A start creates the socket, an end closes the lock, a pause creates a mark, and a new name replaces the record. Two
//! changes are not reported when they are complete: the kernel reports a closed lock just before it releases it, and
//! the record of a tied sandbox stays open while it is written. There the sandbox is looked at again a moment later.

use super::{Record, Records};
use futures_util::stream;
use kennel_core::{Error, EventStream, Result};
use kennel_types::{Event, EventKind, SandboxId, SandboxInfo, Status, steps};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::unix::AsyncFd;

/// The files whose change may be an event.
const FILES: [&str; 5] = ["sandbox.json", "lock", "sock", "exit", "paused"];
/// The first delay before a sandbox is looked at again. It doubles each time.
const AGAIN: Duration = Duration::from_millis(1);
/// After this time the sandbox is not looked at again, until something changes.
const SETTLED: Duration = Duration::from_secs(2);

/// Returns the events of these sandboxes from now on. `info` returns the current state of a sandbox. Events are
/// reported in order for each sandbox. If the kernel loses reports, [`EventKind::Missed`] is reported, and then
/// everything that has changed.
pub fn watch_records(
    records: Records,
    info: impl Fn(&Record) -> SandboxInfo + Send + Sync + 'static,
) -> Result<EventStream> {
    let watcher = Watcher::start(records, Box::new(info))?;
    Ok(Box::pin(stream::unfold(Some(watcher), |watcher| async move {
        let mut watcher = watcher?;
        match watcher.next().await {
            Ok(event) => Some((Ok(event), Some(watcher))),
            Err(error) => Some((Err(error), None)),
        }
    })))
}

struct Watcher {
    records: Records,
    info: Box<dyn Fn(&Record) -> SandboxInfo + Send + Sync>,
    inotify: AsyncFd<OwnedFd>,
    /// The sandbox of each watched directory. The directory of all sandboxes has none.
    watched: HashMap<i32, Option<SandboxId>>,
    known: BTreeMap<SandboxId, Known>,
    /// Sandboxes to look at again, and when.
    again: BTreeMap<SandboxId, Again>,
    ready: VecDeque<Event>,
}

/// A sandbox as it was reported.
#[derive(Clone, PartialEq)]
struct Known {
    status: Status,
    name: String,
    /// The process that keeps it alive. Another one means that it was started again.
    holder: Option<Pid>,
}

struct Again {
    at: Instant,
    delay: Duration,
    until: Instant,
}

/// What the kernel reported.
#[derive(Default)]
struct Changes {
    /// Sandboxes whose directory changed. For each, whether the change may not be complete yet.
    changed: BTreeMap<SandboxId, bool>,
    created: BTreeSet<SandboxId>,
    lost: bool,
}

impl Watcher {
    fn start(records: Records, info: Box<dyn Fn(&Record) -> SandboxInfo + Send + Sync>) -> Result<Self> {
        let root = records.root().to_owned();
        let failed = |error| Error::io(format!("watch {}", root.display()), error);
        std::fs::create_dir_all(&root).map_err(failed)?;
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let wd = inotify::add_watch(&inotify, &root, flags).map_err(|error| failed(error.into()))?;
        #[allow(deprecated)] // the replacement needs `unsafe`; both require a descriptor that nobody else closes
        let inotify = AsyncFd::new(inotify).map_err(failed)?;
        let (watched, known, again) = (HashMap::from([(wd, None)]), BTreeMap::new(), BTreeMap::new());
        let mut watcher = Self { records, info, inotify, watched, known, again, ready: VecDeque::new() };
        for id in watcher.records.ids()? {
            watcher.watch(&id)?;
            watcher.look(&id)?;
        }
        watcher.ready.clear();
        Ok(watcher)
    }

    async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let due = self.again.values().map(|again| again.at).min();
            tokio::select! {
                readable = self.inotify.readable() => {
                    let failed = |error| Error::io("watch the sandboxes", error);
                    let mut guard = readable.map_err(failed)?;
                    guard.clear_ready();
                    drop(guard);
                    let changes = self.read().map_err(|error| failed(error.into()))?;
                    self.take(changes)?;
                }
                () = wait_until(due) => self.look_again()?,
            }
        }
    }

    /// Reads all reports that are there.
    fn read(&mut self) -> Result<Changes, Errno> {
        let mut changes = Changes::default();
        let mut buffer = [MaybeUninit::uninit(); 8 * 1024];
        let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(changes),
                Err(error) => return Err(error),
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.lost = true;
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                if let Some(Some(id)) = self.watched.remove(&event.wd()) {
                    changes.changed.entry(id).or_insert(false);
                }
                continue;
            }
            let name = event.file_name().and_then(|name| name.to_str().ok()).unwrap_or_default();
            match self.watched.get(&event.wd()) {
                Some(Some(id)) if FILES.contains(&name) => {
                    let incomplete = match name {
                        "lock" => flags.contains(ReadFlags::CLOSE_WRITE),
                        "sandbox.json" => flags.contains(ReadFlags::CREATE),
                        _ => false,
                    };
                    *changes.changed.entry(id.clone()).or_insert(false) |= incomplete;
                }
                Some(None) => {
                    let Ok(id) = SandboxId::new(name) else { continue };
                    if flags.contains(ReadFlags::CREATE | ReadFlags::ISDIR) {
                        changes.created.insert(id.clone());
                    }
                    changes.changed.entry(id).or_insert(false);
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, changes: Changes) -> Result<()> {
        for id in &changes.created {
            self.watch(id)?;
        }
        if changes.lost {
            self.ready.push_back(self.event(None, EventKind::Missed));
            let mut all: BTreeSet<SandboxId> = self.known.keys().cloned().collect();
            all.extend(self.records.ids()?);
            for id in all {
                self.watch(&id)?;
                self.look(&id)?;
            }
        }
        for (id, incomplete) in changes.changed {
            let settled = self.look(&id)?;
            if incomplete || !settled {
                let now = Instant::now();
                self.again.insert(id, Again { at: now + AGAIN, delay: AGAIN, until: now + SETTLED });
            }
        }
        Ok(())
    }

    /// Looks again at the sandboxes for which it is time.
    fn look_again(&mut self) -> Result<()> {
        let now = Instant::now();
        let due: Vec<SandboxId> =
            self.again.iter().filter(|(_, again)| again.at <= now).map(|(id, _)| id.clone()).collect();
        for id in due {
            let before = self.known.get(&id).cloned();
            let settled = self.look(&id)?;
            let changed = self.known.get(&id) != before.as_ref();
            let Some(mut again) = self.again.remove(&id) else { continue };
            again.delay *= 2;
            again.at = now + again.delay;
            if !(settled && changed) && again.at <= again.until {
                self.again.insert(id, again);
            }
        }
        Ok(())
    }

    /// Watches the directory of a sandbox. It is no error if it is gone again.
    fn watch(&mut self, id: &SandboxId) -> Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(self.inotify.get_ref(), self.records.dir(id), flags) {
            Ok(wd) => {
                self.watched.insert(wd, Some(id.clone()));
                Ok(())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(Error::io(format!("watch {}", self.records.dir(id).display()), error)),
        }
    }

    /// Compares the current state of a sandbox with the known one, and adds the events between them. Returns whether
    /// the sandbox exists completely or not at all.
    fn look(&mut self, id: &SandboxId) -> Result<bool> {
        let record = self.records.read(id)?.filter(|record| !self.records.is_orphan(record));
        let before = self.known.get(id).cloned();
        let Some(record) = record else {
            if let Some(before) = before {
                for kind in steps(Some(before.status), None) {
                    let event = self.event(Some(id), kind);
                    self.ready.push_back(event);
                }
                self.known.remove(id);
            }
            return Ok(!self.records.dir(id).exists());
        };
        let info = (self.info)(&record);
        let holder = info.status.is_up().then(|| self.records.holder(id).filter(|pid| exists(*pid))).flatten();
        if info.status.is_up() && holder.is_none() {
            // It is just starting or ending: the lock is held, but does not name the process that holds it.
            return Ok(false);
        }
        let now = Known { status: info.status, name: info.name.clone(), holder };
        if before.as_ref() == Some(&now) {
            return Ok(true);
        }
        let restarted = |before: &Known| before.status.is_up() && now.status.is_up() && before.holder != now.holder;
        let kinds = match &before {
            Some(before) if restarted(before) => {
                let mut kinds = steps(Some(before.status), Some(Status::Stopped));
                kinds.extend(steps(Some(Status::Stopped), Some(now.status)));
                kinds
            }
            before => steps(before.as_ref().map(|before| before.status), Some(now.status)),
        };
        if before.as_ref().is_some_and(|before| before.name != now.name) {
            let event = Event { name: Some(now.name.clone()), ..self.event(Some(id), EventKind::Renamed) };
            self.ready.push_back(event);
        }
        for kind in kinds {
            let event = self.event(Some(id), kind);
            let ended = kind == EventKind::Stopped && now.status == Status::Stopped;
            self.ready.push_back(if ended {
                Event { cause: info.end_cause, exit_code: info.exit_code, ..event }
            } else {
                event
            });
        }
        self.known.insert(id.clone(), now);
        Ok(true)
    }

    fn event(&self, id: Option<&SandboxId>, kind: EventKind) -> Event {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Event {
            time_ms: since.as_millis() as u64,
            provider: self.records.provider.to_owned(),
            sandbox: id.cloned(),
            kind,
            name: None,
            cause: None,
            exit_code: None,
        }
    }
}

/// Whether there is a process with this id.
fn exists(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{create, new, records};
    use super::*;
    use futures_util::StreamExt;
    use kennel_types::{EndCause, SandboxSpec};
    use rustix::fs::FlockOperation;
    use std::path::Path;

    /// What the process does that keeps a sandbox alive.
    struct Running(std::fs::File);

    fn run(records: &Records, id: &SandboxId, pid: u32) -> Running {
        let dir = records.dir(id);
        let lock = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(dir.join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        std::io::Write::write_all(&mut &lock, pid.to_string().as_bytes()).unwrap();
        let _ = std::fs::remove_file(dir.join("sock"));
        std::fs::write(dir.join("sock"), "").unwrap();
        Running(lock)
    }

    impl Running {
        fn end(self, records: &Records, id: &SandboxId, exit: &str) {
            std::fs::write(records.dir(id).join("exit"), exit).unwrap();
            drop(self.0);
        }
    }

    fn watch(root: &Path) -> (Records, EventStream) {
        let records = records(root);
        let looked = records.clone();
        let events = watch_records(records.clone(), move |record| looked.info(record)).unwrap();
        (records, events)
    }

    async fn next(events: &mut EventStream) -> Event {
        tokio::time::timeout(Duration::from_mins(1), events.next()).await.expect("an event comes").unwrap().unwrap()
    }

    async fn kinds(events: &mut EventStream, count: usize) -> Vec<EventKind> {
        let mut kinds = Vec::new();
        for _ in 0..count {
            kinds.push(next(events).await.kind);
        }
        kinds
    }

    #[tokio::test]
    async fn every_step_is_reported_with_its_cause() {
        let root = tempfile::tempdir().unwrap();
        let (records, mut events) = watch(&root.path().join("not-there-yet"));
        let spec = SandboxSpec { command: Some(vec!["true".into()]), ..SandboxSpec::default() };
        let id = SandboxId::new("box").unwrap();
        let record = records.create(&id, &spec, new(&spec)).unwrap();
        let created = next(&mut events).await;
        assert_eq!((created.kind, created.sandbox.as_ref()), (EventKind::Created, Some(&id)));
        assert_eq!(created.provider, "test");
        assert!(created.time_ms > 1_600_000_000_000);
        let running = run(&records, &id, std::process::id());
        assert_eq!(next(&mut events).await.kind, EventKind::Started);
        running.end(&records, &id, "3");
        let stopped = next(&mut events).await;
        assert_eq!((stopped.kind, stopped.exit_code), (EventKind::Stopped, Some(3)));
        assert_eq!(stopped.cause, Some(EndCause::Exited));
        let starting = records.starting(&record).await.unwrap();
        records.rename(&record, "other", &starting).unwrap();
        let renamed = next(&mut events).await;
        assert_eq!((renamed.kind, renamed.name.as_deref()), (EventKind::Renamed, Some("other")));
        let record = records.find("other").unwrap();
        let running = run(&records, &id, std::os::unix::process::parent_id());
        assert_eq!(next(&mut events).await.kind, EventKind::Started);
        records.remove(&record).unwrap();
        drop(running);
        assert_eq!(kinds(&mut events, 2).await, [EventKind::Stopped, EventKind::Removed]);
    }

    #[tokio::test]
    async fn a_restart_between_two_checks_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let (records, mut events) = watch(root.path());
        let id = create(&records, None).unwrap().id;
        let running = run(&records, &id, std::process::id());
        assert_eq!(kinds(&mut events, 2).await, [EventKind::Created, EventKind::Started]);
        drop(running);
        let _running = run(&records, &id, std::os::unix::process::parent_id());
        assert_eq!(kinds(&mut events, 2).await, [EventKind::Stopped, EventKind::Started]);
    }

    #[tokio::test]
    async fn a_lock_file_that_was_never_locked_is_no_end() {
        let root = tempfile::tempdir().unwrap();
        let (records, mut events) = watch(root.path());
        let id = create(&records, None).unwrap().id;
        assert_eq!(next(&mut events).await.kind, EventKind::Created);
        std::fs::write(records.dir(&id).join("lock"), "").unwrap();
        // Let the watcher look at it.
        let other = create(&records, None).unwrap().id;
        assert_eq!(next(&mut events).await.sandbox, Some(other));
        let running = run(&records, &id, std::process::id());
        assert_eq!(next(&mut events).await.kind, EventKind::Started);
        running.end(&records, &id, "0");
        assert_eq!(next(&mut events).await.kind, EventKind::Stopped);
    }

    #[tokio::test]
    async fn a_tied_sandbox_is_reported_although_its_record_stays_open() {
        let root = tempfile::tempdir().unwrap();
        let (records, mut events) = watch(root.path());
        let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
        let id = SandboxId::new("tied").unwrap();
        records.create(&id, &spec, new(&spec)).unwrap();
        assert_eq!(next(&mut events).await.kind, EventKind::Created);
    }

    #[tokio::test]
    async fn earlier_sandboxes_are_reported_only_when_they_change() {
        let root = tempfile::tempdir().unwrap();
        let first = create(&records(root.path()), None).unwrap();
        let (records, mut events) = watch(root.path());
        let second = create(&records, None).unwrap();
        assert_eq!(next(&mut events).await.sandbox, Some(second.id));
        records.remove(&first).unwrap();
        let removed = next(&mut events).await;
        assert_eq!((removed.kind, removed.sandbox), (EventKind::Removed, Some(first.id)));
    }
}
