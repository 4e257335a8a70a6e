//! `kennel explain seccomp`: the system calls that sandboxes may make, and why.
//!
//! Everything here comes from `kennel_syscalls`, from which the filters are generated.

use kennel_syscalls::{ALLOWED, Call, Condition, Group, NESTING, Operation, allowed_if};
use serde::Serialize;

/// The width of a line of calls.
const WIDTH: usize = 100;

/// What the list does not show.
const NOTES: &str = "\
Any other call fails, usually with ENOSYS, as on an older kernel.
A Podman on another machine uses its own list instead.
The keeper restricts commands further: no call sets a set-user-id or set-group-id bit or changes
the limits of other processes or the scheduling of process 1, and openat2 returns ENOSYS.
";

/// The allowed system calls, grouped by the reason why they are allowed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Syscalls {
    /// The architecture that the numbers of the calls belong to.
    architecture: &'static str,
    /// Allowed with any arguments.
    allowed: Vec<Allowed>,
    /// Allowed only with certain arguments.
    allowed_with_arguments: Vec<Restricted>,
    /// Allowed with any arguments if sandboxes may be created inside.
    allowed_with_nesting: Vec<Allowed>,
}

#[derive(Serialize)]
struct Allowed {
    why: &'static str,
    calls: Vec<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Restricted {
    why: &'static str,
    call: &'static str,
    /// The call is allowed if all conditions of one of these lists hold.
    any_of: Vec<Vec<Requirement>>,
}

/// A condition on an argument.
#[derive(Serialize)]
struct Requirement {
    /// The index of the argument. The first is 0.
    argument: u8,
    /// The bits that are compared; all if there is no mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<u64>,
    #[serde(flatten)]
    test: Test,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Test {
    Is(u64),
    IsNot(u64),
}

impl Syscalls {
    /// The list that this program's filters are generated from.
    pub(super) fn new() -> Self {
        let mut restricted: Vec<Restricted> = Vec::new();
        for rule in allowed_if() {
            let conditions = rule.conditions.into_iter().map(Requirement::from).collect();
            let (why, call) = (rule.why, rule.call.name());
            match restricted.iter_mut().find(|other| (other.why, other.call) == (why, call)) {
                Some(other) => other.any_of.push(conditions),
                None => restricted.push(Restricted { why, call, any_of: vec![conditions] }),
            }
        }
        Self {
            architecture: std::env::consts::ARCH,
            allowed: ALLOWED.iter().map(Allowed::from).collect(),
            allowed_with_arguments: restricted,
            allowed_with_nesting: NESTING.iter().map(Allowed::from).collect(),
        }
    }

    /// The list for people: each reason, then the calls that are allowed for it.
    pub(super) fn text(&self) -> String {
        let mut text =
            format!("These system calls are allowed on {}. Above each group is the reason.\n", self.architecture);
        text.push_str(NOTES);
        self.allowed.iter().for_each(|group| add(&mut text, group.why, &group.calls));
        text.push_str("\nAllowed only with certain arguments:\n");
        self.allowed_with_arguments.iter().for_each(|rule| add(&mut text, rule.why, &[rule.call]));
        text.push_str("\nAlso allowed with --nesting, with any arguments:\n");
        self.allowed_with_nesting.iter().for_each(|group| add(&mut text, group.why, &group.calls));
        text
    }
}

impl From<&Group> for Allowed {
    fn from(group: &Group) -> Self {
        Self { why: group.why, calls: group.calls.iter().map(Call::name).collect() }
    }
}

impl From<Condition> for Requirement {
    fn from((argument, operation, value): Condition) -> Self {
        let (mask, test) = match operation {
            Operation::Is => (None, Test::Is(value)),
            Operation::IsNot => (None, Test::IsNot(value)),
            Operation::Masked(mask) => (Some(mask), Test::Is(value)),
        };
        Self { argument, mask, test }
    }
}

/// Adds a reason and, below it, its calls in lines of at most `WIDTH` characters.
fn add(text: &mut String, why: &str, calls: &[&str]) {
    text.extend(["\n  ", why, "\n"]);
    let mut line = String::from("   ");
    for call in calls {
        if line.len() + 1 + call.len() > WIDTH {
            text.extend([&line, "\n"]);
            line.truncate(3);
        }
        line.extend([" ", call]);
    }
    text.extend([&line, "\n"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_and_every_call_is_listed() {
        let text = Syscalls::new().text();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let words: Vec<&str> = text.split_whitespace().collect();
        for Group { why, calls } in ALLOWED.iter().chain(NESTING) {
            assert!(lines.contains(why), "{why}");
            calls.iter().for_each(|call| assert!(words.contains(&call.name()), "{}", call.name()));
        }
        for rule in allowed_if() {
            assert!(lines.contains(&rule.why) && lines.contains(&rule.call.name()), "{rule:?}");
        }
        let calls = text.lines().filter(|line| line.starts_with("    "));
        calls.for_each(|line| assert!(line.len() <= WIDTH, "{line}"));
    }

    #[test]
    fn rules_of_one_call_are_alternatives() {
        let list = serde_json::to_value(Syscalls::new()).unwrap();
        let rules = list["allowedWithArguments"].as_array().unwrap();
        let of = |call: &str| rules.iter().filter(|rule| rule["call"] == call).collect::<Vec<_>>();
        let [personality] = of("personality")[..] else { panic!("{rules:?}") };
        assert_eq!(personality["anyOf"][1], serde_json::json!([{ "argument": 0, "is": 8 }]));
        let [clone] = of("clone")[..] else { panic!("{rules:?}") };
        assert_eq!(clone["anyOf"].as_array().unwrap().len(), 1);
        assert_eq!((&clone["anyOf"][0][0]["is"], clone["anyOf"][0][0]["mask"].is_u64()), (&0.into(), true));
    }
}
