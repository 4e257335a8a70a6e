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
