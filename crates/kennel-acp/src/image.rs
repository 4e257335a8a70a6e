//! The image of an agent: a build file, written from its preset. The name of the image contains a hash of the file, so that an
//! image is built again only if something changes, and different versions do not replace each other.

use crate::Preset;
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The build argument with the address of npm's registry, which is also npm's own variable.
pub const REGISTRY: &str = "NPM_CONFIG_REGISTRY";

/// The image of an agent, which may not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentImage {
    /// The name of the image.
    pub tag: String,
    /// The build file.
    pub dockerfile: String,
}

impl AgentImage {
    /// Returns the image of an agent. Fails if Kennel does not know how to install the agent.
    pub fn of(preset: &Preset) -> Result<Self> {
        let invalid = |why: String| Error::new(ErrorCode::InvalidConfig, format!("agent {}: {why}", preset.name));
        // The preset may have been changed since it was read.
        preset.check_words().map_err(invalid)?;
        let (Some(package), Some(version)) = (preset.package(), &preset.version) else {
            let message = format!("agent {}: there is no npm package to build an image with", preset.name);
            return Err(Error::new(ErrorCode::Unsupported, message)
                .advise("build an image with the agent in it by hand, or set npm and version in the agent's preset"));
        };
        let dockerfile = dockerfile(preset, &package);
        let hash = Sha256::digest(&dockerfile);
        let hash = hash[..6].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        // A tag has no plus sign.
        let tag = format!("kennel-agent/{}:{}-{hash}", preset.name, version.replace('+', "_"));
        Ok(Self { tag, dockerfile })
    }
}

fn dockerfile(preset: &Preset, package: &str) -> String {
    let mut text = format!("# The agent {}, from its preset\nFROM {}\n", preset.name, preset.base);
    let mut line = |line: &str| {
        let _ = writeln!(text, "{line}"); // a String takes everything
    };
    if !preset.packages.is_empty() {
        line("RUN apt-get update \\");
        line(&format!(" && apt-get install --yes --no-install-recommends {} \\", preset.packages.join(" ")));
        line(" && rm -rf /var/lib/apt/lists/*");
    }
    line(&format!("ARG {REGISTRY}"));
    line(&format!("RUN npm install --global --no-audit --no-fund {package} && npm cache clean --force"));
    line("WORKDIR /workspace");
    // The form with quotes runs no shell. JSON escapes what a build file would interpret.
    line(&format!("ENTRYPOINT {}", serde_json::json!(preset.command)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_follows_the_content() {
        let preset = Preset::find("claude-code", None).unwrap();
        let image = AgentImage::of(&preset).unwrap();
        assert!(image.tag.starts_with("kennel-agent/claude-code:0.99.1-"), "{}", image.tag);
        assert_eq!(AgentImage::of(&preset).unwrap(), image);
        let other = |change: fn(&mut Preset)| {
            let mut preset = preset.clone();
            change(&mut preset);
            AgentImage::of(&preset).unwrap().tag
        };
        let tags = [
            image.tag.clone(),
            other(|preset| preset.base = "other".into()),
            other(|preset| preset.version = Some("1.0.0+x".into())),
            other(|preset| preset.packages.clear()),
            other(|preset| preset.command.push("x".into())),
        ];
        assert_eq!(tags.iter().collect::<std::collections::BTreeSet<_>>().len(), tags.len(), "{tags:?}");
        assert!(tags.iter().all(|tag| !tag.contains('+')));
    }

    #[test]
    fn nothing_of_a_preset_ends_a_line() {
        let mut preset = Preset::find("gemini", None).unwrap();
        preset.command = vec!["x\"\nRUN y".into()];
        let text = AgentImage::of(&preset).unwrap().dockerfile;
        assert!(!text.lines().any(|line| line.starts_with("RUN y")), "{text}");
        preset.version = Some("1\nRUN y".into());
        assert_eq!(AgentImage::of(&preset).unwrap_err().code(), ErrorCode::InvalidConfig);
        let goose = Preset::find("goose", None).unwrap();
        assert_eq!(AgentImage::of(&goose).unwrap_err().code(), ErrorCode::Unsupported);
    }
}
