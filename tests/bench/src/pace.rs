//! When the exporter sends which frame: joined, warmed up, measured, ended.

use crate::{
    stamp::{Phase, Stamp, now},
    usage::Usage,
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

/// Between the frames of a trickle, in ns: short enough that joining takes no time, and no load.
const TRICKLE: u64 = 2_000_000;

/// What was measured on the exporter's side.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exported {
    /// Frames that were sent.
    pub frames: u64,
    /// In this time.
    pub seconds: f64,
    /// Used meanwhile.
    pub usage: Usage,
    /// Frames that the sink had to copy, in the whole run; none where the sink does not say.
    pub copied: Option<u64>,
}

/// Stamps frame after frame and waits between them.
pub struct Pace {
    /// Set once all readers are there.
    go: Arc<AtomicBool>,
    /// Between two frames in ns; 0 is as fast as it goes.
    period: u64,
    warm: u64,
    measure: u64,
    /// Told once, when everything has been measured.
    done: Box<dyn Fn(Exported) + Send>,
    phase: Phase,
    began: u64,
    next: u64,
    sequence: u64,
    frames: u64,
    before: Usage,
}

impl Pace {
    /// Ready for the first frame.
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
        }
    }

    /// Waits for the next frame's time, and says what to write into it.
    pub fn stamp(&mut self) -> Stamp {
        let period = match self.phase {
            Phase::Join | Phase::End => TRICKLE,
            Phase::Warm | Phase::Measure => self.period,
        };
        let mut time = now();
        if period > 0 {
            // From when the frame before was due, so that the mean rate is right; but what was missed is not caught up.
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

    /// Goes on to the next phase when it is time to. True if that itself took time.
    fn turn(&mut self, time: u64) -> bool {
        let passed = time - self.began;
        match self.phase {
            Phase::Join if self.go.load(Ordering::Relaxed) => self.phase = Phase::Warm,
            Phase::Warm if passed >= self.warm => {
                self.phase = Phase::Measure;
                self.before = Usage::now();
            }
            Phase::Measure if passed >= self.measure => {
                self.phase = Phase::End;
                let usage = Usage::now().since(self.before);
                let seconds = passed as f64 / 1e9;
                (self.done)(Exported { frames: self.frames, seconds, usage, copied: None });
            }
            _ => return false,
        }
        self.began = now();
        true
    }
}
