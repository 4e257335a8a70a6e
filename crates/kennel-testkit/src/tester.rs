//! Runs tests as an ordinary user.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// User and group id, for tests that run as root, of a user without a name and without any files.
pub const NOBODYS_IDS: (u32, u32) = (54_321, 54_322);

/// Switches this thread, and all threads and programs that it starts, to an ordinary user permanently. Does nothing if
/// the caller is already an ordinary user.
pub fn become_ordinary_user((user, group): (u32, u32)) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[]).expect("root gives up its groups");
    set_thread_res_gid(group, group, group).expect("root takes another group");
    set_thread_res_uid(user, user, user).expect("root becomes another user");
}

/// Returns the user and group id of `kennel-tester`, who has subordinate ids. `cargo xtask test` creates this user.
pub fn testers_ids() -> (u32, u32) {
    let accounts = std::fs::read_to_string("/etc/passwd").expect("there are accounts");
    let line = accounts.lines().find(|line| line.starts_with("kennel-tester:"));
    let line = line.expect("there is no user kennel-tester: cargo xtask test makes it");
    let number = |field| line.split(':').nth(field).and_then(|id| id.parse().ok()).expect("an account has numbers");
    (number(2), number(3))
}
