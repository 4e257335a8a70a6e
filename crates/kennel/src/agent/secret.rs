//! The option `--secret`.

use kennel_core::Result;
use kennel_engine::{Caller, SecretSource};
use std::collections::BTreeMap;

/// A secret of an agent: the variable, and where its value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Secret {
    name: String,
    source: SecretSource,
}

impl Secret {
    /// Parses the entry of a setting.
    pub(super) fn new(name: &str, source: &str) -> std::result::Result<Self, String> {
        if name.is_empty() || name.contains(|char: char| char == '=' || char.is_whitespace() || char == '\0') {
            return Err(format!("invalid name of a variable: {name:?}"));
        }
        Ok(Self { name: name.to_owned(), source: source.parse()? })
    }
}

impl std::str::FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once('=') {
            Some((name, source)) => Self::new(name, source),
            None => Self::new(text, &format!("env:{text}")),
        }
    }
}

/// Reads secrets into the variables of an agent. The last one of a name wins.
pub(super) async fn read(secrets: &[Secret], caller: &Caller, env: &mut BTreeMap<String, String>) -> Result<()> {
    for Secret { name, source } in secrets {
        env.insert(name.clone(), source.read(name, caller).await?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_name_their_source() {
        let read = |text: &str| text.parse::<Secret>();
        assert_eq!(read("KEY"), read("KEY=env:KEY"));
        let command = SecretSource::Command("pass show a=b".into());
        assert_eq!(read("KEY=command:pass show a=b"), Ok(Secret { name: "KEY".into(), source: command }));
        for bad in ["", "=env:X", "A B=env:X", "KEY=value", "KEY="] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
