//! `fs/read_text_file` and `fs/write_text_file`.

use super::{Inside, Refusal};
use kennel_core::WriteOptions;
use serde::Deserialize;
use serde_json::{Value, json};

/// The largest file that is read, in bytes. Its content is one message, in which each byte takes up to six.
const READ: usize = 8 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Read {
    session_id: Option<String>,
    path: String,
    /// The first line, counted from 1.
    line: Option<usize>,
    /// The number of lines.
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Write {
    session_id: Option<String>,
    path: String,
    content: String,
}

impl Inside {
    pub(super) async fn read_text_file(&self, read: Read) -> Result<Value, Refusal> {
        let path = self.absolute(read.session_id.as_deref(), &read.path);
        let bytes = self.sandbox.files(None).await?.read(&path, READ).await?;
        let Ok(text) = String::from_utf8(bytes) else {
            return Err(Refusal::new(Refusal::INTERNAL, format!("read {path}: the file is not UTF-8 text")));
        };
        Ok(json!({ "content": selection(&text, read.line, read.limit) }))
    }

    pub(super) async fn write_text_file(&self, write: Write) -> Result<Value, Refusal> {
        let path = self.absolute(write.session_id.as_deref(), &write.path);
        self.sandbox.files(None).await?.write(&path, write.content.as_bytes(), WriteOptions::default()).await?;
        Ok(json!({}))
    }
}

/// Returns some lines of a text.
fn selection(text: &str, line: Option<usize>, limit: Option<usize>) -> String {
    let skipped = line.map_or(0, |line| line.saturating_sub(1));
    text.split_inclusive('\n').skip(skipped).take(limit.unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_selected_from_one() {
        let text = "one\ntwo\nthree";
        assert_eq!(selection(text, None, None), text);
        assert_eq!(selection(text, Some(1), Some(2)), "one\ntwo\n");
        assert_eq!(selection(text, Some(0), Some(1)), "one\n");
        assert_eq!(selection(text, Some(3), Some(9)), "three");
        assert_eq!(selection(text, Some(4), None), "");
        assert_eq!(selection(text, None, Some(0)), "");
    }
}
