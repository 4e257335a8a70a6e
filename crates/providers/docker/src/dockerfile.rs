//! What a Dockerfile is built on. It is the engine that reads it: of it, only the names of images are of interest here, to
//! know which registries are asked.

use std::collections::{BTreeMap, BTreeSet};

/// The images that a file names, with these build arguments. Stages of its own are not told from images: nobody has a login for
/// a stage.
pub(crate) fn images(text: &str, given: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut values = BTreeMap::new();
    let mut images = BTreeSet::new();
    for line in instructions(text) {
        let mut words = line.split_whitespace();
        let Some(instruction) = words.next() else { continue };
        match instruction.to_ascii_uppercase().as_str() {
            "ARG" => values.extend(words.filter_map(|word| argument(word, given))),
            "FROM" => images.extend(words.find(|word| !word.starts_with("--")).map(|name| filled(name, &values))),
            "COPY" | "ADD" | "RUN" => {
                let options = words.take_while(|word| word.starts_with("--"));
                // `--from=image`, and `--mount=type=bind,from=image`.
                let parts = options.flat_map(|option| option.trim_start_matches("--").split(['=', ',']));
                let parts: Vec<&str> = parts.collect();
                images.extend(parts.windows(2).filter(|two| two[0] == "from").map(|two| filled(two[1], &values)));
            }
            _ => {}
        }
    }
    images
}

/// A name and its value: the one that is given, or the file's own.
fn argument(word: &str, given: &BTreeMap<String, String>) -> Option<(String, String)> {
    let (name, own) = word.split_once('=').map_or((word, None), |(name, own)| (name, Some(own)));
    let value = given.get(name).cloned().or_else(|| own.map(|own| own.trim_matches(['"', '\'']).to_owned()))?;
    Some((name.to_owned(), value))
}

/// The lines that mean something, each whole.
fn instructions(text: &str) -> Vec<String> {
    // A file for Windows may say that it is another.
    let says_so = |line: &str| line.starts_with('#') && line.replace(' ', "").eq_ignore_ascii_case("#escape=`");
    let goes_on = if text.lines().take_while(|line| line.starts_with('#')).any(says_so) { '`' } else { '\\' };
    let mut all = Vec::new();
    let mut open = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_suffix(goes_on) {
            Some(begun) => open.extend([begun, " "]),
            None => all.push(std::mem::take(&mut open) + line),
        }
    }
    all.push(open);
    all
}

/// A name with what stands in place of `$NAME`, `${NAME}` and `${NAME:-else}`. One that has no value has none here either.
fn filled(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out += before;
        let (name, instead) =
            if let Some((inner, after)) = after.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                rest = after;
                inner.split_once(":-").unwrap_or((inner, ""))
            } else {
                let end = after.find(|ch: char| !ch.is_ascii_alphanumeric() && ch != '_').unwrap_or(after.len());
                rest = &after[end..];
                (&after[..end], "")
            };
        out += values.get(name).map_or(instead, String::as_str);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_found() {
        let text = "# syntax=docker/dockerfile:1\n\
                    ARG HOST=quay.io TAG\n\
                    arg QUOTED=\"ghcr.io/team/app\"\n\
                    from --platform=linux/amd64 ${HOST}/base:$TAG AS first\n\
                    RUN --mount=type=bind,from=reg.example:5000/tools,target=/t \\\n  make && \\\n# a remark\n\
                    FROM nothing\n\
                    FROM $QUOTED\n\
                    FROM ${NONE:-docker.io/library/alpine}\n\
                    COPY --chown=1 --from=other.example/files:2 /a /b\n\
                    COPY a --from=no.example/x\n";
        let given = [("TAG".to_owned(), "7".to_owned())].into();
        let found: Vec<String> = images(text, &given).into_iter().collect();
        let expected = [
            "docker.io/library/alpine",
            "ghcr.io/team/app",
            "other.example/files:2",
            "quay.io/base:7",
            "reg.example:5000/tools",
        ];
        assert_eq!(found, expected, "what follows a line that goes on is of that line");
    }

    #[test]
    fn a_line_goes_on_where_the_file_says_so() {
        let two = |text: &str| images(text, &BTreeMap::new()).len();
        assert_eq!(two("FROM a\nRUN x=`date`\nFROM b\n"), 2);
        assert_eq!(two("# escape=`\nFROM a\nRUN x `\nFROM b\n"), 1);
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_read(text in ".{0,200}") {
            images(&text, &BTreeMap::new());
        }
    }
}
