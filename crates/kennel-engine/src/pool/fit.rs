//! Whether the members of a pool fit a sandbox.

use super::Pool;
use super::wire::{ForSession, ForWorkspace};
use kennel_types::{NetworkMode, ProviderKind, SandboxSpec};
use serde_json::Value;

/// Returns why the members of a pool do not fit a sandbox, or `None` if they do. A native member has nothing but the kind of
/// its network. Others are whole sandboxes.
pub(crate) fn unfit(pool: &Pool, wanted: &SandboxSpec, session: Option<&ForSession>) -> Option<String> {
    let name = &pool.name;
    if pool.spec.profile.is_some() && pool.spec.profile != wanted.profile {
        return Some(format!("pool {name} is for another profile"));
    }
    if pool.provider == ProviderKind::Native {
        let shares_network = |spec: &SandboxSpec| spec.network == Some(NetworkMode::Host);
        let same = shares_network(&pool.spec) == shares_network(wanted);
        return (!same).then(|| format!("the members of pool {name} have another kind of network"));
    }
    let Some(session) = session else {
        if pool.sessions.is_some() {
            return Some(format!("the members of pool {name} are for sessions"));
        }
        return different(pool, &differences(&pool.spec, wanted));
    };
    let Some(members) = &pool.sessions else {
        return Some(format!("the members of pool {name} belong to no session"));
    };
    match (&members.workspaces, &session.workspace) {
        // What is read-only in a git repository is decided when the sandbox is created.
        (_, ForWorkspace::Clone) => return Some("a workspace is cloned before its sandbox is created".to_owned()),
        (Some(base), ForWorkspace::Own(wanted)) if base == wanted => {}
        (None, ForWorkspace::AsSpecified) => {}
        (Some(_), _) => {
            return Some(format!("the members of pool {name} have a workspace of their own, and cannot get another"));
        }
        (None, _) => return Some(format!("the members of pool {name} have no workspace of their own")),
    }
    // The sandbox of a session is removed by the engine, whatever it was created with.
    let wanted = SandboxSpec { auto_remove: false, ..wanted.clone() };
    different(pool, &differences(&pool.spec, &wanted))
}

/// Returns the reason of a miss, if a sandbox and the members of a pool differ.
fn different(pool: &Pool, differing: &[String]) -> Option<String> {
    let name = &pool.name;
    (!differing.is_empty()).then(|| format!("the members of pool {name} differ in: {}", differing.join(", ")))
}

/// Returns the fields in which a sandbox differs from the members of a pool. A member is renamed when it is claimed, and has
/// been started by then.
fn differences(pool: &SandboxSpec, wanted: &SandboxSpec) -> Vec<String> {
    let fields = |spec: &SandboxSpec| {
        let spec = SandboxSpec { name: None, pool: None, startup_ms: None, ..spec.clone() };
        match serde_json::to_value(spec) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        }
    };
    let (members, wanted) = (fields(pool), fields(wanted));
    let all = members.keys().chain(wanted.keys().filter(|key| !members.contains_key(*key)));
    all.filter(|key| members.get(*key) != wanted.get(*key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let pool = SandboxSpec { image: Some("a".into()), name: Some("x".into()), ..SandboxSpec::default() };
        assert_eq!(differences(&pool, &SandboxSpec { name: None, startup_ms: Some(1), ..pool.clone() }), [""; 0]);
        let wanted = SandboxSpec {
            labels: [("a".into(), "b".into())].into(),
            idle_pause_ms: Some(1),
            workspace: Some("/w".into()),
            ..pool.clone()
        };
        let mut found = differences(&pool, &wanted);
        found.sort();
        assert_eq!(found, ["idlePauseMs", "labels", "workspace"]);
    }
}
