//! Compiles the system call filter, so that starting a sandbox only has to load it.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::path::Path;

#[path = "src/syscalls.rs"]
mod syscalls;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/syscalls.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    assert_eq!(target, std::env::consts::ARCH, "the filter is compiled with the numbers of the machine that builds it");
    let arch: TargetArch = target.as_str().try_into().expect("an architecture that seccomp filters exist for");
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (number, _reason) in syscalls::ALLOWED {
        rules.insert(*number, Vec::new());
    }
    for (number, _reason, conditions) in syscalls::allowed_if() {
        let conditions = conditions.into_iter().map(|(argument, operation, value)| {
            let operation = match operation {
                syscalls::Operation::Is => Op::Eq,
                syscalls::Operation::IsNot => Op::Ne,
                syscalls::Operation::Masked(mask) => Op::MaskedEq(mask),
            };
            SeccompCondition::new(argument, Length::Dword, operation, value).expect("arguments are numbered 0 to 5")
        });
        let rule = SeccompRule::new(conditions.collect()).expect("a rule has conditions");
        rules.entry(number).or_default().push(rule);
    }
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, arch).expect("the actions differ");
    let program: BpfProgram = filter.try_into().expect("the filter is short enough");
    let bytes: Vec<u8> = program
        .iter()
        .flat_map(|step| {
            let [c0, c1] = step.code.to_ne_bytes();
            let [k0, k1, k2, k3] = step.k.to_ne_bytes();
            [c0, c1, step.jt, step.jf, k0, k1, k2, k3]
        })
        .collect();
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("filter.bpf"), bytes).expect("write to OUT_DIR");
}
