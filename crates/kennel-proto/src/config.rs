//! What a keeper is told when it starts: by the descriptor it inherits, or by its argument where nothing secret is in it.

use crate::Spawn;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// The keeper's own settings.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct KeeperConfig {
    /// A secret that every hello must carry. Without one, only a peer outside the keeper's pid namespace is let in.
    #[n(0)]
    pub token: Option<ByteVec>,
    /// Ends with the owner's connection.
    #[n(1)]
    pub tied: bool,
    /// Ends after this time without a command or connection.
    #[n(2)]
    pub idle_ms: Option<u64>,
    /// Base environment of commands, after the keeper's own if `inherit_env`.
    #[n(3)]
    pub env: Vec<(ByteVec, ByteVec)>,
    /// Whether the keeper's own environment is the base (engines put the image's there).
    #[n(4)]
    pub inherit_env: bool,
    /// Default working directory.
    #[n(5)]
    pub cwd: Option<ByteVec>,
    /// Default user.
    #[n(6)]
    pub user: Option<String>,
    /// Starts with the keeper; the keeper ends with it, with its exit code.
    #[n(7)]
    pub main: Option<Spawn>,
    /// Where the main process's output goes.
    #[n(8)]
    pub log: LogSink,
    /// A user that gets a passwd entry and a home if it has none: uid and gid.
    #[n(9)]
    pub ensure_user: Option<(u32, u32)>,
    /// Capabilities, as bits, that commands may have. Without it commands keep the keeper's own.
    #[n(10)]
    pub bounding: Option<u64>,
    /// An open descriptor on the control group file that counts OOM kills.
    #[n(11)]
    pub oom_fd: Option<i32>,
    /// The run directory of a keeper outside any sandbox, if the keeper removes it when it ends.
    #[n(12)]
    pub sweep: Option<ByteVec>,
    /// Milliseconds within which the owner of a tied sandbox must have connected.
    #[n(13)]
    pub owner_within_ms: Option<u64>,
    /// An open descriptor to which the keeper writes its exit code, as text, where no one waits for it.
    #[n(14)]
    pub exit_fd: Option<i32>,
    /// Whether everything runs as the keeper's own user, and naming another is refused.
    #[n(15)]
    pub one_user: bool,
    /// The memory limit, for those who ask what the sandbox uses, where the keeper cannot see it.
    #[n(16)]
    pub memory_limit: Option<u64>,
    /// An open descriptor of a host's connection that is there from the beginning. What went wrong before the keeper
    /// could speak is said on it too.
    #[n(17)]
    pub host_fd: Option<i32>,
    /// A directory that the owner of a tied sandbox holds a lock on as long as it lives. Looked at until it connects.
    #[n(18)]
    pub owner_holds: Option<ByteVec>,
    /// Whether hosts come by a program that the engine starts beside the keeper, and not from outside.
    #[n(19)]
    pub by_engine: bool,
    /// Directories that are given to `ensure_user`: volumes, which the engine makes as root.
    #[n(20)]
    #[cbor(default)]
    pub give: Vec<ByteVec>,
    /// Whether commands get a system call filter of their own: no file becomes set-user-id or set-group-id, and process 1
    /// keeps its limits and its scheduling. The keeper needs `CAP_SYS_PTRACE` for it, which `bounding` keeps from commands.
    #[n(21)]
    #[cbor(default)]
    pub filter_commands: bool,
    /// A file with the addresses that the sandbox must not connect to. Before anything runs, the keeper loads firewall rules
    /// for them in its network namespace, removes the file, and gives up `CAP_NET_ADMIN` for good. If it cannot, it ends.
    #[n(22)]
    pub firewall: Option<ByteVec>,
}

/// Where the main process's output is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum LogSink {
    /// Nowhere.
    #[n(0)]
    #[default]
    Nowhere,
    /// To the keeper's own standard output and error: the engine keeps it.
    #[n(1)]
    Passthrough,
    /// To two inherited descriptors in turn, each up to `cap` bytes, as records of [`crate::log`].
    #[n(2)]
    Files {
        /// One.
        #[n(0)]
        first: i32,
        /// The other.
        #[n(1)]
        second: i32,
        /// Bytes in one before the other is emptied and written.
        #[n(2)]
        cap: u64,
    },
}
