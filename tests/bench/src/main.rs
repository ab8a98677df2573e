//! Measures the hand-off of frames from one process to others: frameshare beside GStreamer's own elements for it.
//!
//! This process plans and reports. The exporter and each reader are processes of their own, this program again in
//! another role, which talk to it in lines of JSON over their standard input and output:
//!
//! 1. The exporter says "ready" when its socket is there; then the readers start, and each says "joined" when it got
//!    a frame.
//! 2. The exporter is told to go: it runs at the case's rate for a moment, and then for as long as is measured. Each
//!    frame says in its stamp which of the two it belongs to, so that both sides measure the same frames, and neither
//!    its own start.
//! 3. Exporter and readers say what they measured. One that does not within the time limit is stuck, and is killed.

mod case;
mod decoded;
mod export;
mod kernel;
mod options;
mod pace;
mod raw;
mod read;
mod report;
mod run;
mod source;
mod stamp;
mod stamps;
mod usage;

use anyhow::{Context, Result, bail};
use gst::prelude::*;
use serde::Serialize;
use std::{
    env,
    io::{self, Write},
    iter, process,
};

fn main() {
    let mut arguments = env::args().skip(1);
    let done = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--report"), Some(first)) => raw::read(iter::once(first).chain(arguments))
            .map(|outcomes| print!("{}", report::earlier(&outcomes))),
        (Some(role @ ("export" | "read")), Some(run)) => exit(play(role, &run)),
        (Some("--help" | "-h"), _) => {
            println!("{}", options::USAGE);
            Ok(())
        }
        _ => options::parse(env::args().skip(1)).and_then(|options| run::all(&options)),
    };
    exit(done)
}

fn exit(done: Result<()>) -> ! {
    if let Err(error) = &done {
        eprintln!("frameshare-bench: {error:#}");
    }
    process::exit(done.is_err().into())
}

/// What a process does that this program started.
fn play(role: &str, run: &str) -> Result<()> {
    // Whoever started it may be killed, and nobody shall be left running.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let run = serde_json::from_str(run).context("no plan of a run")?;
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    match role {
        "export" => export::export(&run),
        _ => read::read(&run),
    }
}

/// One line to whoever started this process.
fn say(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The first error on a pipeline's bus, as one.
fn check_bus(pipeline: &gst::Pipeline) -> Result<()> {
    let bus = pipeline.bus().context("a pipeline has a bus")?;
    while let Some(message) = bus.pop() {
        match message.view() {
            gst::MessageView::Error(error) => bail!("{} ({:?})", error.error(), error.debug()),
            gst::MessageView::Eos(_) => bail!("the stream has ended"),
            _ => {}
        }
    }
    Ok(())
}
