//! A reader's process.

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

/// What was measured on one reader's side.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Frames that came.
    pub frames: u64,
    /// From the first to the end.
    pub seconds: f64,
    /// Used meanwhile.
    pub usage: Usage,
    /// From the exporter's stamp to the reader's sink, or until a kernel has read the frame, in µs: the middle one. Where
    /// frames are paced.
    pub p50: f64,
    /// The 99th of a hundred.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

/// Says "joined" with its first frame, and what it measured at the end; ends with its standard input.
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
    // It goes on reading, so that the others see the end too.
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
    // No capsfilter behind shmsrc, whose buffers have no caps: nothing here needs any, and it would cost something.
    let sink = gst::ElementFactory::make("fakesink")
        .property("sync", false)
        .property("async", false)
        .property("enable-last-sample", false)
        .build()?;
    // One that has failed ends with its process: to take it down might hang.
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

/// The engine alone.
fn bare(run: &Run, mut watch: Watch) -> Result<()> {
    let mut config = Config { policy: Policy::Lossless, ..Config::default() };
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

/// What a watch tells.
pub enum Told {
    /// It has seen a frame.
    Joined,
    /// It has seen all that count.
    Received(Received),
}

/// Sees every frame go by.
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
    /// And where it tells what it saw.
    pub fn new(run: &Run) -> (Self, mpsc::Receiver<Told>) {
        let (tell, told) = mpsc::channel();
        let watch = Self {
            tell,
            // What a decoder paces does not queue up either.
            keeps_latencies: run.case.rate > 0 || run.transport.decodes(),
            // Grown now, not while it is measured.
            latencies: Vec::with_capacity(1 << 16),
            phase: None,
            began: 0,
            before: Usage::default(),
            received: Received::default(),
        };
        (watch, told)
    }

    /// One went by.
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
        // A reader that loses frames may have lost all that count; then it has nothing to tell but that.
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

    /// In µs.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(rank).map_or(0.0, |latency| *latency as f64 / 1e3)
    }
}
