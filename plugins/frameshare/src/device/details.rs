// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps and readers of a stream, from an observer's snapshots.

use crate::meta::{self, budget::Budget};
use frameshare::{Endpoint, observer::Observer};
use std::time::Duration;

/// Maximum time of a request: an exporter that is stopped does not answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// Memory for the caps of a stream.
const MAX_CAPS: u64 = 1 << 20;

/// Caps and readers of a stream; none if its exporter does not answer, or refuses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Details {
    pub caps: Option<gst::Caps>,
    /// Number of readers.
    pub readers: Option<u32>,
}

/// A connection to a stream's exporter, made when it is first needed.
pub(super) struct Observed {
    endpoint: Endpoint,
    observer: Option<Observer>,
}

impl Observed {
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), observer: None }
    }

    /// Returns the present details.
    pub fn details(&mut self) -> Details {
        if let Some(mut observer) = self.observer.take() {
            if observer.snapshot().is_err() {
                return Details::default();
            }
            self.observer = Some(observer);
        } else {
            self.observer = Observer::connect(&self.endpoint, PATIENCE).ok();
        }
        let Some(snapshot) = self.observer.as_ref().map(Observer::latest) else { return Details::default() };
        let caps = snapshot.format.as_ref();
        Details {
            caps: caps.and_then(|format| meta::parse_caps(&format.caps, &Budget::new(MAX_CAPS)).ok()),
            readers: u32::try_from(snapshot.readers.len()).ok(),
        }
    }
}
