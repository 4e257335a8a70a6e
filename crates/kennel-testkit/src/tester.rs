//! Being an ordinary user for a while.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The number of a user without a name and without anything, for tests run by root.
pub const NOBODYS_ID: u32 = 54_321;

/// Makes this thread an ordinary user's, for good, and with it all that it starts: threads and programs. Whoever is an
/// ordinary user already stays who it is.
pub fn become_ordinary_user(id: u32) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_groups(&[]).expect("root gives up its groups");
    set_thread_res_gid(group, group, group).expect("root takes another group");
    set_thread_res_uid(user, user, user).expect("root becomes another user");
}
