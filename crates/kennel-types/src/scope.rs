//! What a token of the server allows.

use serde::{Deserialize, Serialize};

/// What a token of the server allows. Each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at sandboxes, files, logs and events.
    Read,
    /// Run commands and change files in sandboxes that exist; start, stop and pause them.
    Exec,
    /// Create and remove sandboxes.
    Create,
    /// Everything, also what gives a sandbox access to the host.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Read, Self::Exec, Self::Create, Self::Admin];

    /// The name in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Exec => "exec",
            Self::Create => "create",
            Self::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("invalid scope {text:?}: expected read, exec, create or admin"))
    }
}
