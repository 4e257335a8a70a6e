//! Rewrites paths in messages, if the workspace is at another path inside than outside. Only the values at known places of known
//! messages are paths; all other bytes stay as they are. Text is never searched.

use crate::splice::{elements, value_range};
use std::fmt::Write;
use std::ops::Range;

/// The path of the workspace outside and inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMap {
    /// The absolute path for the client.
    pub outside: String,
    /// The absolute path in the sandbox.
    pub inside: String,
}

/// Where paths and `file:` URIs are in a message: keys, and `*` for each element of an array.
struct Places {
    paths: &'static [&'static str],
    uris: &'static [&'static str],
}

const OF_SESSION: Places = Places {
    paths: &[
        "params/cwd",
        "params/additionalDirectories/*",
        "params/mcpServers/*/command",
        "params/mcpServers/*/args/*",
        "params/mcpServers/*/env/*/value",
    ],
    uris: &[],
};
const OF_PROMPT: Places = Places { paths: &[], uris: &["params/prompt/*/uri", "params/prompt/*/resource/uri"] };
const OF_LIST: Places = Places { paths: &["params/cwd"], uris: &[] };
const OF_UPDATE: Places = Places {
    paths: &[
        "params/update/locations/*/path",
        "params/update/content/*/path",
        "params/update/content/*/changes/*/path",
        "params/update/content/*/changes/*/oldPath",
        "params/update/cwd",
    ],
    uris: &[
        "params/update/content/*/content/uri",
        "params/update/content/*/content/resource/uri",
        "params/update/content/uri",
        "params/update/content/resource/uri",
    ],
};
const OF_PERMISSION: Places = Places {
    paths: &[
        "params/toolCall/locations/*/path",
        "params/toolCall/content/*/path",
        "params/subject/toolCall/locations/*/path",
        "params/subject/toolCall/content/*/changes/*/path",
        "params/subject/toolCall/content/*/changes/*/oldPath",
        "params/subject/cwd",
    ],
    uris: &["params/toolCall/content/*/content/uri", "params/toolCall/content/*/content/resource/uri"],
};
const OF_LISTED: Places =
    Places { paths: &["result/sessions/*/cwd", "result/sessions/*/additionalDirectories/*"], uris: &[] };
const OF_INITIALIZED: Places = Places { paths: &["result/authMethods/*/_meta/terminal-auth/command"], uris: &[] };

impl PathMap {
    /// Rewrites a message of the client. Returns `None` if it stays as it is.
    pub(crate) fn of_client(&self, method: &str, line: &[u8]) -> Option<Vec<u8>> {
        let places = match method {
            "session/new" | "session/load" | "session/resume" | "session/fork" => &OF_SESSION,
            "session/prompt" => &OF_PROMPT,
            "session/list" => &OF_LIST,
            _ => return None,
        };
        rewrite(line, places, |path| replace(path, &self.outside, &self.inside))
    }

    /// Rewrites a request or notification of the agent. Returns `None` if it stays as it is.
    pub(crate) fn of_agent(&self, method: &str, line: &[u8]) -> Option<Vec<u8>> {
        let places = match method {
            "session/update" => &OF_UPDATE,
            "session/request_permission" => &OF_PERMISSION,
            _ => return None,
        };
        rewrite(line, places, |path| self.outside_of(path))
    }

    /// Rewrites a response of the agent to a request of this method. Returns `None` if it stays as it is.
    pub(crate) fn of_response(&self, method: &str, line: &[u8]) -> Option<Vec<u8>> {
        let places = match method {
            "session/list" => &OF_LISTED,
            "initialize" => &OF_INITIALIZED,
            _ => return None,
        };
        rewrite(line, places, |path| self.outside_of(path))
    }

    /// Returns the path outside for one in the workspace inside. Returns `None` for any other path.
    pub(crate) fn outside_of(&self, path: &str) -> Option<String> {
        replace(path, &self.inside, &self.outside)
    }
}

/// Returns a path with another beginning, if it has this one.
fn replace(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", to.trim_end_matches('/')))
}

fn rewrite(line: &[u8], places: &Places, map: impl Fn(&str) -> Option<String>) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(line).ok()?;
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for place in places.paths {
        find(text, 0..text.len(), place, &mut |range, path| {
            edits.push((range, map(path)?));
            Some(())
        });
    }
    for place in places.uris {
        find(text, 0..text.len(), place, &mut |range, uri| {
            let path = decoded(uri.strip_prefix("file://")?)?;
            edits.push((range, format!("file://{}", encoded(&map(&path)?))));
            Some(())
        });
    }
    if edits.is_empty() {
        return None;
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut changed = String::with_capacity(text.len());
    let mut at = 0;
    for (range, value) in edits {
        changed.push_str(&text[at..range.start]);
        changed.push_str(&serde_json::Value::from(value).to_string());
        at = range.end;
    }
    changed.push_str(&text[at..]);
    Some(changed.into_bytes())
}

/// Calls `found` with each string at a place, and where it is in the text.
fn find(text: &str, range: Range<usize>, place: &str, found: &mut impl FnMut(Range<usize>, &str) -> Option<()>) {
    let (first, rest) = place.split_once('/').unwrap_or((place, ""));
    let inner = &text[range.clone()];
    let shift = |inner: Range<usize>| range.start + inner.start..range.start + inner.end;
    if first.is_empty() {
        if let Ok(string) = serde_json::from_str::<String>(inner) {
            found(range, &string);
        }
    } else if first == "*" {
        for element in elements(inner).unwrap_or_default() {
            find(text, shift(element), rest, found);
        }
    } else if let Some(value) = value_range(inner, first) {
        find(text, shift(value), rest, found);
    }
}

/// Encodes a path for a URI.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // a String takes everything
        }
    }
    text
}

/// Decodes the path of a URI.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> PathMap {
        PathMap { outside: "/home/me/pro ject".into(), inside: "/w".into() }
    }

    #[test]
    fn only_known_places_change() {
        let text = |line: Option<Vec<u8>>| line.map(|line| String::from_utf8(line).unwrap());
        let new = "{ \"params\" : {\"cwd\":\"/home/me/pro ject\", \"x\":\"/home/me/pro ject\", \"additionalDirectories\":[\"/home/me/pro ject/a\",\"/home/me/pro jects\",1],\"mcpServers\":[{\"command\":\"/home/me/pro ject/m\",\"args\":[\"--in=/home/me/pro ject\"],\"env\":[{\"name\":\"P\",\"value\":\"/home/me/pro ject/e\"}]}]} }\n";
        let expected = "{ \"params\" : {\"cwd\":\"/w\", \"x\":\"/home/me/pro ject\", \"additionalDirectories\":[\"/w/a\",\"/home/me/pro jects\",1],\"mcpServers\":[{\"command\":\"/w/m\",\"args\":[\"--in=/home/me/pro ject\"],\"env\":[{\"name\":\"P\",\"value\":\"/w/e\"}]}]} }\n";
        assert_eq!(text(map().of_client("session/new", new.as_bytes())).as_deref(), Some(expected));
        assert_eq!(map().of_client("session/cancel", new.as_bytes()), None);
        assert_eq!(map().of_client("session/new", b"{\"params\":{\"cwd\":\"/elsewhere\"}}"), None);

        let prompt = "{\"params\":{\"prompt\":[{\"type\":\"text\",\"text\":\"/home/me/pro ject\"},{\"uri\":\"file:///home/me/pro%20ject/a%25b\"},{\"resource\":{\"uri\":\"https://x/\"}}]}}";
        let expected = "{\"params\":{\"prompt\":[{\"type\":\"text\",\"text\":\"/home/me/pro ject\"},{\"uri\":\"file:///w/a%25b\"},{\"resource\":{\"uri\":\"https://x/\"}}]}}";
        assert_eq!(text(map().of_client("session/prompt", prompt.as_bytes())).as_deref(), Some(expected));

        let update = "{\"params\":{\"update\":{\"title\":\"/w/a\",\"locations\":[{\"path\":\"/w/a\"},{\"path\":\"rel\"}],\"content\":[{\"type\":\"diff\",\"path\":\"/w/\\u0062\"}],\"rawInput\":{\"path\":\"/w\"}}}}";
        let expected = "{\"params\":{\"update\":{\"title\":\"/w/a\",\"locations\":[{\"path\":\"/home/me/pro ject/a\"},{\"path\":\"rel\"}],\"content\":[{\"type\":\"diff\",\"path\":\"/home/me/pro ject/b\"}],\"rawInput\":{\"path\":\"/w\"}}}}";
        assert_eq!(text(map().of_agent("session/update", update.as_bytes())).as_deref(), Some(expected));
        let chunk = "{\"params\":{\"update\":{\"content\":{\"uri\":\"file:///w/a\"}}}}";
        let expected = "{\"params\":{\"update\":{\"content\":{\"uri\":\"file:///home/me/pro%20ject/a\"}}}}";
        assert_eq!(text(map().of_agent("session/update", chunk.as_bytes())).as_deref(), Some(expected));
        let listed = "{\"result\":{\"sessions\":[{\"cwd\":\"/w\"},{\"cwd\":\"/wide\"}]}}";
        let expected = "{\"result\":{\"sessions\":[{\"cwd\":\"/home/me/pro ject\"},{\"cwd\":\"/wide\"}]}}";
        assert_eq!(text(map().of_response("session/list", listed.as_bytes())).as_deref(), Some(expected));
        assert_eq!(map().of_response("session/new", listed.as_bytes()), None);
    }

    #[test]
    fn other_shapes_are_left_alone() {
        for line in
            ["", "[]", "{\"params\":[]}", "{\"params\":{\"cwd\":7,\"mcpServers\":{}}}", "{\"params\":{\"cwd\":null}}"]
        {
            assert_eq!(map().of_client("session/new", line.as_bytes()), None, "{line}");
        }
        assert_eq!((decoded("%"), decoded("%4"), decoded("%zz"), decoded("%ff")), (None, None, None, None));
        assert_eq!(decoded(&encoded("/caf\u{e9} %?#")).as_deref(), Some("/caf\u{e9} %?#"));
    }
}
