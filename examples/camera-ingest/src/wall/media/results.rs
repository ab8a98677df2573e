// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of motion detection and models, for all pages.

use super::source::{Client, Source, Subscription, reading};
use crate::results::{Keyed, Value};
use axum::extract::ws::Utf8Bytes;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Results that wait for a page; a page that is later loses the oldest.
const WAITING: usize = 512;
/// Boxes of one result that are shown.
const MAX_BOXES: usize = 64;

/// The results of all cameras, as messages for the page.
pub struct Results {
    sender: broadcast::Sender<Utf8Bytes>,
    sources: Vec<Source>,
}

impl Results {
    /// Reads these streams while there are subscribers: index of the camera, name of the source of
    /// results, name of the stream.
    pub fn new(streams: impl Iterator<Item = (usize, &'static str, String)>) -> Self {
        let sender = broadcast::Sender::new(WAITING);
        let open = |(camera, role, stream): (_, _, String)| {
            let pipeline = reading("max-held=4 max-queued=8") + " ! appsink name=sink sync=false";
            Source::new(
                "results",
                &stream,
                pipeline,
                Arc::new(Reading { camera, role, sender: sender.clone() }),
            )
        };
        let sources = streams.map(open).collect();
        Self { sources, sender }
    }

    pub fn subscribe(&self) -> (Vec<Subscription>, broadcast::Receiver<Utf8Bytes>) {
        (self.sources.iter().map(Source::subscribe).collect(), self.sender.subscribe())
    }
}

struct Reading {
    camera: usize,
    role: &'static str,
    sender: broadcast::Sender<Utf8Bytes>,
}

impl Client for Reading {
    fn sample(&self, sample: &gst::Sample) {
        let Some(Ok(bytes)) = sample.buffer().map(gst::BufferRef::map_readable) else { return };
        // Another process made it: what is no result is not shown.
        let Ok(result) = serde_json::from_slice::<Keyed>(&bytes) else { return };
        // Fails without subscribers: no page is open then.
        let _ = self.sender.send(message(self.camera, self.role, &result));
    }
}

/// Returns the message for a page. The key is a text: JavaScript's numbers have 53 bits.
fn message(camera: usize, role: &str, result: &Keyed) -> Utf8Bytes {
    let Value { time, score, boxes } = &result.value;
    let key = if *time > 0 { *time } else { result.sequence };
    let boxes = &boxes[..boxes.len().min(MAX_BOXES)];
    let message = json!({
        "type": "result", "camera": camera, "role": role, "key": key.to_string(),
        "score": score, "boxes": boxes,
    });
    message.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_has_key_of_its_frame() {
        let mut result = Keyed {
            session: "7".to_owned(),
            sequence: 5,
            value: Value { time: 1_763_000_000_123_456_789, score: Some(0.25), boxes: Vec::new() },
        };
        let text = message(2, "motion", &result);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["key"], "1763000000123456789");
        assert_eq!((&read["camera"], &read["role"]), (&json!(2), &json!("motion")));
        result.value.time = 0;
        assert!(message(2, "motion", &result).contains(r#""key":"5""#));
    }
}
