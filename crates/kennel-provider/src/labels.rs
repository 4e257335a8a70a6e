//! Labels that Kennel itself sets, on every provider. Labels of users cannot begin like these.

use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, Owner, SandboxSpec};
use std::collections::BTreeMap;

/// Marks everything that Kennel creates.
pub const KENNEL: &str = "kennel";
/// The session that a sandbox belongs to.
pub const SESSION: &str = "kennel.session";
/// The store that has recorded the session. Without this label, the session is only a name that a user chose.
pub const STORE: &str = "kennel.store";
/// The project that a sandbox belongs to.
pub const PROJECT: &str = "kennel.project";
/// The profile that a sandbox was created from.
pub const PROFILE: &str = "kennel.profile";
/// The pool that a sandbox was created for.
pub const POOL: &str = "kennel.pool";
/// The sockets of the host that programs inside can connect to, each `host:inside`, as a JSON list. It is only shown:
/// what is served is recorded on this machine.
pub const SOCKETS: &str = "kennel.sockets";
/// The user for whom it was created, as `uid:gid`.
pub const OWNER: &str = "kennel.owner";
/// The time at which a sandbox expires, in milliseconds since 1970. It is not among the labels of the provider, because it
/// can change.
pub const EXPIRES: &str = "kennel.expires";

/// Refuses labels that look like Kennel's own.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    let wrong = |key: &&String| key.is_empty() || *key == KENNEL || key.starts_with("kennel.");
    let Some(key) = labels.keys().find(wrong) else { return Ok(()) };
    let message = if key.is_empty() {
        "invalid label \"\": expected a name".to_owned()
    } else {
        format!("invalid label {key:?}: \"kennel\" and names that begin with \"kennel.\" are reserved for Kennel")
    };
    Err(Error::new(ErrorCode::InvalidConfig, message).advise("choose another name for the label"))
}

/// Returns Kennel's own labels of a sandbox that is created for `owner`.
pub fn own_labels(spec: &SandboxSpec, owner: Owner) -> BTreeMap<String, String> {
    let belongs = [
        (SESSION, &spec.session),
        (STORE, &spec.store),
        (PROJECT, &spec.project),
        (PROFILE, &spec.profile),
        (POOL, &spec.pool),
    ];
    let belongs = belongs.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
    let always = [(KENNEL, "true".to_owned()), (OWNER, format!("{}:{}", owner.uid, owner.gid))];
    let sockets: Vec<String> = spec.sockets.iter().map(ToString::to_string).collect();
    let sockets = (!sockets.is_empty()).then(|| (SOCKETS, serde_json::json!(sockets).to_string()));
    always.into_iter().chain(belongs).chain(sockets).map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_users_cannot_begin_with_kennel() {
        for bad in ["", "kennel", "kennel.id", "kennel.anything"] {
            assert!(check_labels(&BTreeMap::from([(bad.into(), String::new())])).is_err(), "{bad:?}");
        }
        for good in ["kennels", "my.kennel.id", "a"] {
            assert!(check_labels(&BTreeMap::from([(good.into(), String::new())])).is_ok(), "{good:?}");
        }
    }
}
