//! The keeper's configuration. The keeper receives it through an inherited descriptor, or as an argument if it contains
//! no secret.

use crate::Spawn;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// The keeper's configuration.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct KeeperConfig {
    /// A secret that every hello must contain. Without it, the keeper accepts only peers outside its pid namespace.
    #[n(0)]
    pub token: Option<ByteVec>,
    /// End when the owner's connection closes.
    #[n(1)]
    pub tied: bool,
    /// End after this time without a command or connection.
    #[n(2)]
    pub idle_ms: Option<u64>,
    /// Base environment of commands. It is added to the keeper's own environment if `inherit_env` is set.
    #[n(3)]
    pub env: Vec<(ByteVec, ByteVec)>,
    /// Whether commands inherit the keeper's own environment, which on engines is the image's.
    #[n(4)]
    pub inherit_env: bool,
    /// Default working directory.
    #[n(5)]
    pub cwd: Option<ByteVec>,
    /// Default user.
    #[n(6)]
    pub user: Option<String>,
    /// The main process. It starts with the keeper. When it ends, the keeper ends with its exit code.
    #[n(7)]
    pub main: Option<Spawn>,
    /// Where the main process's output is stored.
    #[n(8)]
    pub log: LogSink,
    /// A user (uid and gid) that gets a passwd entry and a home directory if it has none.
    #[n(9)]
    pub ensure_user: Option<(u32, u32)>,
    /// Capabilities, as bits, that commands may have. Without it, commands keep the keeper's capabilities.
    #[n(10)]
    pub bounding: Option<u64>,
    /// An open descriptor on the cgroup file that counts OOM kills.
    #[n(11)]
    pub oom_fd: Option<i32>,
    /// The run directory, which a tied keeper outside any sandbox removes when it ends.
    #[n(12)]
    pub sweep: Option<ByteVec>,
    /// The time in milliseconds within which the owner of a tied sandbox must connect.
    #[n(13)]
    pub owner_within_ms: Option<u64>,
    /// An open descriptor to which the keeper writes its exit code, as text, because no process waits for it.
    #[n(14)]
    pub exit_fd: Option<i32>,
    /// Whether all commands run as the keeper's own user. Requesting another user is then refused.
    #[n(15)]
    pub one_user: bool,
    /// The memory limit to report in statistics, if the keeper cannot see it itself.
    #[n(16)]
    pub memory_limit: Option<u64>,
    /// An open descriptor of a connection to the host that exists from the beginning. Errors that occur before the
    /// keeper starts are sent on it too.
    #[n(17)]
    pub host_fd: Option<i32>,
    /// A directory that the owner of a tied sandbox keeps locked. The keeper checks the lock until the owner connects.
    #[n(18)]
    pub owner_holds: Option<ByteVec>,
    /// Whether hosts connect through a program that the engine starts inside, and not from outside.
    #[n(19)]
    pub by_engine: bool,
    /// Directories that are given to `ensure_user`: volumes, which the engine creates as root.
    #[n(20)]
    #[cbor(default)]
    pub give: Vec<ByteVec>,
    /// Whether commands get their own system call filter. It prevents set-user-id and set-group-id files, and protects
    /// the limits and scheduling of process 1. The keeper needs `CAP_SYS_PTRACE` for it, which `bounding` withholds
    /// from commands.
    #[n(21)]
    #[cbor(default)]
    pub filter_commands: bool,
    /// A file with the addresses that the sandbox must not connect to. Before anything else runs, the keeper loads
    /// firewall rules for them into its network namespace, removes the file, and drops `CAP_NET_ADMIN` permanently. If
    /// this fails, the keeper exits.
    #[n(22)]
    pub firewall: Option<ByteVec>,
    /// Whether the sandbox is in the host's network namespace. The keeper then neither connects to ports nor listens on
    /// them, because they are the host's.
    #[n(30)]
    #[cbor(default)]
    pub shares_network: bool,
}

/// Where the main process's output is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum LogSink {
    /// The output is discarded.
    #[n(0)]
    #[default]
    Nowhere,
    /// The output goes to the keeper's own standard output and error, where the engine stores it.
    #[n(1)]
    Passthrough,
    /// The output goes to two inherited descriptors in turn, each up to `cap` bytes, as records of [`crate::log`].
    #[n(2)]
    Files {
        /// The first descriptor.
        #[n(0)]
        first: i32,
        /// The second descriptor.
        #[n(1)]
        second: i32,
        /// The number of bytes in one file before the other is truncated and used.
        #[n(2)]
        cap: u64,
    },
}
