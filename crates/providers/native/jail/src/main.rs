//! The jail as a program. See the library.

#![cfg_attr(not(test), no_main)]

/// Called directly by the C library. What Rust does before its own `main` (a guard page, a signal stack, reading
/// `/proc/self/maps`) would delay every start, and none of it is needed.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn main() -> std::ffi::c_int {
    kennel_jail::run(&std::env::args().skip(1).collect::<Vec<_>>())
}
