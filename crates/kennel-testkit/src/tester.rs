//! Being an ordinary user for a while.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The numbers of a user without a name and without anything, for tests run by root, and of its group.
pub const NOBODYS_IDS: (u32, u32) = (54_321, 54_322);

/// Makes this thread an ordinary user's, for good, and with it all that it starts: threads and programs. Whoever is an
/// ordinary user already stays who it is.
pub fn become_ordinary_user((user, group): (u32, u32)) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[]).expect("root gives up its groups");
    set_thread_res_gid(group, group, group).expect("root takes another group");
    set_thread_res_uid(user, user, user).expect("root becomes another user");
}

/// The numbers of the user `kennel-tester`, who has ids to give to others. `cargo xtask test` makes it.
pub fn testers_ids() -> (u32, u32) {
    let accounts = std::fs::read_to_string("/etc/passwd").expect("there are accounts");
    let line = accounts.lines().find(|line| line.starts_with("kennel-tester:"));
    let line = line.expect("there is no user kennel-tester: cargo xtask test makes it");
    let number = |field| line.split(':').nth(field).and_then(|id| id.parse().ok()).expect("an account has numbers");
    (number(2), number(3))
}
