// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader process.

use crate::{
    case::{Run, Transport},
    decoded, pipewire,
    stamp::Stamp,
    watch::{Report, Watch},
};
use anyhow::{Context, Result, bail};
use frameshare::{
    Endpoint, Interrupt, Policy,
    reader::{Config, Item, Reader},
};
use gst::prelude::*;
use std::{
    io::{self, Read},
    mem::ManuallyDrop,
    sync::Mutex,
    thread,
    time::Duration,
};

/// Reads frames: prints "joined" at the first one and the measurements at the end, and exits when
/// stdin closes.
pub fn read(run: &Run) -> Result<()> {
    let (watch, reports) = Watch::new(run.keeps_latencies());
    let pipeline = match run.transport {
        Transport::Engine => {
            bare(run, watch)?;
            None
        }
        decoding if decoding.decodes() => Some(decoded::read(run, watch)?),
        _ => Some(pipeline(run, watch)?),
    };
    loop {
        match reports.recv_timeout(Duration::from_millis(100)) {
            Ok(Report::Joined) => crate::say(&"joined")?,
            Ok(Report::Received(received)) => break crate::say(&received)?,
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
                .property("spin", run.transport.spin());
            match run.max_held {
                Some(max_held) => source.property("max-held", max_held),
                None => source,
            }
        }
        Transport::Unixfd => gst::ElementFactory::make("unixfdsrc"),
        Transport::Shm => gst::ElementFactory::make("shmsrc").property("is-live", true),
        Transport::Pipewire => gst::ElementFactory::make("pipewiresrc")
            .property("autoconnect", false)
            .property("stream-properties", pipewire::properties()),
        other => bail!("{} is not read so", other.name()),
    };
    let source = match run.transport.has_socket() {
        true => source.property("socket-path", &run.socket),
        false => source,
    };
    let source = source.build()?;
    // No capsfilter after shmsrc, whose buffers have no caps: none is needed, and it would add
    // cost.
    watched(&source, watch)
}

/// Runs a pipeline of this source and fakesink.
pub fn watched(source: &gst::Element, watch: Watch) -> Result<ManuallyDrop<gst::Pipeline>> {
    let sink = gst::ElementFactory::make("fakesink")
        .property("sync", false)
        .property("async", false)
        .property("enable-last-sample", false)
        .build()?;
    // Not dropped after an error, since stopping a failed pipeline might hang; the process exits.
    let pipeline = ManuallyDrop::new(gst::Pipeline::new());
    pipeline.add_many([source, &sink])?;
    source.link(&sink)?;
    let pad = sink.static_pad("sink").context("fakesink has a pad")?;
    let watch = Mutex::new(watch);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let (Some(buffer), Ok(mut watch)) = (info.buffer(), watch.lock())
            && let Ok(frame) = buffer.map_readable()
        {
            watch.see(Stamp::decode(&frame), &frame);
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
                watch.see(Stamp::decode(frame.metadata()), &[]);
            }
        }
    });
    Ok(())
}
