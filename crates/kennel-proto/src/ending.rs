//! How a keeper tells from outside why it ended. With a main process, its exit code is that of the main process.
//! Without one, the codes below say why it ended by itself; 0 means that it was asked to end.

/// The sandbox was idle for longer than its idle time.
pub const IDLE: i32 = 80;
/// The process that the sandbox was tied to is gone.
pub const OWNER_GONE: i32 = 81;
/// The word after the exit code in a sandbox's `exit` file if its memory ran out.
pub const OOM: &str = "oom";
