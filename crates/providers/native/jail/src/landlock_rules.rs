//! Landlock: a second restriction on file access. A sandbox can already reach only what is below its root; Landlock
//! still holds if someone finds a way around that. It also blocks abstract sockets outside the sandbox (those of the
//! host, if it has the host's network), and signals to processes outside.

use kennel_keeper::StartError;
use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

/// The newest Landlock version that is used. An older kernel enforces what it supports.
const NEWEST: ABI = ABI::V6;

/// Restricts this process and all its descendants permanently.
pub(crate) fn enforce() -> Result<(), StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::from(format!("enforce Landlock: {error}"));
    let all = AccessFs::from_all(NEWEST);
    let root = PathFd::new("/").map_err(|error| failed(&error))?;
    let status = Ruleset::default()
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(PathBeneath::new(root, all)))
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|error| failed(&error))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(failed(&"the kernel does not support it any more")),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}
