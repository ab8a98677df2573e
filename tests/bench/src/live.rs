// SPDX-License-Identifier: MIT OR Apache-2.0

//! Latency of a live source's frames from their capture to the reader, with the defaults of every
//! sink beside `sync=false`.

use crate::{
    alone::in_folder,
    case::{Case, Live, Run, Size, Transport},
    pace::Pace,
    report, run,
    slow::spread,
    stamp::SIZE,
};
use anyhow::{Result, anyhow};
use gst::prelude::*;
use std::{path::Path, sync::Mutex, time::Duration};

/// Frames per second of the sources.
const RATES: [u32; 3] = [5, 30, 60];
const SINKS: [(Live, &str); 2] = [(Live::Defaults, "defaults"), (Live::Unsynchronized, "`sync=false`")];

/// Measures, and prints a table.
pub fn all(rounds: usize) -> Result<()> {
    gst::init()?;
    let transports = [Transport::Latest, Transport::Unixfd, Transport::Shm];
    let transports: Vec<_> = transports.into_iter().filter(|transport| transport.is_installed()).collect();
    let rows: Vec<_> = RATES.into_iter().flat_map(|rate| SINKS.map(|sink| (rate, sink))).collect();
    let mut figures = vec![vec![Vec::new(); transports.len()]; rows.len()];
    in_folder("live", |folder| {
        for _ in 0..rounds {
            for ((rate, (live, _)), figures) in rows.iter().zip(&mut figures) {
                // Transports alternate, so that other load on the machine affects all of them.
                for (transport, figures) in transports.iter().zip(figures) {
                    figures.push(latency(folder, *transport, *rate, *live)?);
                }
            }
        }
        Ok(())
    })?;
    println!(
        "\n320x240, `videotestsrc is-live=true`, one reader. Median latency from the capture of a frame until the \
         reader has it, in ms\n"
    );
    let names: Vec<_> = transports.iter().map(|transport| transport.name()).collect();
    println!("| source | sink | {} |", names.join(" | "));
    println!("| --- | --- |{}", " --- |".repeat(names.len()));
    for ((rate, (_, sink)), figures) in rows.iter().zip(&figures) {
        let cells: Vec<_> = figures.iter().map(|figures| spread(figures)).collect();
        println!("| {rate} frames/s | {sink} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// Returns the median latency of one run in ms.
fn latency(folder: &Path, transport: Transport, rate: u32, live: Live) -> Result<f64> {
    let case = Case { size: Size { width: 320, height: 240 }, readers: 1, rate, by_kernel: false };
    let run = Run {
        transport,
        case,
        socket: folder.join("live.sock").to_string_lossy().into_owned(),
        warm: Duration::from_millis(400),
        measure: Duration::from_secs(2),
        pool: 16,
        max_held: None,
        daemon: None,
        program: None,
        clip: None,
        live: Some(live),
    };
    let figures = run::once(run)?.map_err(|stuck| anyhow!("{}, {case}: {stuck}", transport.name()))?;
    Ok(report::p50(&figures) / 1e3)
}

/// Returns a live source whose frames are stamped when they leave it.
pub fn source(run: &Run, pace: Pace) -> Result<gst::Element> {
    let Case { size, rate, .. } = run.case;
    let text = format!(
        "videotestsrc is-live=true ! capsfilter caps=video/x-raw,format=NV12,width={},height={},framerate={rate}/1",
        size.width, size.height
    );
    let source = gst::parse::bin_from_description(&text, true)?;
    let pad = source.static_pad("src").ok_or_else(|| anyhow!("the source has no pad"))?;
    let pace = Mutex::new(pace);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let (Some(buffer), Ok(mut pace)) = (info.buffer_mut(), pace.lock())
            && let Ok(mut frame) = buffer.make_mut().map_writable()
        {
            frame[..SIZE].copy_from_slice(&pace.stamp().encode());
        }
        gst::PadProbeReturn::Ok
    });
    Ok(source.upcast())
}
