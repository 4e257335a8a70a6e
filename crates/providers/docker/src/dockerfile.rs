//! Finds the images that a Dockerfile is based on, because their registries may need a login. Everything else in the
//! file is left to the engine.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the images that a Dockerfile refers to, but not its own build stages. `given` are the build arguments.
pub(crate) fn images(text: &str, given: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut values = BTreeMap::new();
    let mut stages: BTreeSet<String> = ["scratch".to_owned()].into();
    let mut images = BTreeSet::new();
    let mut begun = false;
    for line in instructions(text) {
        let mut words = line.split_whitespace();
        let Some(instruction) = words.next() else { continue };
        let mut found = Vec::new();
        let mut stage = None;
        match instruction.to_ascii_uppercase().as_str() {
            // An argument that is declared within a stage applies only there, and `FROM` cannot use it.
            "ARG" if !begun => words.for_each(|word| declare(word, given, &mut values)),
            "FROM" => {
                begun = true;
                let mut words = words.skip_while(|word| word.starts_with("--"));
                found.extend(words.next());
                stage = words.nth(1).map(str::to_ascii_lowercase);
            }
            "COPY" | "ADD" | "RUN" => {
                let options = words.take_while(|word| word.starts_with("--"));
                // `--from=image`, and `--mount=type=bind,from=image`.
                let parts = options.flat_map(|option| option.trim_start_matches("--").split(['=', ',']));
                let parts: Vec<&str> = parts.collect();
                found.extend(parts.windows(2).filter(|two| two[0] == "from").map(|two| two[1]));
            }
            _ => {}
        }
        let found = found.into_iter().map(|name| filled(unquoted(name), &values));
        let is_stage = |name: &String| {
            stages.contains(&name.to_ascii_lowercase()) || name.bytes().all(|byte| byte.is_ascii_digit())
        };
        images.extend(found.filter(|name| !is_stage(name)));
        stages.extend(stage);
    }
    images
}

/// Stores a build argument (`NAME` or `NAME=default`) in `values`, with the given value or its default.
fn declare(word: &str, given: &BTreeMap<String, String>, values: &mut BTreeMap<String, String>) {
    let (name, own) = word.split_once('=').map_or((word, None), |(name, own)| (name, Some(own)));
    let value = given.get(name).cloned().or_else(|| own.map(|own| filled(unquoted(own), values)));
    values.extend(value.map(|value| (name.to_owned(), value)));
}

fn unquoted(word: &str) -> &str {
    word.trim_matches(['"', '\''])
}

/// Returns the instructions, with continuation lines joined and here-documents removed.
fn instructions(text: &str) -> Vec<String> {
    let text = text.trim_start_matches('\u{feff}');
    // A file for Windows may declare another escape character.
    let says_so = |line: &str| line.replace(' ', "").eq_ignore_ascii_case("#escape=`");
    let goes_on = if text.lines().take_while(|line| line.starts_with('#')).any(says_so) { '`' } else { '\\' };
    let mut all = Vec::new();
    let mut open = String::new();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    while let Some(line) = lines.next() {
        if let Some(begun) = line.strip_suffix(goes_on).filter(|begun| !begun.ends_with(goes_on)) {
            open.extend([begun, " "]);
            continue;
        }
        let whole = std::mem::take(&mut open) + line;
        for end in documents(&whole) {
            lines.by_ref().find(|line| *line == end);
        }
        all.push(whole);
    }
    all.push(open);
    all
}

/// Returns the end markers of the here-documents that begin after a line (`RUN <<END`).
fn documents(line: &str) -> Vec<String> {
    let takes = ["RUN", "COPY", "ADD"]
        .iter()
        .any(|word| line.get(..word.len()).is_some_and(|it| it.eq_ignore_ascii_case(word)));
    let begins = line.split("<<").skip(1).filter(|_| takes);
    let ends = begins.map(|rest| {
        let rest = rest.strip_prefix('-').unwrap_or(rest).trim_start_matches(['"', '\'']);
        let end = rest.find(|ch: char| !ch.is_alphanumeric() && ch != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    ends.filter(|end| !end.is_empty()).collect()
}

/// Expands `$NAME`, `${NAME}` and `${NAME:-default}` in a name. A variable without a value becomes empty.
fn filled(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out += before;
        let inner = after.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let (name, instead) = if let Some((inner, after)) = inner {
            rest = after;
            inner.split_once(":-").unwrap_or((inner, ""))
        } else {
            let end = after.find(|ch: char| !ch.is_ascii_alphanumeric() && ch != '_').unwrap_or(after.len());
            rest = &after[end..];
            (&after[..end], "")
        };
        out += values.get(name).map(String::as_str).filter(|value| !value.is_empty()).unwrap_or(instead);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str) -> Vec<String> {
        let given = [("TAG".to_owned(), "7".to_owned()), ("EMPTY".to_owned(), String::new())].into();
        images(text, &given).into_iter().collect()
    }

    #[test]
    fn image_names_are_found() {
        let text = "\u{feff}# syntax=docker/dockerfile:1\n\
                    ARG HOST=quay.io TAG\n\
                    arg QUOTED=\"ghcr.io/team/app\" MADE=${HOST}/made\n\
                    from --platform=linux/amd64 ${HOST}/base:$TAG AS first\n\
                    RUN --mount=type=bind,from=reg.example:5000/tools,target=/t \\\n  make && \\\n# a remark\n\
                    FROM nothing\r\n\
                    FROM \"$QUOTED\"\n\
                    ARG HOST=elsewhere\n\
                    FROM $MADE\n\
                    FROM ${NONE:-docker.io/library/alpine}\n\
                    COPY --chown=1 --from=other.example/files:2 /a /b\n\
                    COPY a --from=no.example/x\n";
        let expected = [
            "docker.io/library/alpine",
            "ghcr.io/team/app",
            "other.example/files:2",
            "quay.io/base:7",
            "quay.io/made",
            "reg.example:5000/tools",
        ];
        assert_eq!(found(text), expected, "a continued line belongs to the line before");
        assert_eq!(found("ARG EMPTY=x\nFROM ${EMPTY:-quay.io/a}\n"), ["quay.io/a"]);
    }

    #[test]
    fn build_stages_are_not_images() {
        let text = "FROM quay.io/a AS Build\nFROM scratch\nCOPY --from=build /x /\nCOPY --from=0 /x /\nFROM build as b2\nFROM b2\n";
        assert_eq!(found(text), ["quay.io/a"]);
    }

    #[test]
    fn continued_lines_are_joined() {
        assert_eq!(found("FROM a\nRUN x=`date`\nFROM b\n"), ["a", "b"]);
        assert_eq!(found("# escape=`\nFROM a\nRUN x `\nFROM b\n"), ["a"]);
        assert_eq!(
            found("FROM a\nRUN echo \\\\\nFROM b\n"),
            ["a", "b"],
            "two escape characters are one literal character"
        );
    }

    #[test]
    fn here_documents_are_skipped() {
        let text =
            "FROM a\nRUN <<ONE cat && <<-'TWO' cat\nFROM b\nONE\nFROM c\nTWO\nFROM d\nRUN echo 1 <<< x\nFROM e\n";
        assert_eq!(found(text), ["a", "d", "e"]);
    }

    proptest! {
        #[test]
        fn any_dockerfile_is_parsed(pieces in proptest::collection::vec(prop_oneof![
            Just("FROM "), Just("ARG A="), Just("ARG A\n"), Just("COPY --from="), Just("RUN <<E\n"), Just("E\n"), Just("$"), Just("${"),
            Just("A"), Just("}"), Just(":-"), Just("\\\n"), Just("\n"), Just("é"), Just("\""), Just(" "), Just("--"), Just("quay.io/x"),
        ], 0..40)) {
            let found = found(&pieces.concat());
            prop_assert!(found.iter().all(|name| !name.contains(char::is_whitespace)), "{found:?}");
        }
    }
}
