// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observation of one stream, through restarts of its exporter.

use super::stream::{Known, StreamFigures};
use frameshare::{
    Endpoint,
    observer::{ObserveError, Observer, Snapshot},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// Limit for an exporter to answer at the beginning; others are observed after it.
const CONNECT: Duration = Duration::from_millis(100);
/// An exporter without a snapshot for this time counts as stopped.
const SILENT: Duration = Duration::from_secs(4);

/// Snapshots over which rates are measured: one second more or less changes them little.
const WINDOW: usize = 4;

/// A stream of a camera.
pub struct Observed {
    kind: &'static str,
    name: String,
    /// Not every camera has it: it is not mentioned while it is missing.
    is_optional: bool,
    connection: Result<Connection, String>,
    /// The last snapshots, oldest first.
    before: VecDeque<Snapshot>,
    rates: Known,
}

struct Connection {
    observer: Observer,
    received: Instant,
}

impl Observed {
    pub fn new(kind: &'static str, name: String) -> Self {
        let connection = Err("no exporter yet".to_owned());
        Self { kind, name, is_optional: false, connection, before: VecDeque::new(), rates: Known::default() }
    }

    pub fn optional(kind: &'static str, name: String) -> Self {
        Self { is_optional: true, ..Self::new(kind, name) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_connected(&self) -> bool {
        self.connection.is_ok()
    }

    /// Connects to the exporter at this endpoint.
    pub fn connect(&mut self, endpoint: Option<&Endpoint>) {
        let Some(endpoint) = endpoint else {
            return self.connection = Err("no exporter".to_owned());
        };
        let observer = Observer::subscribe(endpoint, INTERVAL, CONNECT);
        self.connection = match observer {
            Ok(observer) => Ok(Connection { observer, received: Instant::now() }),
            Err(error) => Err(error.to_string()),
        };
    }

    /// Returns the newest figures; `None` for an optional stream that is missing.
    pub fn figures(&mut self) -> Option<StreamFigures> {
        if let Err(error) = self.receive() {
            self.connection = Err(error.to_string());
            self.before.clear();
        }
        match &self.connection {
            Err(_) if self.is_optional => None,
            Err(why) => Some(StreamFigures::missing(self.kind, &self.name, why)),
            Ok(Connection { observer, received }) => {
                let snapshot = observer.latest();
                let mut figures = StreamFigures::of(self.kind, &self.name, snapshot, &self.rates);
                if received.elapsed() > SILENT {
                    let (pid, silent) = (snapshot.exporter.pid, received.elapsed().as_secs());
                    figures.silence(format!(
                        "process {pid} has not answered for {silent} s: it is stopped, or hangs"
                    ));
                }
                Some(figures)
            }
        }
    }

    /// Receives what has arrived, and measures from snapshot to snapshot.
    fn receive(&mut self) -> Result<(), ObserveError> {
        let Ok(Connection { observer, received }) = &mut self.connection else { return Ok(()) };
        let mut is_new = false;
        while observer.next(Duration::ZERO)?.is_some() {
            is_new = true;
        }
        if is_new || self.before.is_empty() {
            let now = observer.latest();
            self.before.retain(|before| before.exporter.session == now.exporter.session);
            self.rates = Known::between(self.before.make_contiguous(), now);
            if self.before.len() == WINDOW {
                self.before.pop_front();
            }
            self.before.push_back(now.clone());
            *received = Instant::now();
        }
        Ok(())
    }
}
