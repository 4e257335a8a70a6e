//! Compiles the system call filter at build time, so that starting a sandbox only has to load it.
//!
//! The kernel runs a new filter once for every system call number, to cache the calls that are always allowed. A linear
//! filter, as `seccompiler` generates it, would compare all entries each time. This one uses a binary search over
//! ranges.

#![expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by variables")]

use std::collections::BTreeMap;
use std::path::Path;

use kennel_syscalls::{ALLOWED, Call, Condition, NESTING, Operation, allowed_if, calls};

/// One instruction of the filter: code, jump if true, jump if false, value.
type Step = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const ALLOW: Step = (RETURN, 0, 0, 0x7fff_0000);
const UNKNOWN: Step = (RETURN, 0, 0, 0x0005_0000 | libc::ENOSYS as u32);
const KILL: Step = (RETURN, 0, 0, 0x8000_0000);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    assert_eq!(target, std::env::consts::ARCH, "the filter is compiled with the numbers of the machine that builds it");
    let architecture = match target.as_str() {
        "x86_64" => 0xc000_003e,
        "aarch64" => 0xc000_00b7,
        other => panic!("no system call filter for {other}"),
    };
    // 32-bit programs have another architecture with other numbers, so they end here. x32 numbers have a bit that makes
    // them larger than any number on the list.
    let head = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, architecture), KILL, (LOAD, 0, 0, NUMBER)];
    for (name, nesting) in [("filter.bpf", false), ("nesting.bpf", true)] {
        write(name, &[&head[..], &search(&ranges(nesting))].concat());
    }
}

fn write(name: &str, filter: &[Step]) {
    assert!(filter.len() < 4096, "the kernel takes no longer filter");
    let bytes: Vec<u8> = filter
        .iter()
        .flat_map(|(code, yes, no, value)| {
            let [c0, c1] = code.to_ne_bytes();
            let [v0, v1, v2, v3] = value.to_ne_bytes();
            [c0, c1, *yes, *no, v0, v1, v2, v3]
        })
        .collect();
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join(name), bytes).expect("write to OUT_DIR");
}

/// Numbers from here up to the next range, and what to do with them.
type Range = (u32, Vec<Step>);

fn ranges(nesting: bool) -> Vec<Range> {
    let number = |call: &Call| u32::try_from(call.number).expect("system calls are small numbers");
    let mut each: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
    let more = calls(NESTING).filter(|_| nesting);
    each.extend(calls(ALLOWED).chain(more).map(|call| (number(call), vec![ALLOW])));
    let mut rules: BTreeMap<u32, Vec<Vec<Condition>>> = BTreeMap::new();
    let is_free = |call: &Call| nesting && calls(NESTING).any(|free| free.number == call.number);
    for rule in allowed_if().into_iter().filter(|rule| !is_free(&rule.call)) {
        rules.entry(number(&rule.call)).or_default().push(rule.conditions);
    }
    for (number, alternatives) in rules {
        let twice = each.insert(number, alternatives.iter().flat_map(|all| check(all)).chain([UNKNOWN]).collect());
        assert!(twice.is_none(), "system call {number} is on both lists");
    }
    let mut ranges: Vec<Range> = vec![(0, vec![UNKNOWN])];
    for number in 0..=each.keys().max().expect("the list is not empty") + 1 {
        let steps = each.get(&number).cloned().unwrap_or_else(|| vec![UNKNOWN]);
        if ranges.last().is_none_or(|(_, last)| *last != steps) {
            ranges.push((number, steps));
        }
    }
    ranges
}

/// Allows the call if all conditions hold. Otherwise it continues after these instructions.
fn check(conditions: &[Condition]) -> Vec<Step> {
    let mut steps = vec![ALLOW];
    for (argument, operation, value) in conditions.iter().rev() {
        let value = *value as u32;
        let load = (LOAD, 0, 0, ARGUMENTS + 8 * u32::from(*argument)); // the low half: all of these are ints
        let past = u8::try_from(steps.len()).expect("a rule is short");
        let mut before = vec![load];
        match operation {
            Operation::Is => before.push((JUMP_IF_EQUAL, 0, past, value)),
            Operation::IsNot => before.push((JUMP_IF_EQUAL, past, 0, value)),
            Operation::Masked(mask) => {
                before.extend([(AND, 0, 0, *mask as u32), (JUMP_IF_EQUAL, 0, past, value)]);
            }
        }
        before.extend(steps);
        steps = before;
    }
    steps
}

/// Finds the range of a number by binary search.
fn search(ranges: &[Range]) -> Vec<Step> {
    let [(_, steps)] = ranges else {
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let (lower, first) = (search(lower), upper[0].0);
        let upper = search(upper);
        // A conditional jump reaches 255 instructions, an unconditional one any distance.
        let mut steps = match u8::try_from(lower.len()) {
            Ok(distance) => vec![(JUMP_IF_AT_LEAST, distance, 0, first)],
            Err(_) => vec![(JUMP_IF_AT_LEAST, 0, 1, first), (0x05, 0, 0, lower.len() as u32)],
        };
        steps.extend(lower);
        steps.extend(upper);
        return steps;
    };
    steps.clone()
}
