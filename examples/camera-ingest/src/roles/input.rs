// SPDX-License-Identifier: MIT OR Apache-2.0

//! A stream that is read in a set, and opened again after an error.

use anyhow::Result;
use frameshare::{
    Endpoint, Policy,
    reader::{Config, Reader, ReaderKey, ReaderSet},
};
use std::time::{Duration, Instant};

/// Time until a stream that ended with an error is opened again.
const RETRY: Duration = Duration::from_secs(1);

/// The reader of a stream, while there is one.
pub struct Input {
    key: Option<ReaderKey>,
    /// When it is opened again.
    retry: Instant,
    /// Reason of its end, until it works again.
    pub error: Option<String>,
}

impl Input {
    pub fn new() -> Self {
        Self { key: None, retry: Instant::now(), error: None }
    }

    pub fn is(&self, key: ReaderKey) -> bool {
        self.key == Some(key)
    }

    /// Returns whether it is to be opened now.
    pub fn is_due(&self) -> bool {
        self.key.is_none() && self.retry <= Instant::now()
    }

    /// Adds the reader to the set, or notes why there is none.
    pub fn opened(&mut self, set: &mut ReaderSet, reader: Result<Reader>) {
        match reader {
            Ok(reader) => self.key = Some(set.add(reader)),
            Err(error) => self.fail(&format!("{error:#}")),
        }
    }

    /// Notes the end of the reader, or that there is none.
    pub fn fail(&mut self, error: &str) {
        self.key = None;
        self.error = Some(error.to_owned());
        self.retry = Instant::now() + RETRY;
    }
}

/// Starts a reader of a role, which stays through all restarts of the exporter, without waiting for
/// the exporter.
pub fn start(role: &str, camera: &str, stream: &str, policy: Policy, max_held: u32) -> Result<Reader> {
    let config = Config::default()
        .name(format!("camera-ingest {role} {camera}"))
        .policy(policy)
        .max_held(max_held)
        .reconnect(true)
        .connection_timeout(None);
    Ok(Reader::start(&Endpoint::find(stream)?, config)?)
}
