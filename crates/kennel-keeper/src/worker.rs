//! A worker: a fork of the keeper that carries out one file request, or opens one socket, as the requesting user, and exits.
//!
//! So a slow disk or a huge directory blocks nobody else, and the kernel checks the user's own permissions.

use crate::report::Report;
use crate::{connect, files, holes, launch, list, listen, sys, users, watch};
use kennel_proto::{Failure, FailureKind, KeeperConfig, ListenAddress, Outcome, Request, Target};
use rustix::fd::{AsRawFd, OwnedFd};

/// The worker's ends of its pipes.
pub(crate) struct Pipes {
    pub(crate) input: OwnedFd,
    /// Tells after the end of the input whether the input is complete.
    pub(crate) control: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) status: OwnedFd,
}

/// The main function of the worker. Called in a new fork of the keeper; never returns.
pub(crate) fn run(config: &KeeperConfig, request: &Request, pipes: &Pipes) -> ! {
    sys::close_all_but(&[&pipes.input, &pipes.control, &pipes.output, &pipes.status].map(AsRawFd::as_raw_fd));
    let report = match work(config, request, pipes) {
        Ok(outcome) => Report::Done(outcome),
        Err(failure) => Report::Failed(failure),
    };
    report.send(&pipes.status);
    sys::exit_now(0)
}

fn work(config: &KeeperConfig, request: &Request, pipes: &Pipes) -> Result<Outcome, Failure> {
    act_as(config, request.user())?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let full = |path: &[u8]| absolute(config, path);
    match request {
        Request::Read { path, sparse: Some(true), offset: 0, limit: None, .. } => holes::read(&full(path), pipes),
        Request::Read { path, offset, limit, .. } => files::read(&full(path), *offset, *limit, pipes),
        Request::Write { path, mode, parents, offset: Some(offset), .. } => {
            files::write_at(&full(path), *offset, *mode, *parents, pipes)
        }
        Request::Write { path, mode, parents, sparse, .. } => {
            files::write(&full(path), *mode, *parents, *sparse == Some(true), pipes)
        }
        Request::List { path, depth: Some(depth), .. } => list::to_depth(&full(path), *depth, pipes),
        Request::List { path, .. } => files::list(&full(path), pipes),
        Request::Stat { path, follow, .. } => files::stat(&full(path), *follow),
        Request::Mkdir { path, parents, mode, .. } => files::mkdir(&full(path), *parents, *mode),
        Request::Move { from, to, replace, .. } => files::rename(&full(from), &full(to), *replace),
        Request::Remove { path, recursive, .. } => files::remove(&full(path), *recursive),
        Request::Symlink { path, target, replace, .. } => files::symlink(&full(path), target, *replace),
        Request::Chmod { path, mode, follow, .. } => files::chmod(&full(path), *mode, *follow),
        Request::Watch { path, recursive, .. } => watch::run(&full(path), *recursive, pipes),
        Request::Connect { target: Target::Tcp { port }, .. } => {
            connect::hand_over(&connect::to_port(*port)?, None, pipes)
        }
        Request::Connect { target: Target::Unix { path }, .. } => {
            connect::hand_over(&connect::to_path(&full(path))?, None, pipes)
        }
        Request::Listen { address: ListenAddress::Unix { path, mode }, .. } => {
            let (socket, inode) = listen::at_path(&full(path), *mode)?;
            connect::hand_over(&socket, inode, pipes)
        }
        _ => Err(Failure::new(FailureKind::Invalid, "this is not a file request")),
    }
}

/// Becomes the user of a request, in a fork. Without a user, it is the sandbox's own.
pub(crate) fn act_as(config: &KeeperConfig, user: Option<&str>) -> Result<(), Failure> {
    if let Some(name) = user.or(config.user.as_deref()) {
        let user = users::find(name).map_err(|message| Failure::new(FailureKind::Invalid, message))?;
        launch::become_user(&user)?;
        // This process has no system call filter, so processes of that user must not be able to take it over.
        let _ = sys::not_dumpable();
    }
    Ok(())
}

/// A relative path is below the sandbox's working directory.
pub(crate) fn absolute(config: &KeeperConfig, path: &[u8]) -> Vec<u8> {
    match (&config.cwd, path.starts_with(b"/")) {
        (Some(cwd), false) => [cwd, &b"/"[..], path].concat(),
        _ => path.to_vec(),
    }
}
