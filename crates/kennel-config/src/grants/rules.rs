//! The rule for each key of `sandbox` and of profiles: what it grants, and how it may differ from the user's own file.

use super::read;
use crate::{Cpus, KeyPath, OnUnavailable, Port, Provider, Setting, Time};
use kennel_types::{NetworkMode, Pull};

/// What a project's file may set at a key without trust.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// The key below `sandbox`. For a map, the key covers all its entries.
    key: &'static str,
    /// What the key grants, whatever the user's file sets.
    pub(super) opens: Opens,
    /// How the value may differ from the user's own file, if that sets the key.
    pub(super) over: Over,
}

/// What a setting grants beyond the default.
#[derive(Clone, Copy)]
pub(super) enum Opens {
    Nothing,
    Always(&'static str),
    /// It grants something for some values.
    If(fn(&Setting) -> bool, &'static str),
    /// It grants something if one of its paths is not a plain path in the project.
    Elsewhere(&'static str),
}

/// How a project's setting may differ from the user's own.
#[derive(Clone, Copy)]
pub(super) enum Over {
    /// Any value is allowed: it affects only the inside of the sandbox, or `opens` covers it completely.
    Free,
    /// The value must be the same.
    Same,
    /// Only a smaller number, which is stricter, is allowed. A value without a number is the loosest.
    AtMost(fn(&Setting) -> Option<u128>),
}

const DIRECTLY: &str = "commands run without a sandbox";
const FILES: &str = "files of this machine";

/// The rules for the keys of `sandbox`. A test checks that every key has one.
pub(super) const RULES: &[Rule] = &[
    rule("enabled", Opens::If(is_false, DIRECTLY), Over::Free),
    rule("provider", Opens::If(is_local, DIRECTLY), Over::Same),
    rule("onUnavailable", Opens::If(runs_directly, "commands may run without a sandbox"), Over::Free),
    // The project decides what is inside.
    rule("image", Opens::Nothing, Over::Free),
    rule("pull", Opens::Nothing, Over::AtMost(pulls)),
    rule("command", Opens::Nothing, Over::Free),
    rule("imageCommand", Opens::Nothing, Over::Free),
    rule("readOnly", Opens::Nothing, Over::AtMost(unless_true)),
    // Another runtime or user namespace may isolate less than the engine's default.
    rule("runtime", Opens::Always("what your engine runs containers with"), Over::Same),
    rule("userns", Opens::Always("who root inside is outside"), Over::Same),
    rule("workdir", Opens::Nothing, Over::Free),
    rule("env", Opens::Nothing, Over::Free),
    // The user's own tools rely on these.
    rule("labels", Opens::Nothing, Over::Same),
    rule("user", Opens::Nothing, Over::Same),
    rule("workspace", Opens::Elsewhere("a directory outside the project, to read and write"), Over::Same),
    // A list replaces the user's list. What it leaves out is not mounted, and what it adds is in the project.
    rule("volumes", Opens::Elsewhere("files outside the project"), Over::Free),
    rule("data", Opens::Nothing, Over::AtMost(if_true)),
    // Volumes that belong to this project.
    rule("caches", Opens::Nothing, Over::Free),
    rule("network", Opens::If(is_host, "the network of this machine"), Over::AtMost(reach)),
    // A program that takes a port of the host can impersonate another service.
    rule("ports", Opens::If(takes_a_port, "a port of this machine"), Over::Free),
    // What listens there does what the inside asks for, with the rights of the user.
    rule("sockets", Opens::Always("a socket of this machine"), Over::Free),
    rule("memory", Opens::Nothing, Over::AtMost(amount)),
    rule("cpus", Opens::Nothing, Over::AtMost(amount)),
    rule("pids", Opens::Nothing, Over::AtMost(amount)),
    rule("disk", Opens::Nothing, Over::AtMost(amount)),
    rule("toolchains", Opens::Nothing, Over::Same),
    rule("extraToolchains", Opens::Always("directories of this machine, to read"), Over::Same),
    rule("nesting", Opens::If(is_true, "more of the kernel"), Over::Free),
    rule("protectGit", Opens::If(is_false, "git hooks that the inside may change"), Over::Free),
    rule("timeout", Opens::Nothing, Over::AtMost(amount)),
    rule("commandTimeout", Opens::Nothing, Over::AtMost(amount)),
    rule("startupTimeout", Opens::Nothing, Over::AtMost(amount)),
    // Sandboxes that are kept use disk space. Sandboxes that are removed lose what the user wanted to inspect.
    rule("autoRemove", Opens::Nothing, Over::Same),
    rule("idleTimeout", Opens::Nothing, Over::AtMost(amount)),
    rule("idlePause", Opens::Nothing, Over::AtMost(amount)),
    // Containers are identified by their names.
    rule("namePrefix", Opens::Nothing, Over::Same),
    rule("vm.dataDir", Opens::Always(FILES), Over::Same),
    rule("vm.consoleLogDir", Opens::Always(FILES), Over::Same),
    rule("vm.kernelPath", Opens::Always(FILES), Over::Same),
    rule("vm.initrdPath", Opens::Always(FILES), Over::Same),
    rule("vm.baseDiskPath", Opens::Always(FILES), Over::Same),
    rule("vm.idleTimeout", Opens::Nothing, Over::AtMost(amount)),
    rule("vm.cpus", Opens::Nothing, Over::AtMost(amount)),
    rule("vm.memory", Opens::Nothing, Over::AtMost(amount)),
];

/// The rules for the keys of a profile that `sandbox` does not have. All others have the rule of the key in `sandbox`.
const PROFILE_RULES: &[Rule] = &[
    rule("name", Opens::Nothing, Over::Free),
    rule("noWorkspace", Opens::Nothing, Over::Free),
    rule("keepAlive", Opens::Nothing, Over::Free),
];

/// The rules for the keys of `container`, apart from the profiles.
const CONTAINER_RULES: &[Rule] = &[
    // The user's default profile may be stricter than a sandbox without a profile.
    rule("enabled", Opens::If(is_false, "commands run without your default profile"), Over::Free),
    rule("runtime", Opens::If(is_local, DIRECTLY), Over::Same),
    // The profile may be one of the user's own, which grants more than this project should have.
    rule("defaultProfile", Opens::Always("the profile in which your commands run"), Over::Same),
];

impl Rule {
    /// Returns the rule for a setting, or `None` for a key that does not exist.
    pub(super) fn for_key(key: &KeyPath) -> Option<Self> {
        let (section, below) = key.segments().split_first()?;
        let find = |rules: &[Self], below: &[String]| rules.iter().find(|rule| rule.covers(below)).copied();
        match (section.as_str(), below) {
            ("sandbox", below) => Some(find(RULES, below).unwrap_or(UNKNOWN)),
            ("container", [profiles, _, below @ ..]) if profiles == "profiles" => {
                Some(find(PROFILE_RULES, below).or_else(|| find(RULES, below)).unwrap_or(UNKNOWN))
            }
            ("container", below) => Some(find(CONTAINER_RULES, below).unwrap_or(UNKNOWN)),
            // In process mode, this is a program of the host. In container mode, it gets the user's secrets.
            ("agent", _) => Some(rule("", Opens::Always("the agent that Kennel starts for you"), Over::Same)),
            // These settings could substitute another image for one that the user trusts, or fill the disk.
            ("images", [key]) if key == "maxSize" => {
                Some(rule("", Opens::Always("how much an image may take"), Over::Same))
            }
            ("images", _) => Some(rule("", Opens::Always("where your images come from"), Over::Same)),
            _ => None,
        }
    }

    fn covers(&self, below: &[String]) -> bool {
        let mut names = below.iter();
        self.key.split('.').all(|part| names.next().is_some_and(|name| name == part))
    }
}

/// A key without a rule needs trust.
const UNKNOWN: Rule = rule("", Opens::Always("a setting without a rule"), Over::Same);

const fn rule(key: &'static str, opens: Opens, over: Over) -> Rule {
    Rule { key, opens, over }
}

fn is_true(setting: &Setting) -> bool {
    read(setting) != Some(false)
}

fn is_false(setting: &Setting) -> bool {
    read(setting) != Some(true)
}

fn is_local(setting: &Setting) -> bool {
    read(setting) == Some(Provider::Local)
}

fn runs_directly(setting: &Setting) -> bool {
    read(setting) != Some(OnUnavailable::Error)
}

fn is_host(setting: &Setting) -> bool {
    !matches!(read(setting), Some(NetworkMode::None | NetworkMode::Bridge))
}

fn takes_a_port(setting: &Setting) -> bool {
    read(setting).is_none_or(|ports: Vec<Port>| ports.iter().any(|port| port.host.is_some()))
}

/// A switch that restricts when it is on.
fn unless_true(setting: &Setting) -> Option<u128> {
    read(setting).map(|on: bool| u128::from(!on))
}

/// A switch that grants more when it is on.
fn if_true(setting: &Setting) -> Option<u128> {
    read(setting).map(|on: bool| u128::from(on))
}

fn reach(setting: &Setting) -> Option<u128> {
    Some(match read(setting)? {
        NetworkMode::None => 0,
        NetworkMode::Bridge => 1,
        NetworkMode::Host => 2,
    })
}

fn pulls(setting: &Setting) -> Option<u128> {
    Some(match read(setting)? {
        Pull::Never => 0,
        Pull::Missing => 1,
        Pull::Always => 2,
    })
}

/// A size, a count, a number of CPUs or a time, as a number that is comparable within its key.
fn amount(setting: &Setting) -> Option<u128> {
    let number = read(setting).map(|number: u64| u128::from(number) * 1000);
    let number = number.or_else(|| read(setting).map(|Cpus(thousandths)| u128::from(thousandths)));
    number.or_else(|| read(setting).map(|Time(time)| time.as_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    /// Every key of a section, with those of sections in it.
    fn keys(shape: &Shape, above: &str, all: &mut Vec<String>) {
        let Shape::Section(fields) = shape else { unreachable!("it is a section") };
        for field in fields {
            let key = format!("{above}{}", field.name);
            match &field.shape {
                Shape::Section(_) => keys(&field.shape, &format!("{key}."), all),
                _ => all.push(key),
            }
        }
    }

    #[test]
    fn every_key_has_one_rule_and_every_rule_a_key() {
        let (_, sandbox) = Shape::root().under("sandbox").unwrap();
        let mut known = Vec::new();
        keys(sandbox, "", &mut known);
        let mut ruled: Vec<String> = RULES.iter().map(|rule| rule.key.to_owned()).collect();
        known.sort();
        ruled.sort();
        assert_eq!(ruled, known, "decide in RULES what a project may say at a new key without trust");
    }

    #[test]
    fn every_key_of_a_profile_has_a_rule() {
        let profile: KeyPath = ["container", "profiles", "p"].into_iter().collect();
        let (_, shape) = Shape::root().lookup(&profile).unwrap();
        let mut known = Vec::new();
        keys(shape, "", &mut known);
        for key in known {
            let ruled = PROFILE_RULES.iter().chain(RULES).any(|rule| rule.key == key);
            assert!(ruled, "decide what a project's profile may say at {key} without trust");
        }
        for rule in PROFILE_RULES {
            assert!(Shape::root().lookup(&profile.with(rule.key)).is_ok(), "{}", rule.key);
        }
        for rule in CONTAINER_RULES {
            let key: KeyPath = ["container", rule.key].into_iter().collect();
            assert!(Shape::root().lookup(&key).is_ok(), "{}", rule.key);
        }
    }

    #[test]
    fn path_keys_are_never_free() {
        for rule in RULES {
            let key: KeyPath = std::iter::once("sandbox").chain(rule.key.split('.')).collect();
            let (_, shape) = Shape::root().lookup(&key).unwrap();
            let element = if let Shape::List(of) = shape { of } else { shape };
            let path = matches!(element, Shape::HostPath | Shape::Volume | Shape::Socket);
            let guarded = matches!(rule.opens, Opens::Always(_) | Opens::Elsewhere(_));
            assert!(!path || guarded, "{}", rule.key);
        }
    }
}
