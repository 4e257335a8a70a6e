//! User namespaces: how ids inside are mapped to ids outside.

use crate::sys::{self, NamespaceHolder};
use kennel_jail::{IdMap, Ids};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::fs;
use std::process::{Command, Stdio};
use std::rc::Rc;

/// Writes the id maps of a process in a new user namespace, with the rights of the host's root.
pub(crate) fn map(pid: i32, ids: &Ids) -> Result<(), String> {
    for (file, maps) in [("uid_map", &ids.users), ("gid_map", &ids.groups)] {
        let path = format!("/proc/{pid}/{file}");
        let line = |IdMap { inside, outside, count }: &IdMap| format!("{inside} {outside} {count}");
        let lines: Vec<String> = maps.iter().map(line).collect();
        fs::write(&path, lines.join("\n")).map_err(|error| format!("write the id map {path}: {error}"))?;
    }
    Ok(())
}

/// Writes the id maps of a process as an ordinary user, who may map only itself. More ids need `newuidmap` and
/// `newgidmap`.
pub(crate) fn map_as_user(pid: i32, ids: &Ids) -> Result<(), String> {
    if let ([_], [_]) = (&*ids.users, &*ids.groups) {
        let path = format!("/proc/{pid}/setgroups");
        fs::write(&path, "deny").map_err(|error| format!("deny setgroups in {path}: {error}"))?;
        return map(pid, ids);
    }
    for (program, maps) in [("/usr/bin/newuidmap", &ids.users), ("/usr/bin/newgidmap", &ids.groups)] {
        let mut command = Command::new(program);
        command.arg(pid.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for IdMap { inside, outside, count } in maps {
            command.args([inside, outside, count].map(ToString::to_string));
        }
        let done = command.output().map_err(|error| format!("run {program}: {error}"))?;
        if !done.status.success() {
            return Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim()));
        }
    }
    Ok(())
}

/// Opens the user namespace of a process.
pub(crate) fn namespace_of(pid: i32) -> Result<OwnedFd, String> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("open {path}: {error}"))
}

/// User namespaces without processes, which serve as id maps for mounts.
pub(crate) struct Namespaces {
    /// The user that they are charged to, if not the host's root.
    charged_to: Option<u32>,
    /// The holder of a namespace that has no maps yet.
    spare: Cell<Option<NamespaceHolder>>,
    made: RefCell<Vec<Made>>,
}

struct Made {
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

    fn start(&self) -> Result<NamespaceHolder, String> {
        let failed = |error| format!("create a user namespace: {error}");
        let _charged = self.charged_to.map(sys::ChargedTo::user).transpose().map_err(failed)?;
        NamespaceHolder::start(libc::CLONE_NEWUSER).map_err(failed)
    }

    /// Returns a namespace with these maps. Mounts with the same owner share it.
    pub(crate) fn with(&self, ids: &Ids) -> Result<Rc<OwnedFd>, String> {
        if let Some(made) = self.made.borrow().iter().find(|made| made.ids == *ids) {
            return Ok(made.namespace.clone());
        }
        let holder = self.spare.take().map_or_else(|| self.start(), Ok)?;
        map(holder.pid, ids)?;
        let namespace = Rc::new(namespace_of(holder.pid)?);
        self.made.borrow_mut().push(Made { ids: ids.clone(), namespace: namespace.clone(), _holder: holder });
        Ok(namespace)
    }
}
