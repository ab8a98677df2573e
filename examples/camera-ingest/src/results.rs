// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of motion detection and models: JSON in a stream, each keyed by its frame.
//!
//! The form on the wire is that of the Python package (docs/python-publish.md):
//! `{"session":"1234","sequence":5,"value":{…}}` in a stream with the caps
//! `application/x-frameshare-results`.

use serde::{Deserialize, Serialize};

/// A result for one frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keyed {
    /// Session of the stream of frames, a decimal number.
    pub session: String,
    pub sequence: u64,
    pub value: Value,
}

/// What motion detection and the model found on a frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Time of the encoded unit from which the frame was decoded, in ns: the same number that the
    /// unit carries in its metadata, so that a result finds its place in recordings and in the
    /// encoded stream, too.
    pub time: u64,
    /// Part of the picture's area (or of its zones) that moves, 0 to 1; none for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    #[serde(default)]
    pub boxes: Vec<Region>,
}

/// A box in parts of the picture's width and height, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    /// The zone, or the class.
    pub label: String,
    pub score: f64,
}
