//! The kernel features that the jail tries out, for `kennel doctor`.

use minicbor::{Decode, Encode};

/// The argument that makes the jail only try kernel features.
pub const PROBE_KERNEL: &str = "try";

/// The results. A refused feature has the reason.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KernelSupport {
    /// Whether a user namespace could be created, and an operation in it that requires root.
    #[n(0)]
    pub user_namespace: Result<(), String>,
    /// The version of Landlock.
    #[n(1)]
    pub landlock: Result<u32, String>,
}

/// Returns the Landlock version of the kernel.
pub fn landlock_version() -> std::io::Result<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: with this flag the kernel reads no attributes and creates nothing. It returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, LANDLOCK_CREATE_RULESET_VERSION) };
    u32::try_from(version).map_err(|_| std::io::Error::last_os_error())
}
