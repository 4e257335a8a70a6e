//! The progress of long operations, as lines of JSON.

use crate::{ApiError, ImageView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line of a pull. The last one is `done` or `error`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PullLine<E = ApiError> {
    /// The progress of a part of the image.
    Progress {
        /// The name of the part: a layer.
        part: String,
        /// What happens with it.
        doing: String,
        /// How many bytes are done, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        done_bytes: Option<u64>,
        /// How many bytes there are, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        total_bytes: Option<u64>,
    },
    /// Lines are missing, because the client read too slowly.
    Missed {
        /// How many.
        lines: u64,
    },
    /// The image is there.
    Done {
        /// The image, if it is in Kennel's own store. Engines have their own.
        #[serde(skip_serializing_if = "Option::is_none")]
        image: Option<ImageView>,
    },
    /// The image could not be pulled.
    Error {
        /// What went wrong.
        error: E,
    },
}

/// A line of a build. The last one is `done` or `error`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum BuildLine<E = ApiError> {
    /// A line of the builder or of a step.
    Output {
        /// The line.
        text: String,
    },
    /// Lines are missing, because the client read too slowly.
    Missed {
        /// How many.
        lines: u64,
    },
    /// The image was built.
    Done {
        /// Its name.
        image: String,
        /// The provider that has it.
        provider: String,
    },
    /// The image could not be built.
    Error {
        /// What went wrong.
        error: E,
    },
}
