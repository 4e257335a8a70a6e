//! Conditions that sandboxes of a listing must meet.

use kennel_types::{SandboxInfo, Status};

/// A condition that a listed sandbox must meet. As text it is `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The status.
    Status(Status),
    /// The provider's name.
    Provider(String),
    /// A part of the name.
    Name(String),
    /// The image's name.
    Image(String),
    /// A label, and its value if one is given.
    Label(String, Option<String>),
}

impl std::str::FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        let owned = value.to_owned();
        match key {
            "status" => {
                let status = Status::ALL.iter().find(|status| status.to_string() == value);
                let unknown = || format!("unknown status {value:?}: expected created, running, paused or stopped");
                status.copied().map(Self::Status).ok_or_else(unknown)
            }
            "provider" => Ok(Self::Provider(owned)),
            "name" => Ok(Self::Name(owned)),
            "image" => Ok(Self::Image(owned)),
            "label" => Ok(match value.split_once('=') {
                Some((key, value)) => Self::Label(key.to_owned(), Some(value.to_owned())),
                None => Self::Label(owned, None),
            }),
            _ => Err(format!("unknown filter {key:?}: expected status, provider, name, image or label")),
        }
    }
}

impl Filter {
    /// Whether the sandbox meets the condition.
    pub fn fits(&self, sandbox: &SandboxInfo) -> bool {
        match self {
            Self::Status(status) => sandbox.status == *status,
            Self::Provider(provider) => sandbox.provider == *provider,
            Self::Name(name) => sandbox.name.contains(name.as_str()),
            Self::Image(image) => sandbox.image.as_deref() == Some(image),
            Self::Label(key, None) => sandbox.labels.contains_key(key),
            Self::Label(key, value) => sandbox.labels.get(key) == value.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for bad in ["running", "status=gone", "color=red", ""] {
            assert!(bad.parse::<Filter>().is_err(), "{bad}");
        }
        assert_eq!("label=a=b=c".parse(), Ok(Filter::Label("a".into(), Some("b=c".into()))));
        assert_eq!("label=a".parse(), Ok(Filter::Label("a".into(), None)));
    }
}
