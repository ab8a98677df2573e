// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observer of the frames of one reader, and its measurements.

use crate::{
    cuda_calls,
    stamp::{Phase, Stamp, now},
    usage::Usage,
};
use serde::{Deserialize, Serialize};
use std::{fs, mem, sync::mpsc};

/// Measurements of one reader.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Received frames.
    pub frames: u64,
    /// Seconds from the first to the last measured frame.
    pub seconds: f64,
    /// CPU time and context switches in that time.
    pub usage: Usage,
    /// Median latency in µs, from the exporter's stamp to the reader's sink or to the end of the
    /// reader's kernel. Measured for paced frames only.
    pub p50: f64,
    /// 99th percentile of the latency in µs.
    pub p99: f64,
    /// Maximum latency in µs.
    pub max: f64,
    /// Name of the mapping in which the first frame lies, such as `/memfd:frames (deleted)`. None
    /// for private memory, into which a frame was copied.
    #[serde(default)]
    pub memory: Option<String>,
}

/// Reports of a watch.
pub enum Report {
    /// The first frame has arrived.
    Joined,
    /// All measured frames have arrived.
    Received(Received),
}

/// Observer of all frames of a reader.
pub struct Watch {
    reports: mpsc::Sender<Report>,
    keeps_latencies: bool,
    latencies: Vec<u64>,
    phase: Option<Phase>,
    began: u64,
    before: Usage,
    received: Received,
}

impl Watch {
    /// Creates a watch and the receiver of its reports. Latency has no meaning where frames queue
    /// up.
    pub fn new(keeps_latencies: bool) -> (Self, mpsc::Receiver<Report>) {
        let (sender, reports) = mpsc::channel();
        let watch = Self {
            reports: sender,
            keeps_latencies,
            // Allocated before the measurement.
            latencies: Vec::with_capacity(1 << 16),
            phase: None,
            began: 0,
            before: Usage::default(),
            received: Received::default(),
        };
        (watch, reports)
    }

    /// Records one frame. `bytes` are those of a frame in host memory.
    pub fn see(&mut self, stamp: Option<Stamp>, bytes: &[u8]) {
        let time = now();
        let Some(stamp) = stamp else { return };
        if self.phase.is_none() {
            self.received.memory = mapping(bytes.as_ptr().addr());
        }
        if self.phase != Some(stamp.phase) {
            self.turn(stamp.phase, time);
        }
        if stamp.phase == Phase::Measure {
            self.received.frames += 1;
            if self.keeps_latencies {
                self.latencies.push(time.saturating_sub(stamp.time));
            }
        }
    }

    fn turn(&mut self, phase: Phase, time: u64) {
        if self.phase.is_none() {
            let _ = self.reports.send(Report::Joined);
        }
        if phase == Phase::Measure {
            self.before = Usage::now();
            cuda_calls::begin();
            self.began = now();
        }
        // A `latest` reader may have lost all measured frames; it then reports zero.
        if phase == Phase::End {
            let mut received = mem::take(&mut self.received);
            if received.frames > 0 {
                received.usage = Usage::now().since(self.before);
                cuda_calls::end("reader", received.frames, received.usage);
                received.seconds = (time - self.began) as f64 / 1e9;
            }
            self.latencies.sort_unstable();
            received.p50 = self.percentile(50);
            received.p99 = self.percentile(99);
            received.max = self.percentile(100);
            let _ = self.reports.send(Report::Received(received));
        }
        self.phase = Some(phase);
    }

    /// Latency percentile in µs.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(rank).map_or(0.0, |latency| *latency as f64 / 1e3)
    }
}

/// Returns the name of the mapping that contains an address.
fn mapping(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let at = |hex| usize::from_str_radix(hex, 16).ok();
        let name = rest.splitn(5, ' ').last()?.trim();
        ((at(from)?..at(to)?).contains(&address) && name.starts_with('/')).then(|| name.to_owned())
    })
}
