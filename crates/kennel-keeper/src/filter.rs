//! The system call filter of every command, in addition to the sandbox's own filter.
//!
//! It prevents set-user-id and set-group-id files: calls that would set these bits are forwarded to the keeper, which
//! carries them out without the bits (see `emulate`). It also prevents changes to the limits and the scheduling of
//! process 1, the keeper. It covers the system call numbers of the machine and of its 32-bit programs. Calls of any
//! other architecture return `ENOSYS`.
//!
//! The kernel runs a new filter once for every system call number. So the filter finds numbers by binary search.

use crate::sys::seccomp::{self, Step};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// A system call that the filter checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Chmod,
    Fchmod,
    Fchmodat,
    Fchmodat2,
    Open,
    Openat,
    Creat,
    Mknod,
    Mknodat,
    /// Its mode is in memory, where a filter cannot see it.
    Openat2,
    /// It opens files without any system call that a filter could see.
    IoUring,
    /// After this call, the keeper could do more for the process than the process may do itself.
    LandlockRestrictSelf,
    Prlimit,
    /// Changes the scheduling of a process, which is given by its id.
    Schedule,
    SetPriority,
    IoPriority,
}

/// The checked calls of one architecture, with their numbers.
pub(crate) struct Calls {
    /// The kernel's number for the architecture.
    architecture: u32,
    numbers: &'static [(u32, Call)],
}

use Call::{
    Chmod, Creat, Fchmod, Fchmodat, Fchmodat2, IoPriority, IoUring, LandlockRestrictSelf, Mknod, Mknodat, Open, Openat,
    Openat2, Prlimit, Schedule, SetPriority,
};

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCHITECTURES: [Calls; 2] = [
    Calls {
        architecture: 0xc000_003e,
        numbers: &[
            (2, Open),
            (85, Creat),
            (90, Chmod),
            (91, Fchmod),
            (133, Mknod),
            (141, SetPriority),
            (142, Schedule), // sched_setparam
            (144, Schedule), // sched_setscheduler
            (203, Schedule), // sched_setaffinity
            (251, IoPriority),
            (257, Openat),
            (259, Mknodat),
            (268, Fchmodat),
            (302, Prlimit),
            (314, Schedule), // sched_setattr
            (425, IoUring),
            (426, IoUring),
            (427, IoUring),
            (437, Openat2),
            (446, LandlockRestrictSelf),
            (452, Fchmodat2),
        ],
    },
    // i386
    Calls {
        architecture: 0x4000_0003,
        numbers: &[
            (5, Open),
            (8, Creat),
            (14, Mknod),
            (15, Chmod),
            (94, Fchmod),
            (97, SetPriority),
            (154, Schedule),
            (156, Schedule),
            (241, Schedule),
            (289, IoPriority),
            (295, Openat),
            (297, Mknodat),
            (306, Fchmodat),
            (340, Prlimit),
            (351, Schedule),
            (425, IoUring),
            (426, IoUring),
            (427, IoUring),
            (437, Openat2),
            (446, LandlockRestrictSelf),
            (452, Fchmodat2),
        ],
    },
];

#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURES: [Calls; 2] = [
    Calls {
        architecture: 0xc000_00b7,
        numbers: &[
            (30, IoPriority),
            (33, Mknodat),
            (52, Fchmod),
            (53, Fchmodat),
            (56, Openat),
            (118, Schedule), // sched_setparam
            (119, Schedule), // sched_setscheduler
            (122, Schedule), // sched_setaffinity
            (140, SetPriority),
            (261, Prlimit),
            (274, Schedule), // sched_setattr
            (425, IoUring),
            (426, IoUring),
            (427, IoUring),
            (437, Openat2),
            (446, LandlockRestrictSelf),
            (452, Fchmodat2),
        ],
    },
    // 32-bit ARM
    Calls {
        architecture: 0x4000_0028,
        numbers: &[
            (5, Open),
            (8, Creat),
            (14, Mknod),
            (15, Chmod),
            (94, Fchmod),
            (97, SetPriority),
            (154, Schedule),
            (156, Schedule),
            (241, Schedule),
            (314, IoPriority),
            (322, Openat),
            (324, Mknodat),
            (333, Fchmodat),
            (369, Prlimit),
            (380, Schedule),
            (425, IoUring),
            (426, IoUring),
            (427, IoUring),
            (437, Openat2),
            (446, LandlockRestrictSelf),
            (452, Fchmodat2),
        ],
    },
];

/// Returns the call for a number.
pub(crate) fn call(architecture: u32, number: u32) -> Option<Call> {
    let calls = ARCHITECTURES.iter().find(|calls| calls.architecture == architecture)?;
    calls.numbers.iter().find(|(known, _)| *known == number).map(|(_, call)| *call)
}

/// Loads the filter for this process and all its descendants. Returns the descriptor on which the calls for the keeper
/// arrive.
///
/// Returns `None` if the kernel does not support such descriptors, or if the filter of an outer sandbox already has
/// one: the kernel allows one per process. In this case, setting such a bit is refused.
pub(crate) fn load() -> Result<Option<OwnedFd>, Errno> {
    match seccomp::load_with_listener(&program(NOTIFY)) {
        Ok(listener) => Ok(Some(listener)),
        Err(Errno::INVAL | Errno::BUSY) => seccomp::load(&program(REFUSE)).map(|()| None),
        Err(error) => Err(error),
    }
}

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Loads the low half of an argument.
const fn argument(index: u32) -> Step {
    step(LOAD, 0, 0, 16 + 8 * index)
}

const fn step(code: u16, yes: u8, no: u8, value: u32) -> Step {
    Step { code, jt: yes, jf: no, k: value }
}

const ALLOW: Step = step(RETURN, 0, 0, 0x7fff_0000);
const NOTIFY: Step = step(RETURN, 0, 0, 0x7fc0_0000);
const REFUSE: Step = step(RETURN, 0, 0, 0x0005_0000 | libc::EPERM as u32);
const UNKNOWN: Step = step(RETURN, 0, 0, 0x0005_0000 | libc::ENOSYS as u32);

/// On x86-64, system call numbers from here on belong to x32 programs.
const X32: u32 = 0x4000_0000;
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// The flags with which `open` uses its mode: `O_CREAT`, and the bit that only `O_TMPFILE` has.
const MAKES: u32 = libc::O_CREAT as u32 | 0o20_000_000;
/// The process id of the keeper.
const FIRST: u32 = 1;

/// Builds the whole filter: a search for each architecture, then the rules that both share. `notify` is the action for
/// calls that go to the keeper. The filter is short, because it is loaded for every command.
fn program(notify: Step) -> Vec<Step> {
    let mut parts = vec![Part::Step(step(LOAD, 0, 0, ARCHITECTURE))];
    for calls in &ARCHITECTURES {
        let search = search(calls.numbers);
        parts.extend([
            Part::Step(step(JUMP_IF_EQUAL, 0, (search.len() + 3) as u8, calls.architecture)),
            Part::Step(step(LOAD, 0, 0, NUMBER)),
            Part::Step(step(JUMP_IF_AT_LEAST, 0, 1, X32)),
            Part::Step(UNKNOWN),
        ]);
        parts.extend(search);
    }
    parts.push(Part::Step(UNKNOWN));
    let mut rules: Vec<(Vec<Step>, usize)> = Vec::new();
    let mut end = parts.len();
    let steps = parts.iter().enumerate().map(|(index, part)| match part {
        Part::Step(step) => *step,
        Part::Is(number, call) => {
            let rule = rule(*call, notify);
            let known =
                rules.iter().find(|(known, _)| known.iter().copied().map(key).eq(rule.iter().copied().map(key)));
            let at = known.map_or(end, |(_, at)| *at);
            if at == end {
                end += rule.len();
                rules.push((rule, at));
            }
            let distance = u8::try_from(at - index - 1).expect("a conditional jump reaches over the filter");
            step(JUMP_IF_EQUAL, distance, 0, *number)
        }
    });
    let mut program: Vec<Step> = steps.collect();
    program.extend(rules.into_iter().flat_map(|(rule, _)| rule));
    program
}

/// A part of the filter, before the positions of the rules are known.
enum Part {
    Step(Step),
    /// Jumps to the rule of a call if the number matches.
    Is(u32, Call),
}

fn key(step: Step) -> (u16, u8, u8, u32) {
    (step.code, step.jt, step.jf, step.k)
}

/// Searches a number by halves. All other numbers are allowed.
fn search(numbers: &[(u32, Call)]) -> Vec<Part> {
    if numbers.len() <= 3 {
        let each = numbers.iter().map(|(number, call)| Part::Is(*number, *call));
        return each.chain([Part::Step(ALLOW)]).collect();
    }
    let (lower, upper) = numbers.split_at(numbers.len() / 2);
    let first = upper[0].0;
    let (lower, upper) = (search(lower), search(upper));
    let mut parts = vec![Part::Step(step(JUMP_IF_AT_LEAST, lower.len() as u8, 0, first))];
    parts.extend(lower);
    parts.extend(upper);
    parts
}

/// The rule for a call.
fn rule(call: Call, notify: Step) -> Vec<Step> {
    let with_bits = |mode: u32| vec![argument(mode), step(JUMP_IF_ANY_BIT, 0, 1, SET_ID), notify, ALLOW];
    let making = |flags: u32, mode: u32| {
        let mut steps = vec![argument(flags), step(JUMP_IF_ANY_BIT, 1, 0, MAKES), ALLOW];
        steps.extend(with_bits(mode));
        steps
    };
    // With 2 in `setpriority`, or 3 in `ioprio_set`, processes are selected by their user, and the keeper may be among
    // them.
    let named = |by_user: u32| {
        vec![
            argument(0),
            step(JUMP_IF_EQUAL, 2, 0, by_user),
            argument(1),
            step(JUMP_IF_EQUAL, 0, 1, FIRST),
            REFUSE,
            ALLOW,
        ]
    };
    match call {
        Chmod | Fchmod | Creat | Mknod => with_bits(1),
        Fchmodat | Fchmodat2 | Mknodat => with_bits(2),
        Open => making(1, 2),
        Openat => making(2, 3),
        Openat2 | IoUring => vec![UNKNOWN],
        LandlockRestrictSelf if notify.k == NOTIFY.k => vec![NOTIFY],
        LandlockRestrictSelf => vec![ALLOW],
        Prlimit => vec![
            argument(0),
            step(JUMP_IF_EQUAL, 4, 0, 0),
            argument(2),
            step(JUMP_IF_EQUAL, 0, 3, 0),
            step(LOAD, 0, 0, 16 + 8 * 2 + 4), // A pointer has two halves.
            step(JUMP_IF_EQUAL, 0, 1, 0),
            ALLOW,
            REFUSE,
        ],
        Schedule => vec![argument(0), step(JUMP_IF_EQUAL, 0, 1, FIRST), REFUSE, ALLOW],
        SetPriority => named(2),
        IoPriority => named(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter returns for a call, as the kernel would run it.
    fn run(program: &[Step], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number.to_ne_bytes(), architecture.to_ne_bytes(), [0; 4], [0; 4]].concat();
        data.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
        let (mut at, mut held) = (0, 0);
        loop {
            let Step { code, jt, jf, k } = program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match code {
                LOAD => held = u32::from_ne_bytes(data[k as usize..k as usize + 4].try_into().unwrap()),
                JUMP_IF_EQUAL => at += jump(held == k),
                JUMP_IF_AT_LEAST => at += jump(held >= k),
                JUMP_IF_ANY_BIT => at += jump(held & k != 0),
                RETURN => return k,
                other => panic!("step {other:#x}"),
            }
        }
    }

    fn number(calls: &Calls, call: Call) -> Option<u32> {
        calls.numbers.iter().find(|(_, known)| *known == call).map(|(number, _)| *number)
    }

    #[test]
    fn calls_are_allowed_notified_or_refused_by_their_arguments() {
        const MAKE: u64 = libc::O_CREAT as u64;
        const TMP: u64 = libc::O_TMPFILE as u64;
        let program = program(NOTIFY);
        assert!(program.len() < 140, "{} steps are too slow to load", program.len());
        let cases: &[(Call, [u64; 6], Step)] = &[
            (Chmod, [0, 0o755, 0, 0, 0, 0], ALLOW),
            (Chmod, [0, 0o4755, 0, 0, 0, 0], NOTIFY),
            (Chmod, [0, 0o1777, 0, 0, 0, 0], ALLOW),
            (Fchmod, [3, 0o2755, 0, 0, 0, 0], NOTIFY),
            (Fchmodat, [3, 0, 0o6755, 0, 0, 0], NOTIFY),
            (Fchmodat, [0o6755, 0o6755, 0o755, 0, 0, 0], ALLOW),
            (Fchmodat2, [3, 0, 0o4000, 0, 0, 0], NOTIFY),
            (Open, [0, MAKE, 0o4755, 0, 0, 0], NOTIFY),
            (Open, [0, 0, 0o4755, 0, 0, 0], ALLOW),
            (Open, [0, MAKE, 0o755, 0, 0, 0], ALLOW),
            (Openat, [0, 0, MAKE, 0o2755, 0, 0], NOTIFY),
            (Openat, [0, 0, TMP, 0o2755, 0, 0], NOTIFY),
            (Openat, [0, 0, u64::from(libc::O_DIRECTORY as u32), 0o2755, 0, 0], ALLOW),
            (Creat, [0, 0o4755, 0, 0, 0, 0], NOTIFY),
            (Mknod, [0, 0o104_755, 0, 0, 0, 0], NOTIFY),
            (Mknodat, [0, 0, 0o104_755, 0, 0, 0], NOTIFY),
            (Mknodat, [0, 0, 0o10_644, 0, 0, 0], ALLOW),
            (Openat2, [0; 6], UNKNOWN),
            (IoUring, [0; 6], UNKNOWN),
            (LandlockRestrictSelf, [0; 6], NOTIFY),
            (Prlimit, [0, 7, 0x1000, 0, 0, 0], ALLOW),
            (Prlimit, [1, 7, 0, 0x1000, 0, 0], ALLOW),
            (Prlimit, [1, 7, 0x1000, 0, 0, 0], REFUSE),
            (Prlimit, [9, 7, 0x7f_0000_0000, 0, 0, 0], REFUSE),
            (Schedule, [0, 8, 0, 0, 0, 0], ALLOW),
            (Schedule, [77, 8, 0, 0, 0, 0], ALLOW),
            (Schedule, [1, 8, 0, 0, 0, 0], REFUSE),
            (SetPriority, [0, 0, 5, 0, 0, 0], ALLOW),
            (SetPriority, [0, 1, 5, 0, 0, 0], REFUSE),
            (SetPriority, [1, 1, 5, 0, 0, 0], REFUSE),
            (SetPriority, [2, 0, 5, 0, 0, 0], REFUSE),
            (IoPriority, [1, 0, 5, 0, 0, 0], ALLOW),
            (IoPriority, [2, 77, 5, 0, 0, 0], ALLOW),
            (IoPriority, [1, 1, 5, 0, 0, 0], REFUSE),
            (IoPriority, [3, 0, 5, 0, 0, 0], REFUSE),
        ];
        for calls in &ARCHITECTURES {
            for (call, arguments, expected) in cases {
                let Some(number) = number(calls, *call) else { continue };
                let returned = run(&program, calls.architecture, number, *arguments);
                assert_eq!(returned, expected.k, "{call:?} {arguments:x?} on {:#x}", calls.architecture);
            }
        }
    }

    #[test]
    fn other_calls_are_allowed_and_other_architectures_refused() {
        let program = program(NOTIFY);
        for calls in &ARCHITECTURES {
            for number in (0..1000).filter(|number| calls.numbers.iter().all(|(known, _)| known != number)) {
                assert_eq!(run(&program, calls.architecture, number, [u64::MAX; 6]), ALLOW.k, "{number}");
            }
            assert_eq!(run(&program, calls.architecture, X32 + 90, [0; 6]), UNKNOWN.k);
            assert!(calls.numbers.is_sorted_by_key(|(number, _)| *number));
        }
        assert_eq!(run(&program, 0x8000_0015, 1, [0; 6]), UNKNOWN.k);
    }

    #[test]
    fn set_id_bits_are_refused_without_a_listener() {
        let program = program(REFUSE);
        let [calls, _] = &ARCHITECTURES;
        let number = number(calls, Fchmod).unwrap();
        assert_eq!(run(&program, calls.architecture, number, [0, 0o4755, 0, 0, 0, 0]), REFUSE.k);
        assert_eq!(run(&program, calls.architecture, number, [0, 0o755, 0, 0, 0, 0]), ALLOW.k);
        let number = self::number(calls, LandlockRestrictSelf).unwrap();
        assert_eq!(run(&program, calls.architecture, number, [0; 6]), ALLOW.k);
    }
}
