//! User namespaces: how ids inside are mapped to ids outside.

use crate::sys::{self, NamespaceHolder};
use crate::{IdMap, Ids};
use kennel_keeper::StartError;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::WaitOptions;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::Read;
use std::rc::Rc;

/// Writes the id maps of a process in a new user namespace, with the rights of the host's root.
pub(crate) fn map(pid: i32, ids: &Ids) -> Result<(), StartError> {
    for (file, maps) in [("uid_map", &ids.users), ("gid_map", &ids.groups)] {
        let path = format!("/proc/{pid}/{file}");
        let line = |IdMap { inside, outside, count }: &IdMap| format!("{inside} {outside} {count}");
        let lines: Vec<String> = maps.iter().map(line).collect();
        fs::write(&path, lines.join("\n")).map_err(|error| format!("write the id map {path}: {error}"))?;
    }
    Ok(())
}

/// Writes the id maps of a process as an ordinary user, and waits until they are written.
pub(crate) fn map_as_user(pid: i32, ids: &Ids) -> Result<(), StartError> {
    Mapping::begin(pid, ids)?.finish()
}

/// The programs `newuidmap` and `newgidmap`, while they write the id maps of a process. Both run at the same time, and
/// the caller can do other work meanwhile.
#[must_use = "the id maps may not be written yet"]
pub(crate) struct Mapping(Vec<Mapper>);

struct Mapper {
    program: &'static CStr,
    pid: i32,
    /// What the program prints if it fails.
    output: OwnedFd,
}

impl Mapping {
    /// Begins to write the id maps of a process as an ordinary user, who may map only itself. More ids need `newuidmap`
    /// and `newgidmap`.
    pub(crate) fn begin(pid: i32, ids: &Ids) -> Result<Self, StartError> {
        if let ([_], [_]) = (&*ids.users, &*ids.groups) {
            let path = format!("/proc/{pid}/setgroups");
            fs::write(&path, "deny").map_err(|error| format!("deny setgroups in {path}: {error}"))?;
            return map(pid, ids).map(|()| Self(Vec::new()));
        }
        let users = Mapper::start(c"/usr/bin/newuidmap", pid, &ids.users);
        let groups = Mapper::start(c"/usr/bin/newgidmap", pid, &ids.groups);
        // Processes that are forked later must have `/proc` files that this user may write.
        let _ = kennel_keeper::sys::dumpable();
        Ok(Self(vec![users?, groups?]))
    }

    /// Waits until the id maps are written.
    pub(crate) fn finish(self) -> Result<(), StartError> {
        self.0.into_iter().try_for_each(Mapper::finish)
    }
}

impl Mapper {
    fn start(program: &'static CStr, pid: i32, maps: &[IdMap]) -> Result<Self, StartError> {
        let failed = |why: &dyn std::fmt::Display| format!("run {}: {why}", program.to_string_lossy());
        let text = |word: String| CString::new(word).map_err(|error| failed(&error));
        let words = maps.iter().flat_map(IdMap::words).map(text).collect::<Result<Vec<_>, _>>()?;
        let arguments = [vec![program.to_owned(), text(pid.to_string())?], words].concat();
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let nothing = nothing.map_err(|error| failed(&error))?;
        let (output, printed) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(&error))?;
        let child = kennel_keeper::sys::fork_until_exec(|| {
            let streams = [(&nothing, 0), (&nothing, 1), (&printed, 2)];
            if streams.iter().all(|(fd, number)| kennel_keeper::sys::put_at(fd, *number).is_ok()) {
                kennel_keeper::sys::default_signal(libc::SIGPIPE);
                kennel_keeper::sys::execve(&arguments[0], &arguments, &[]);
            }
            kennel_keeper::sys::exit_now(127)
        });
        Ok(Self { program, pid: child.map_err(|error| failed(&error))?, output })
    }

    fn finish(self) -> Result<(), StartError> {
        let program = self.program.to_string_lossy();
        let ended = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(rustix::process::Pid::from_raw(self.pid), WaitOptions::empty())
        });
        match ended.map_err(|error| format!("run {program}: {error}"))? {
            Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
            _ => {
                let mut printed = String::new();
                let _ = fs::File::from(self.output).take(4096).read_to_string(&mut printed);
                Err(format!("{program}: {}", printed.trim()).into())
            }
        }
    }
}

/// Opens the user namespace of a process.
pub(crate) fn namespace_of(pid: i32) -> Result<OwnedFd, StartError> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("open {path}: {error}").into())
}

/// User namespaces without processes, which serve as id maps for mounts.
pub(crate) struct Namespaces {
    /// The user that they are charged to, if not the host's root.
    charged_to: Option<u32>,
    /// The holder of a namespace that has no maps yet.
    spare: Cell<Option<NamespaceHolder>>,
    made: RefCell<Vec<MappedNamespace>>,
}

struct MappedNamespace {
    ids: Ids,
    namespace: Rc<OwnedFd>,
    /// Reaped when the sandbox is ready: nothing has to wait for its end before that.
    _holder: NamespaceHolder,
}

impl Namespaces {
    pub(crate) fn charged_to(user: Option<u32>) -> Self {
        Self { charged_to: user, spare: Cell::default(), made: RefCell::default() }
    }

    /// Creates the first namespace, which nearly every sandbox needs, before its maps are known.
    pub(crate) fn prepare(&self) {
        self.spare.set(self.start().ok());
    }

    fn start(&self) -> Result<NamespaceHolder, StartError> {
        let failed = |error| StartError::from(format!("create a user namespace: {error}"));
        let _charged = self.charged_to.map(sys::ChargedTo::user).transpose().map_err(failed)?;
        NamespaceHolder::start(libc::CLONE_NEWUSER).map_err(failed)
    }

    /// Returns a namespace with these maps. Mounts with the same owner share it.
    pub(crate) fn with(&self, ids: &Ids) -> Result<Rc<OwnedFd>, StartError> {
        if let Some(made) = self.made.borrow().iter().find(|made| made.ids == *ids) {
            return Ok(made.namespace.clone());
        }
        let holder = self.spare.take().map_or_else(|| self.start(), Ok)?;
        map(holder.pid, ids)?;
        let namespace = Rc::new(namespace_of(holder.pid)?);
        self.made.borrow_mut().push(MappedNamespace {
            ids: ids.clone(),
            namespace: namespace.clone(),
            _holder: holder,
        });
        Ok(namespace)
    }
}
