// SPDX-License-Identifier: MIT OR Apache-2.0

//! Benchmark of the hand-off of frames between processes: frameshare beside GStreamer's own
//! elements.
//!
//! This process plans and reports. The exporter and each reader are processes of their own, the
//! same program in another role. They exchange lines of JSON over stdin and stdout:
//!
//! 1. The exporter sends "ready" when its socket exists. Then the readers start, and each sends
//!    "joined" at its first frame.
//! 2. The exporter receives "go", runs at the case's rate to warm up, and then for the measured
//!    time. The stamp of each frame contains its phase, so that both sides measure the same frames,
//!    and neither its own start.
//! 3. Exporter and readers send their measurements. A process that does not within the time limit
//!    counts as stuck, and is killed.

mod alone;
mod case;
mod cost_metadata;
mod cost_readers;
mod cost_split;
mod cuda_calls;
mod decoded;
mod export;
mod kernel;
mod live;
mod many;
mod mps;
mod observed;
mod options;
mod outcome;
mod pace;
mod pipewire;
mod raw;
mod read;
mod report;
mod run;
mod sender;
mod sharing;
mod slow;
mod source;
mod spin;
mod stamp;
mod stamps;
mod usage;
mod watch;

use anyhow::{Context, Result, bail};
use gst::prelude::*;
use serde::Serialize;
use std::{
    env,
    io::{self, Write},
    iter, process,
    str::FromStr,
};

fn main() {
    let mut arguments = env::args().skip(1);
    let done = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--report"), Some(first)) => raw::read(iter::once(first).chain(arguments))
            .map(|outcomes| print!("{}", report::earlier(&outcomes))),
        (Some(role @ ("export" | "read")), Some(run)) => exit(play(role, &run)),
        (Some("read-slowly"), Some(plan)) => exit(read_slowly(&plan)),
        (Some("--slow-readers"), rounds) => slow::all(number(rounds, 5)),
        (Some("observe"), Some(socket)) => exit(observe(&socket)),
        (Some("sharing"), Some(plan)) => exit(share(&plan)),
        (Some("gpu-memory"), None) => sharing::print_gpu_memory(),
        (Some("--sharing"), clip) => sharing::all(clip.into_iter().chain(arguments)),
        (Some("pipewire"), None) => exit(serve_pipewire()),
        (Some("--observers"), rounds) => observed::all(number(rounds, 5)),
        (Some("gather"), Some(plan)) => exit(gather(&plan)),
        (Some("--many"), rounds) => many::all(number(rounds, 5)),
        (Some("spin-read"), Some(plan)) => exit(read_spinning(&plan)),
        (Some("--spin"), rounds) => spin::all(number(rounds, 3)),
        (Some("--spin-of"), Some(stream)) => {
            spin::of(&stream, number(arguments.next(), 10), number(arguments.next(), 3))
        }
        (Some("--live"), rounds) => live::all(number(rounds, 3)),
        (Some("--metadata"), rounds) => cost_metadata::all(number(rounds, 5)),
        (Some("--cost-of-readers"), rounds) => {
            cost_readers::all(number(rounds, 5), arguments.next().and_then(|readers| readers.parse().ok()))
        }
        (Some("split"), Some(plan)) => exit(split(&plan)),
        (Some("--cost-split"), rounds) => cost_split::all(number(rounds, 5), number(arguments.next(), 60)),
        (Some("--help" | "-h"), _) => {
            println!("{}", options::USAGE);
            Ok(())
        }
        _ => options::parse(env::args().skip(1)).and_then(|options| run::all(&options)),
    };
    exit(done)
}

/// Returns the number that an argument gives.
fn number<T: FromStr>(text: Option<String>, default: T) -> T {
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn exit(done: Result<()>) -> ! {
    if let Err(error) = &done {
        eprintln!("frameshare-bench: {error:#}");
    }
    process::exit(done.is_err().into())
}

/// Runs a role in a process that this program started.
fn play(role: &str, run: &str) -> Result<()> {
    // If the parent is killed, no process of a role stays.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let run = serde_json::from_str(run).context("no plan of a run")?;
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    match role {
        "export" => export::export(&run),
        _ => read::read(&run),
    }
}

/// Runs a reader of [`slow`] in a process that this program started.
fn read_slowly(plan: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    slow::read(&serde_json::from_str(plan).context("no plan of a reader")?)
}

/// Runs a process of [`sharing`] that this program started.
fn share(plan: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    sharing::play(plan)
}

/// Becomes the daemon of [`pipewire`] in a process that this program started.
fn serve_pipewire() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    pipewire::serve()
}

/// Runs the observers of [`observed`] in a process that this program started.
fn observe(socket: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    observed::observe(socket)
}

/// Runs the readers of [`many`] in a process that this program started.
fn gather(plan: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    many::gather(plan)
}

/// Runs a reader of [`spin`] in a process that this program started.
fn read_spinning(plan: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    spin::read(plan)
}

/// Runs a role of [`cost_split`] in a process that this program started.
fn split(plan: &str) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    cost_split::play(plan)
}

/// Sends one line to the parent.
fn say(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns the first error on a pipeline's bus.
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
