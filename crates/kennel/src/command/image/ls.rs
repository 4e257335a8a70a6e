//! `kennel image ls`.

use super::ImageJson;
use crate::command::ls::ago;
use crate::output::{print, print_json, table};
use crate::report;
use kennel_core::{Result, printable};
use kennel_engine::Engine;
use kennel_image::Image;
use kennel_types::format_bytes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  kennel image ls
  kennel image ls --format name,size      only these columns, separated by tabs, no header
  kennel image ls --json | jq '.[].reference'
  kennel image rm $(kennel image ls -q)";

/// List images
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ls {
    /// Print only ids, each once
    #[arg(short = 'q', long = "ids", conflicts_with = "json")]
    ids: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Print only these columns, separated by tabs
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with_all = ["json", "ids"])]
    format: Vec<Column>,
}

/// A column of the table of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Column {
    Name,
    Id,
    Manifest,
    Created,
    Size,
}

impl Column {
    /// Returns the text in this column for an image. It may be empty.
    fn cell(self, image: &Image) -> String {
        match self {
            Self::Name => printable(&image.reference.to_string()),
            Self::Id => image.id.to_string(),
            Self::Manifest => image.manifest.map(|digest| digest.to_string()).unwrap_or_default(),
            Self::Created => image.created.map(|seconds| seconds.to_string()).unwrap_or_default(),
            Self::Size => image.size.to_string(),
        }
    }
}

impl Ls {
    pub(super) fn run(&self, engine: &Engine) -> u8 {
        self.list(engine).unwrap_or_else(|error| report::failed(&error))
    }

    fn list(&self, engine: &Engine) -> Result<u8> {
        let images = engine.images()?.list()?;
        if self.json {
            return Ok(print_json(&images.into_iter().map(ImageJson::from).collect::<Vec<_>>()));
        }
        let lines: Vec<String> = if self.ids {
            let mut ids: Vec<String> = images.iter().map(|image| image.id.short()).collect();
            ids.sort();
            ids.dedup();
            ids
        } else if self.format.is_empty() {
            return Ok(print(&images_table(&images)));
        } else {
            let cells =
                |image: &Image| self.format.iter().map(|column| column.cell(image)).collect::<Vec<_>>().join("\t");
            images.iter().map(cells).collect()
        };
        Ok(if lines.is_empty() { 0 } else { print(&lines.join("\n")) })
    }
}

fn images_table(images: &[Image]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let row = |image: &Image| {
        let created = image.created.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        [
            printable(&image.reference.familiar()),
            image.id.short(),
            created.map_or("-".to_owned(), |seconds| ago(now.saturating_sub(Duration::from_secs(seconds)))),
            format_bytes(image.size),
        ]
    };
    table(["NAME", "ID", "CREATED", "SIZE"], images.iter().map(row))
}
