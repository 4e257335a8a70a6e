//! Landlock: a second wall around files. What a sandbox can reach is below its root already; whoever finds a way around
//! that finds this. It also keeps it from sockets without a path (those of the host, where it has the host's network) and
//! from signalling anyone outside.

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

/// What the newest interface knows. A kernel that speaks an older one does what it can.
const NEWEST: ABI = ABI::V6;

/// Puts it up around this process and all that it starts, for ever.
pub(crate) fn put_up() -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("put up Landlock: {error}");
    let all = AccessFs::from_all(NEWEST);
    let root = PathFd::new("/").map_err(|error| failed(&error))?;
    let fence = Ruleset::default()
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(PathBeneath::new(root, all)))
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|error| failed(&error))?;
    match fence.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel does not have Landlock any more".to_owned()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}
