//! The first line of a keeper that was started to reach another: one of these, why, and a newline. Then come the bytes of the
//! connection.

/// The other has taken the connection.
pub const REACHED: char = '+';
/// Nobody listens yet.
pub const NOT_YET: char = '?';
/// What is there is not the keeper.
pub const REFUSED: char = '!';
/// The longest such line.
pub const LINE: usize = 1024;
