// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pace of the exporter: the phases of a run, and the time of each frame.

use crate::{
    cuda_calls,
    stamp::{Phase, Stamp, now},
    usage::{Usage, cpu_of},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Time in ns between slow frames: short enough to join at once, and no load.
const TRICKLE: u64 = 2_000_000;

/// Measurements of the exporter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exported {
    /// Sent frames.
    pub frames: u64,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// CPU time and context switches in that time.
    pub usage: Usage,
    /// CPU time in ns of the transport's daemon in that time; 0 without one.
    #[serde(default)]
    pub daemon_cpu: u64,
    /// Frames that the sink copied in the whole run; `None` if the sink does not count them.
    pub copied: Option<u64>,
}

/// Stamps frames, and waits between them.
pub struct Pace {
    /// Set when all readers have joined.
    go: Arc<AtomicBool>,
    /// Time between two frames in ns; 0 for full speed.
    period: u64,
    warm: u64,
    measure: u64,
    /// Called once, after the measurement.
    done: Box<dyn Fn(Exported) + Send>,
    phase: Phase,
    began: u64,
    next: u64,
    sequence: u64,
    frames: u64,
    before: Usage,
    daemon: Option<u32>,
    daemon_before: u64,
}

impl Pace {
    /// Creates the pace of a run.
    pub fn new(
        go: Arc<AtomicBool>,
        rate: u32,
        warm: Duration,
        measure: Duration,
        done: impl Fn(Exported) + Send + 'static,
    ) -> Self {
        Self {
            go,
            period: 1_000_000_000_u64.checked_div(rate.into()).unwrap_or(0),
            warm: warm.as_nanos() as u64,
            measure: measure.as_nanos() as u64,
            done: Box::new(done),
            phase: Phase::Join,
            began: now(),
            next: 0,
            sequence: 0,
            frames: 0,
            before: Usage::default(),
            daemon: None,
            daemon_before: 0,
        }
    }

    /// Measures a daemon, too.
    pub fn with_daemon(self, daemon: Option<u32>) -> Self {
        Self { daemon, ..self }
    }

    /// Waits for the time of the next frame, and returns its stamp.
    pub fn stamp(&mut self) -> Stamp {
        let period = match self.phase {
            Phase::Join | Phase::End => TRICKLE,
            Phase::Warm | Phase::Measure => self.period,
        };
        let mut time = now();
        if period > 0 {
            // Counted from the previous due time, so that the mean rate is right; missed frames are
            // not caught up.
            self.next = (self.next + period).max(time.saturating_sub(period));
            if self.next > time {
                thread::sleep(Duration::from_nanos(self.next - time));
                time = now();
            }
        }
        if self.turn(time) {
            time = now();
        }
        self.sequence += 1;
        self.frames += u64::from(self.phase == Phase::Measure);
        Stamp { phase: self.phase, sequence: self.sequence, time }
    }

    /// Enters the next phase when it is due. Returns true if that took time itself.
    fn turn(&mut self, time: u64) -> bool {
        let passed = time - self.began;
        match self.phase {
            Phase::Join if self.go.load(Ordering::Relaxed) => self.phase = Phase::Warm,
            Phase::Warm if passed >= self.warm => {
                self.phase = Phase::Measure;
                self.daemon_before = self.daemon.map_or(0, cpu_of);
                self.before = Usage::now();
                cuda_calls::begin();
            }
            Phase::Measure if passed >= self.measure => {
                self.phase = Phase::End;
                let usage = Usage::now().since(self.before);
                let daemon_cpu = self.daemon.map_or(0, cpu_of).saturating_sub(self.daemon_before);
                cuda_calls::end("exporter", self.frames, usage);
                let seconds = passed as f64 / 1e9;
                (self.done)(Exported { frames: self.frames, seconds, usage, daemon_cpu, copied: None });
            }
            _ => return false,
        }
        self.began = now();
        true
    }
}
