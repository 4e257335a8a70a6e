//! Calls of commands that the keeper carries out: taken from the kernel here, done in forks (see `emulate`).
//!
//! Only so many are under way at a time. Whoever makes more of them waits, and nobody else does.

use crate::filter::{self, Call};
use crate::keeper::{Keeper, Token};
use crate::sys::seccomp;
use crate::{emulate, sys};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Calls that are carried out at once.
const AT_ONCE: usize = 16;

/// Where the calls of one command, and of all that it started, arrive.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// One of its processes has put a Landlock fence around itself.
    fenced: bool,
    /// Nothing more is taken until there is room.
    waiting: bool,
}

/// A call that a fork carries out.
pub(crate) struct UnderWay {
    listener: u64,
    call: u64,
}

impl Keeper {
    /// Carries out a command's calls from now on, until the last of its processes has ended.
    pub(crate) fn listen_to(&mut self, fd: OwnedFd) {
        self.last_id += 1;
        let id = self.last_id;
        // Without it, the calls fail with ENOSYS: nobody holds the descriptor.
        if epoll::add(&self.epoll, &fd, Token::Notices(id).data(), epoll::EventFlags::IN).is_ok() {
            self.listeners.insert(id, Listener { fd, fenced: false, waiting: false });
        }
    }

    pub(crate) fn take_notices(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::IN) {
            return self.take_notice(id);
        }
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            && let Some(listener) = self.listeners.remove(&id)
        {
            let _ = epoll::delete(&self.epoll, &listener.fd);
            for (pid, _) in self.under_way.iter().filter(|(_, under_way)| under_way.listener == id) {
                sys::kill(*pid, libc::SIGKILL);
            }
        }
    }

    fn take_notice(&mut self, id: u64) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        if self.under_way.len() >= AT_ONCE {
            listener.waiting = true;
            let nothing = epoll::EventFlags::empty();
            let _ = epoll::modify(&self.epoll, &listener.fd, Token::Notices(id).data(), nothing);
            return;
        }
        // Its caller may be gone since.
        let Ok(notice) = seccomp::receive(&listener.fd) else { return };
        if filter::call(notice.architecture, notice.number) == Some(Call::LandlockRestrictSelf) {
            // It decides nothing here, so it does not matter if the caller changes what it points at.
            listener.fenced = true;
            return seccomp::let_pass(&listener.fd, notice.id);
        }
        match sys::fork() {
            Ok(sys::Fork::Child) => emulate::run(&listener.fd, &notice, listener.fenced),
            Ok(sys::Fork::Parent(pid)) => {
                self.under_way.insert(pid, UnderWay { listener: id, call: notice.id });
            }
            Err(_) => seccomp::answer(&listener.fd, notice.id, Err(Errno::AGAIN)),
        }
    }

    /// A child has ended. If it carried out a call, the call returns, and there is room for another.
    pub(crate) fn end_notice(&mut self, pid: i32) {
        let Some(UnderWay { listener, call }) = self.under_way.remove(&pid) else { return };
        if let Some(listener) = self.listeners.get(&listener) {
            // It has been answered, unless the fork was killed.
            seccomp::answer(&listener.fd, call, Err(Errno::PERM));
        }
        for (id, listener) in self.listeners.iter_mut().filter(|(_, listener)| listener.waiting) {
            listener.waiting = false;
            let _ = epoll::modify(&self.epoll, &listener.fd, Token::Notices(*id).data(), epoll::EventFlags::IN);
        }
    }
}
