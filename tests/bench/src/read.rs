// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader process.

use crate::{
    case::{Run, Transport},
    decoded,
    stamp::{Phase, Stamp, now},
    usage::Usage,
};
use anyhow::{Context, Result, bail};
use frameshare::{
    Endpoint, Interrupt, Policy,
    reader::{Config, Item, Reader},
};
use gst::prelude::*;
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read},
    mem::{self, ManuallyDrop},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

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
}

/// Reads frames: prints "joined" at the first one and the measurements at the end, and exits when
/// stdin closes.
pub fn read(run: &Run) -> Result<()> {
    let (watch, told) = Watch::new(run);
    let pipeline = match run.transport {
        Transport::Engine => {
            bare(run, watch)?;
            None
        }
        decoding if decoding.decodes() => Some(decoded::read(run, watch)?),
        _ => Some(pipeline(run, watch)?),
    };
    loop {
        match told.recv_timeout(Duration::from_millis(100)) {
            Ok(Told::Joined) => crate::say(&"joined")?,
            Ok(Told::Received(received)) => break crate::say(&received)?,
            Err(_) => pipeline.iter().try_for_each(|pipeline| crate::check_bus(pipeline))?,
        }
    }
    // Frames are read until stdin closes, so that the other readers receive the end too.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn pipeline(run: &Run, watch: Watch) -> Result<ManuallyDrop<gst::Pipeline>> {
    let source = match run.transport {
        Transport::Lossless | Transport::Latest | Transport::Polling => {
            let policy = if run.transport == Transport::Latest { "latest" } else { "lossless" };
            let source = gst::ElementFactory::make("framesharesrc")
                .property_from_str("policy", policy)
                .property("busy-poll", run.transport.busy_poll());
            match run.max_held {
                Some(max_held) => source.property("max-held", max_held),
                None => source,
            }
        }
        Transport::Unixfd => gst::ElementFactory::make("unixfdsrc"),
        Transport::Shm => gst::ElementFactory::make("shmsrc").property("is-live", true),
        other => bail!("{} is not read so", other.name()),
    };
    let source = source.property("socket-path", &run.socket).build()?;
    // No capsfilter after shmsrc, whose buffers have no caps: none is needed, and it would add
    // cost.
    let sink = gst::ElementFactory::make("fakesink")
        .property("sync", false)
        .property("async", false)
        .property("enable-last-sample", false)
        .build()?;
    // Not dropped after an error, since stopping a failed pipeline might hang; the process exits.
    let pipeline = ManuallyDrop::new(gst::Pipeline::new());
    pipeline.add_many([&source, &sink])?;
    source.link(&sink)?;
    let pad = sink.static_pad("sink").context("fakesink has a pad")?;
    let watch = Mutex::new(watch);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let (Some(buffer), Ok(mut watch)) = (info.buffer(), watch.lock())
            && let Ok(frame) = buffer.map_readable()
        {
            watch.see(Stamp::decode(&frame));
        }
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing)?;
    Ok(pipeline)
}

/// Reads with the engine alone.
fn bare(run: &Run, mut watch: Watch) -> Result<()> {
    let mut config = Config::default().policy(Policy::Lossless);
    config.max_held = run.max_held.unwrap_or(config.max_held);
    let interrupt = Interrupt::new()?;
    let mut reader = Reader::connect(&Endpoint::at(&run.socket)?, config, &interrupt)?;
    thread::spawn(move || {
        while let Ok(item) = reader.next(None, &interrupt) {
            if let Some(Item::Frame(frame)) = item {
                watch.see(Stamp::decode(frame.metadata()));
            }
        }
    });
    Ok(())
}

/// Reports of a watch.
pub enum Told {
    /// The first frame has arrived.
    Joined,
    /// All measured frames have arrived.
    Received(Received),
}

/// Observer of all frames of a reader.
pub struct Watch {
    tell: mpsc::Sender<Told>,
    keeps_latencies: bool,
    latencies: Vec<u64>,
    phase: Option<Phase>,
    began: u64,
    before: Usage,
    received: Received,
}

impl Watch {
    /// Creates a watch and the receiver of its reports.
    pub fn new(run: &Run) -> (Self, mpsc::Receiver<Told>) {
        let (tell, told) = mpsc::channel();
        let watch = Self {
            tell,
            // Frames paced by a decoder do not queue up either.
            keeps_latencies: run.case.rate > 0 || run.transport.decodes(),
            // Allocated before the measurement.
            latencies: Vec::with_capacity(1 << 16),
            phase: None,
            began: 0,
            before: Usage::default(),
            received: Received::default(),
        };
        (watch, told)
    }

    /// Records one frame.
    pub fn see(&mut self, stamp: Option<Stamp>) {
        let time = now();
        let Some(stamp) = stamp else { return };
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
            let _ = self.tell.send(Told::Joined);
        }
        if phase == Phase::Measure {
            self.before = Usage::now();
            self.began = now();
        }
        // A `latest` reader may have lost all measured frames; it then reports zero.
        if phase == Phase::End {
            let mut received = mem::take(&mut self.received);
            if received.frames > 0 {
                received.usage = Usage::now().since(self.before);
                received.seconds = (time - self.began) as f64 / 1e9;
            }
            self.latencies.sort_unstable();
            received.p50 = self.percentile(50);
            received.p99 = self.percentile(99);
            received.max = self.percentile(100);
            let _ = self.tell.send(Told::Received(received));
        }
        self.phase = Some(phase);
    }

    /// Latency percentile in µs.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(rank).map_or(0.0, |latency| *latency as f64 / 1e3)
    }
}
