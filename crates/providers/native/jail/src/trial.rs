//! What the kernel grants: tried by the jail, told to who asks what works here.

use minicbor::{Decode, Encode};

/// The argument that makes the jail try the kernel, and do nothing else.
pub const TRY: &str = "try";

/// What came of it. What was refused says why.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Trial {
    /// A user namespace was made, and something done in it that only its root may do.
    #[n(0)]
    pub user_namespace: Result<(), String>,
    /// The version of Landlock's interface.
    #[n(1)]
    pub landlock: Result<u32, String>,
}

/// The version of Landlock's interface that the kernel speaks.
pub fn landlock_version() -> std::io::Result<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: with this flag the kernel wants no attributes and makes nothing: it answers a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, LANDLOCK_CREATE_RULESET_VERSION) };
    u32::try_from(version).map_err(|_| std::io::Error::last_os_error())
}
