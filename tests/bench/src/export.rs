// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter process.

use crate::{
    case::{Live, Run, Transport},
    decoded, live,
    pace::{Exported, Pace},
    pipewire,
    sender::{Pipeline, Sender},
    source::Source,
    watch::{Report, Watch},
};
use anyhow::{Context, Result, anyhow, bail};
use frameshare::{
    Endpoint, Format, Interrupt, Video, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
};
use gst::prelude::*;
use std::{
    io::{self, BufRead},
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
    let report = move |exported: Exported| {
        // If the receiver was dropped, this process is about to exit.
        let _ = done.send(exported);
    };
    // A live source has a pace of its own.
    let rate = if run.live.is_some() { 0 } else { run.case.rate };
    let pace = Pace::new(go.clone(), rate, run.warm, run.measure, report).with_daemon(run.daemon);
    let (watch, reports) = run.reads_itself().then(|| Watch::new(run.keeps_latencies())).unzip();
    let sender: Box<dyn Sender> = match run.transport {
        Transport::Engine => Box::new(Bare::start(run, pace)?),
        decoding if decoding.decodes() => Box::new(decoded::send(run, pace, watch)?),
        _ => Box::new(pipeline(run, pace)?),
    };
    while run.transport.has_socket() && !Path::new(&run.socket).exists() {
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
    for report in reports.iter().flatten() {
        if let Report::Received(received) = report {
            crate::say(&received)?;
            break;
        }
    }
    // Slow frames continue until every reader has received the end.
    let _ = commands.next();
    sender.stop();
    Ok(())
}

/// Starts a pipeline that sends frames in host memory.
fn pipeline(run: &Run, pace: Pace) -> Result<Pipeline> {
    let info = run.case.size.info()?;
    let source = match run.live {
        Some(_) => live::source(run, pace)?,
        None => Source::new(&info, run.pool, pace)?.upcast(),
    };
    let sink = match run.transport {
        Transport::Lossless | Transport::Latest | Transport::Polling => {
            gst::ElementFactory::make("framesharesink")
        }
        Transport::Unixfd => gst::ElementFactory::make("unixfdsink"),
        // Room for the whole pool and for the overhead of shmsink's allocator: a buffer that
        // does not fit would be copied into room that the pool never releases.
        Transport::Shm => gst::ElementFactory::make("shmsink")
            .property("shm-size", u32::try_from(info.size() * (run.pool as usize + 8))?.max(64 << 20)),
        Transport::Pipewire => gst::ElementFactory::make("pipewiresink")
            .property_from_str("mode", "provide")
            .property("stream-properties", pipewire::properties()),
        other => bail!("{} is not sent so", other.name()),
    };
    let sink = match run.transport.has_socket() {
        true => sink.property("socket-path", &run.socket),
        false => sink,
    };
    let sink = match run.live {
        Some(Live::Defaults) => sink,
        Some(Live::Unsynchronized) => sink.property("sync", false),
        None => sink.property("sync", false).property("async", false).property("enable-last-sample", false),
    };
    let sink = sink.build()?;
    let pipeline = gst::Pipeline::new();
    pipeline.add_many([&source, &sink])?;
    source.link(&sink)?;
    pipeline.set_state(gst::State::Playing)?;
    Ok(Pipeline::new(pipeline, sink))
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
        let interrupt = exporter.interrupt();
        let ended = interrupt.clone();
        let size = info.size() as u64;
        let sender = thread::spawn(move || {
            while !ended.is_set() {
                let slot = exporter.acquire(size, Purpose::Copy, Wait::No)?;
                let frame = Frame {
                    metadata: &pace.stamp().encode(),
                    ..Frame::new(&slot, size, frameshare::fence::Written::Cpu)
                };
                exporter.publish(frame, Wait::Forever)?;
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
