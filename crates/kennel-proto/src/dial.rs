//! The first line that `keeper dial` prints: one of these characters, a reason, and a newline. The bytes of the
//! connection to the keeper follow.

/// The connection to the keeper is open.
pub const REACHED: char = '+';
/// The keeper does not listen yet.
pub const NOT_YET: char = '?';
/// The socket is not the keeper's.
pub const REFUSED: char = '!';
/// The longest such line, in bytes.
pub const LINE: usize = 1024;
