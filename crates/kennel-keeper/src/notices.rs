//! Calls of commands that the keeper carries out. They are received from the kernel here, and carried out in forks (see
//! `emulate`).
//!
//! The number of calls in progress is limited. Only the commands that make more of them wait.

use crate::filter::{self, Call};
use crate::keeper::{Keeper, Token};
use crate::sys::seccomp;
use crate::{emulate, sys};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// The number of calls that are carried out at the same time.
const AT_ONCE: usize = 16;

/// The descriptor on which the calls of one command and all its descendants arrive.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Whether one of its processes has restricted itself with Landlock.
    fenced: bool,
    /// Whether the descriptor is ignored until there is room.
    waiting: bool,
}

/// A call that a fork carries out.
pub(crate) struct UnderWay {
    listener: u64,
    call: u64,
}

impl Keeper {
    /// Serves the calls of a command from now on, until the last of its processes has ended.
    pub(crate) fn listen_to(&mut self, fd: OwnedFd) {
        self.last_id += 1;
        let id = self.last_id;
        // If this fails, the descriptor is closed and the calls fail with ENOSYS.
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
        // The caller may be gone since.
        let Ok(notice) = seccomp::receive(&listener.fd) else { return };
        if filter::call(notice.architecture, notice.number) == Some(Call::LandlockRestrictSelf) {
            // No decision depends on its arguments, so it does not matter if the caller changes them.
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
            // The fork has already replied, unless it was killed.
            seccomp::answer(&listener.fd, call, Err(Errno::PERM));
        }
        for (id, listener) in self.listeners.iter_mut().filter(|(_, listener)| listener.waiting) {
            listener.waiting = false;
            let _ = epoll::modify(&self.epoll, &listener.fd, Token::Notices(*id).data(), epoll::EventFlags::IN);
        }
    }
}
