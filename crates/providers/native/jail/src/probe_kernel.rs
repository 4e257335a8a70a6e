//! Tries which kernel features the calling user can use. A kernel may have a feature and still refuse it to this user.

use crate::{IdMap, Ids, KernelSupport, landlock_version};
use crate::{ids, sys};

/// Tries all features. Afterwards, this process can be used for nothing else.
pub(crate) fn probe() -> KernelSupport {
    KernelSupport { landlock: landlock(), user_namespace: user_namespace() }
}

fn landlock() -> Result<u32, String> {
    landlock_version().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel was built without it".into(),
        Some(libc::EOPNOTSUPP) => "the kernel has it, but it was not enabled at boot".into(),
        _ => error.to_string(),
    })
}

fn user_namespace() -> Result<(), String> {
    let one = |outside| vec![IdMap { inside: 0, outside, count: 1 }];
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::move_into(libc::CLONE_NEWUSER).map_err(|error| format!("create a user namespace: {error}"))?;
    ids::map_as_user(std::process::id() as i32, &Ids { users: one(user), groups: one(group) })
        .map_err(|error| error.to_string())?;
    // Some hardened systems let users create a user namespace but allow nothing in it.
    sys::move_into(libc::CLONE_NEWNS).map_err(|error| format!("create a mount namespace in a user namespace: {error}"))
}
