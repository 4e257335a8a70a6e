//! Turns a forked child into the command: terminal, user, rights, directory, environment, and finally the program.

use crate::paths::reason;
use crate::report::Report;
use crate::users::{self, User};
use crate::{filter, sys};
use kennel_proto::{Failure, FailureKind, KeeperConfig, Spawn, SpawnCommand};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Access, CWD};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The command's ends of its three streams. With a terminal, all three are the terminal.
pub(crate) struct Stdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) tty: bool,
}

/// Turns this new process into the command. Returns only if that fails, with the reason. Sends the descriptor for
/// forwarded calls to the keeper on `status`.
pub(crate) fn run(config: &KeeperConfig, spawn: &Spawn, stdio: &Stdio, status: &OwnedFd) -> Failure {
    match prepare(config, spawn, stdio, status) {
        Ok(program) => program.exec(),
        Err(failure) => failure,
    }
}

#[expect(clippy::disallowed_methods, reason = "in a forked child: a command begins in its working directory")]
fn prepare(config: &KeeperConfig, spawn: &Spawn, stdio: &Stdio, status: &OwnedFd) -> Result<Program, Failure> {
    let step = |what: &'static str| move |error: Errno| other(format!("{what}: {}", reason(error)));
    // Undo everything that the keeper changed for itself.
    sys::default_signal(libc::SIGPIPE);
    sys::unblock_signals();
    rustix::process::setsid().map_err(step("start a session"))?;
    if stdio.tty {
        rustix::process::ioctl_tiocsctty(&stdio.stdin).map_err(step("take the terminal"))?;
    }
    let asked = spawn.user.as_deref().or(config.user.as_deref());
    let user = asked.map(users::find).transpose().map_err(|why| invalid(&why))?;
    let (me, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (fd, target) in [(&stdio.stdin, 0), (&stdio.stdout, 1), (&stdio.stderr, 2)] {
        if let Some(user) = user.as_ref().filter(|user| user.uid != me || user.gid != group) {
            // This lets the command reopen /dev/stdout. It fails for descriptors that belong to others, which is fine.
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
            let _ = rustix::fs::fchown(fd, Some(uid), Some(gid));
        }
        sys::put_at(fd, target).map_err(step("set up standard streams"))?;
    }
    // If memory runs out, commands are killed before the keeper. If this cannot be written, nothing is lost.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    if let Some(keep) = config.bounding {
        sys::limit_bounding_set(keep).map_err(step("limit capabilities"))?;
    }
    sys::no_new_privileges().map_err(step("set no-new-privileges"))?;
    if let Some(user) = &user {
        become_user(user)?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let cwd = spawn.cwd.as_ref().or(config.cwd.as_ref()).map_or(&b"/"[..], |cwd| cwd);
    // A relative directory is below the sandbox's working directory.
    if let (Some(base), false) = (&config.cwd, cwd.starts_with(b"/")) {
        let _ = rustix::process::chdir(&base[..]);
    }
    rustix::process::chdir(cwd).map_err(|error| {
        let message = format!("working directory {}: {}", String::from_utf8_lossy(cwd), reason(error));
        Failure::new(FailureKind::NotExecutable, message)
    })?;
    let env = environment(config, spawn, user.or_else(|| users::find(&me.to_string()).ok()).as_ref(), stdio.tty);
    let program = Program::find(spawn, env)?;
    if config.filter_commands
        && let Some(listener) = filter::load().map_err(step("load the command's system call filter"))?
    {
        // From here on, `openat2` is blocked, and forwarded calls wait for the keeper.
        Report::Listening.send_with(status, listener.as_fd()).map_err(step("pass the filter to the keeper"))?;
    }
    sys::close_on_exec_from(3);
    Ok(program)
}

/// Switches to the user, unless the keeper already is that user and cannot switch.
pub(crate) fn become_user(user: &User) -> Result<(), Failure> {
    match sys::become_user(user.uid, user.gid, &user.groups) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if rustix::process::geteuid().as_raw() == user.uid => Ok(()),
        Err(error) => Err(Failure::new(FailureKind::Denied, format!("become user {}: {}", user.uid, reason(error)))),
    }
}

type Environment = BTreeMap<Vec<u8>, Vec<u8>>;

#[expect(clippy::disallowed_methods, reason = "commands inherit what the engine set, where the host asks for it")]
fn environment(config: &KeeperConfig, spawn: &Spawn, user: Option<&User>, tty: bool) -> Environment {
    let mut env = Environment::new();
    env.insert(b"PATH".to_vec(), PATH.to_vec());
    if tty {
        env.insert(b"TERM".to_vec(), b"xterm".to_vec());
    }
    if config.inherit_env {
        env.extend(std::env::vars_os().map(|(key, value)| (key.into_vec(), value.into_vec())));
        if user.is_some_and(|user| user.uid != 0) {
            env.remove(&b"HOME"[..]); // The engine set it for the keeper's own user.
        }
    }
    env.extend(config.env.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    if !env.contains_key(&b"HOME"[..]) {
        let home = user.and_then(|user| user.home.clone()).filter(|home| !home.is_empty());
        env.insert(b"HOME".to_vec(), home.unwrap_or_else(|| "/".into()).into_bytes());
    }
    if let Some(name) = user.and_then(|user| user.name.clone()) {
        env.entry(b"USER".to_vec()).or_insert(name.into_bytes());
    }
    env.extend(spawn.env.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    env
}

/// A program that is about to be executed.
struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn find(spawn: &Spawn, env: Environment) -> Result<Self, Failure> {
        let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| invalid("an argument holds a zero byte"));
        let argv: Vec<Vec<u8>> = match &spawn.command {
            SpawnCommand::Argv(argv) => argv.iter().map(|arg| arg.to_vec()).collect(),
            SpawnCommand::Shell(script) => vec![b"/bin/sh".to_vec(), b"-c".to_vec(), script.to_vec()],
            SpawnCommand::LoginShell => vec![login_shell(&env)],
        };
        let Some(program) = argv.first().filter(|program| !program.is_empty()) else {
            return Err(invalid("no program is named"));
        };
        let candidates: Vec<Vec<u8>> = if program.contains(&b'/') {
            vec![program.clone()]
        } else {
            let path = env.get(&b"PATH"[..]).map_or(PATH, |path| path);
            path.split(|byte| *byte == b':')
                .filter(|dir| !dir.is_empty())
                .map(|dir| [dir, b"/", program].concat())
                .collect()
        };
        let env = env.into_iter().filter(|(key, _)| !key.is_empty() && !key.contains(&b'='));
        Ok(Self {
            candidates: candidates.into_iter().map(c_string).collect::<Result<_, _>>()?,
            argv: argv.into_iter().map(c_string).collect::<Result<_, _>>()?,
            env: env.map(|(key, value)| c_string([&key[..], b"=", &value].concat())).collect::<Result<_, _>>()?,
        })
    }

    /// Tries each candidate in turn, as a shell does.
    fn exec(self) -> Failure {
        let mut worst = Errno::NOENT;
        for candidate in &self.candidates {
            match sys::execve(candidate, &self.argv, &self.env) {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => worst = Errno::ACCESS,
                error => {
                    worst = error;
                    break;
                }
            }
        }
        let kind = if worst == Errno::NOENT { FailureKind::NotFound } else { FailureKind::NotExecutable };
        let why = match worst {
            Errno::NOENT => "no such program".to_owned(),
            error => reason(error),
        };
        Failure::new(kind, why)
    }
}

/// `$SHELL`, then bash, then sh. Programs that stand in the place of a shell to keep users out do not count.
fn login_shell(env: &Environment) -> Vec<u8> {
    const NO_SHELLS: [&[u8]; 3] = [b"false", b"nologin", b"true"];
    let is_shell =
        |path: &Vec<u8>| !path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| NO_SHELLS.contains(&name));
    let chosen = env.get(&b"SHELL"[..]).filter(|path| is_shell(path)).cloned();
    chosen
        .into_iter()
        .chain([b"/bin/bash".to_vec(), b"/usr/bin/bash".to_vec()])
        .find(|shell| {
            rustix::fs::accessat(CWD, OsStr::from_bytes(shell), Access::EXEC_OK, rustix::fs::AtFlags::empty()).is_ok()
        })
        .unwrap_or_else(|| b"/bin/sh".to_vec())
}

fn invalid(message: &str) -> Failure {
    Failure::new(FailureKind::Invalid, message)
}

fn other(message: String) -> Failure {
    Failure::new(FailureKind::Other, message)
}
