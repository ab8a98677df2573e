// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter process.

use crate::{
    case::{Run, Transport},
    pace::{Exported, Pace},
    read::{Told, Watch},
    source::Source,
};
use anyhow::{Context, Result, anyhow, bail};
use frameshare::{
    Endpoint, Format, Interrupt, Video,
    exporter::{Config, Exporter, Frame, Purpose},
};
use gst::prelude::*;
use std::{
    io::{self, BufRead},
    mem::ManuallyDrop,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Runs the exporter: prints "ready", starts at "go", prints its measurements, and exits when stdin
/// closes.
pub fn export(run: &Run) -> Result<()> {
    let go = Arc::new(AtomicBool::new(false));
    let (done, exported) = mpsc::channel();
    let tell = move |exported: Exported| {
        // If the receiver was dropped, this process is about to exit.
        let _ = done.send(exported);
    };
    let pace = Pace::new(go.clone(), run.case.rate, run.warm, run.measure, tell);
    let (watch, told) = run.reads_itself().then(|| Watch::new(run)).unzip();
    let sender: Box<dyn Sender> = match run.transport {
        Transport::Engine => Box::new(Bare::start(run, pace)?),
        decoding if decoding.decodes() => Box::new(Pipeline::decoding(run, pace, watch)?),
        _ => Box::new(Pipeline::start(run, pace)?),
    };
    while run.transport.has_readers() && !Path::new(&run.socket).exists() {
        sender.check()?;
        thread::sleep(Duration::from_millis(2));
    }
    crate::say(&"ready")?;
    let mut commands = io::stdin().lock().lines();
    commands.next().context("stdin closed before the go line")??;
    go.store(true, Ordering::Relaxed);
    let mut exported = loop {
        match exported.recv_timeout(Duration::from_millis(100)) {
            Ok(exported) => break exported,
            Err(_) => sender.check()?,
        }
    };
    exported.copied = sender.copied();
    crate::say(&exported)?;
    for told in told.iter().flatten() {
        if let Told::Received(received) = told {
            crate::say(&received)?;
            break;
        }
    }
    // Slow frames continue until every reader has received the end.
    let _ = commands.next();
    sender.stop();
    Ok(())
}

/// Sender of the frames.
pub trait Sender {
    /// Returns an error if the sender has failed.
    fn check(&self) -> Result<()>;
    /// Number of copied frames, if known.
    fn copied(&self) -> Option<u64>;
    /// Stops sending.
    fn stop(&self);
}

/// Sender that is a pipeline.
pub struct Pipeline {
    /// Not dropped after an error, since stopping a failed pipeline might hang; the process exits.
    pipeline: ManuallyDrop<gst::Pipeline>,
    sink: gst::Element,
}

impl Pipeline {
    /// Wraps a pipeline whose last element is `sink`.
    pub fn new(pipeline: gst::Pipeline, sink: gst::Element) -> Self {
        Self { pipeline: ManuallyDrop::new(pipeline), sink }
    }

    fn start(run: &Run, pace: Pace) -> Result<Self> {
        let info = run.case.size.info()?;
        let source = Source::new(&info, run.pool, pace)?;
        let sink = match run.transport {
            Transport::Lossless | Transport::Latest | Transport::Polling => {
                gst::ElementFactory::make("framesharesink")
            }
            Transport::Unixfd => gst::ElementFactory::make("unixfdsink"),
            // Room for the whole pool and for the overhead of shmsink's allocator: a buffer that
            // does not fit would be copied into room that the pool never releases.
            Transport::Shm => gst::ElementFactory::make("shmsink")
                .property("shm-size", u32::try_from(info.size() * (run.pool as usize + 8))?.max(64 << 20)),
            other => bail!("{} is not sent so", other.name()),
        };
        let sink = sink
            .property("socket-path", &run.socket)
            .property("sync", false)
            .property("async", false)
            .property("enable-last-sample", false)
            .build()?;
        let pipeline = gst::Pipeline::new();
        pipeline.add_many([source.upcast_ref(), &sink])?;
        source.link(&sink)?;
        pipeline.set_state(gst::State::Playing)?;
        Ok(Self::new(pipeline, sink))
    }
}

impl Sender for Pipeline {
    fn check(&self) -> Result<()> {
        crate::check_bus(&self.pipeline)
    }

    fn copied(&self) -> Option<u64> {
        let stats =
            self.sink.find_property("stats").map(|_| self.sink.property::<gst::Structure>("stats"))?;
        stats.get("copied").ok()
    }

    fn stop(&self) {
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}

/// Sender with the engine alone: the stamp is the frame's metadata, and the frame's bytes are not
/// written.
struct Bare {
    interrupt: Interrupt,
    sender: thread::JoinHandle<Result<()>>,
}

impl Bare {
    fn start(run: &Run, mut pace: Pace) -> Result<Self> {
        let info = run.case.size.info()?;
        let exporter = Exporter::bind(&Endpoint::at(&run.socket)?, Config::default(), |_| ())?;
        let video = Video { format: "NV12".into(), width: info.width(), height: info.height() };
        exporter.set_format(Format { caps: info.to_caps()?.to_string(), video: Some(video) });
        let interrupt = Interrupt::new()?;
        let ended = interrupt.clone();
        let size = info.size() as u64;
        let sender = thread::spawn(move || {
            while !ended.is_set() {
                let slot = exporter.acquire(size, Purpose::Copy)?;
                let frame = Frame {
                    metadata: &pace.stamp().encode(),
                    ..Frame::new(&slot, size, frameshare::fence::Written::Cpu)
                };
                exporter.publish(frame, &ended)?;
            }
            Ok(())
        });
        Ok(Self { interrupt, sender })
    }
}

impl Sender for Bare {
    fn check(&self) -> Result<()> {
        match self.sender.is_finished() {
            true => Err(anyhow!("the exporter's thread has ended")),
            false => Ok(()),
        }
    }

    fn copied(&self) -> Option<u64> {
        None
    }

    fn stop(&self) {
        self.interrupt.set();
    }
}
