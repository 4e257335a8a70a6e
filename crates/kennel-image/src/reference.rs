//! Image names, by Docker's rules: `debian` is `docker.io/library/debian:latest`.
//!
//! The parser is handwritten, because every `kennel run` uses it, and compiling the usual regular expression would take
//! longer than parsing. A test compares it with that expression.

use crate::Digest;
use crate::error::{Error, Result, shown};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const HUB: &str = "docker.io";
const LIBRARY: &str = "library/";
/// Bytes in the longest name without tag and digest.
const LONGEST: usize = 255;

/// The full name of an image: registry, repository, and a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Version {
    Tag(String),
    Digest(Digest),
}

impl Reference {
    /// The registry, such as `docker.io` or `localhost:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in the registry, such as `library/debian`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The digest, if the name contains one.
    pub fn digest(&self) -> Option<&Digest> {
        match &self.version {
            Version::Digest(digest) => Some(digest),
            Version::Tag(_) => None,
        }
    }

    /// The tag or digest that is requested from a registry.
    pub(crate) fn version(&self) -> String {
        match &self.version {
            Version::Tag(tag) => tag.clone(),
            Version::Digest(digest) => digest.to_string(),
        }
    }

    /// The name as people write it, without default parts.
    pub fn familiar(&self) -> String {
        let full = self.to_string();
        let short = match full.strip_prefix("docker.io/") {
            Some(rest) => rest.strip_prefix(LIBRARY).unwrap_or(rest),
            None => &full,
        };
        short.to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match &self.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|why| {
            Error::new(
                kennel_types::ErrorCode::InvalidConfig,
                format!("invalid image name {}: {why}", shown(text.as_bytes())),
            )
            .advise("use a name such as debian:12, registry.example/team/app:1 or app@sha256:…")
        })
    }
}

impl Serialize for Reference {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| "its digest must be sha256: and 64 digits")?)),
        None => (text, None),
    };
    // A colon before a slash belongs to the registry's port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if let Some(tag) = tag
        && !is_tag(tag)
    {
        return Err("its tag must consist of letters, digits, _ . and -, and must not be too long");
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest),
        _ => (HUB, name),
    };
    if !is_host(registry) {
        return Err("its registry is not a host name");
    }
    let registry = if registry == "index.docker.io" { HUB } else { registry };
    let repository = if registry == HUB && !path.contains('/') { format!("{LIBRARY}{path}") } else { path.to_owned() };
    if registry.len() + 1 + repository.len() > LONGEST {
        return Err("it is too long");
    }
    if !repository.split('/').all(is_component) {
        return Err("each part must consist of lower-case letters and digits, with . _ - between them");
    }
    // A digest identifies the image completely. A tag next to it is only for people.
    let version = digest.map_or_else(|| Version::Tag(tag.unwrap_or("latest").to_owned()), Version::Digest);
    Ok(Reference { registry: registry.to_owned(), repository, version })
}

/// Whether the first part is a registry and not part of the repository: it looks like a host name, or cannot be
/// anything else.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.chars().any(|char| char.is_ascii_uppercase())
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) => {
                let address = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
                let port = rest.strip_prefix(':');
                return address && (rest.is_empty() || port.is_some_and(is_port));
            }
            None => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        edge(label.bytes().next())
            && edge(label.bytes().last())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().copied().is_some_and(word)
        && bytes.iter().all(|byte| word(*byte) || matches!(byte, b'.' | b'-'))
}

/// Lower-case letters and digits, separated by one of `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    let edges = text.starts_with(plain) && text.ends_with(plain);
    let between = |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-');
    edges && text.split(plain).all(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn full(text: &str) -> String {
        text.parse::<Reference>().unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
    }

    #[test]
    fn image_names_are_parsed_as_docker_parses_them() {
        for (text, whole) in [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("ann/app", "docker.io/ann/app:latest"),
            ("index.docker.io/debian", "docker.io/library/debian:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/a/b:c", "localhost:5000/a/b:c"),
            ("127.0.0.1:5000/app", "127.0.0.1:5000/app:latest"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("ghcr.io/a/b--c__d:1.0-x", "ghcr.io/a/b--c__d:1.0-x"),
        ] {
            assert_eq!(full(text), whole);
            assert_eq!(full(whole), whole, "a full name is its own");
        }
        assert_eq!(full(&format!("debian:12@{DIGEST}")), format!("docker.io/library/debian@{DIGEST}"));
        assert_eq!("debian".parse::<Reference>().unwrap().familiar(), "debian:latest");
        assert_eq!("ann/app:1".parse::<Reference>().unwrap().familiar(), "ann/app:1");
        assert_eq!("q.io/library/a".parse::<Reference>().unwrap().familiar(), "q.io/library/a:latest");
    }

    #[test]
    fn invalid_image_names_are_refused() {
        for text in [
            "",
            "/",
            "a/",
            "/a",
            "Debian",
            "a//b",
            "../a",
            "a/../b",
            "a b",
            "a:",
            "a:-x",
            "a@sha256:12",
            "-a",
            "a-",
            "a:b:c/d",
            "https://a.b/c",
            "a.b:x/c",
            "[::1/a",
            "a\u{0}b",
            "é",
            "a___b",
            "a._b",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
        assert!("a".repeat(300).parse::<Reference>().is_err());
        assert!(format!("a:{}", "b".repeat(129)).parse::<Reference>().is_err());
    }

    proptest! {
        /// The parser accepts what the usual regular expression accepts, with the same result. Capitals are left out,
        /// because the expression differs from Docker there.
        #[test]
        fn references_are_parsed_like_those_of_oci_spec(text in "[a-z0-9.:/@_-]{0,24}|([a-z0-9.]{1,6}:[0-9]{1,4}/)?[a-z0-9._/-]{1,12}(:[a-z0-9._-]{1,6})?") {
            let usual = text.parse::<oci_spec::distribution::Reference>();
            match text.parse::<Reference>() {
                Ok(ours) => {
                    let usual = usual.expect("the usual expression takes it too");
                    prop_assert_eq!(ours.registry(), usual.registry());
                    prop_assert_eq!(ours.repository(), usual.repository());
                    let version = ours.version();
                    prop_assert_eq!(Some(version.as_str()), usual.tag().or(usual.digest()));
                }
                // The parser is stricter with digests and host names.
                Err(_) => prop_assert!(usual.is_err() || text.contains('@') || text.contains('/'), "{}", text),
            }
        }
    }
}
