// SPDX-License-Identifier: MIT OR Apache-2.0

//! Supervisor: starts the jobs, shows their progress, and checks the results.

mod environment;
mod interrupt;
mod log;
mod preview;
mod process;
mod proof;
mod run;
mod summary;
mod table;

use crate::Job;
use anyhow::{Context, Result};
use environment::Environment;
use frameshare::StreamName;
use process::Process;
use run::{Interruption, Run};
use std::{path::PathBuf, process::ExitCode, sync::mpsc};

/// Parameters of a run.
pub struct Plan {
    pub video: PathBuf,
    pub loops: u32,
    pub stream: StreamName,
    pub output: PathBuf,
}

/// Exit status that shells expect of an interrupted program.
const INTERRUPTED: u8 = 130;

/// Runs the demo; returns the exit status.
pub fn supervise(plan: Plan) -> Result<ExitCode> {
    let Plan { video, loops, stream, output } = plan;
    let video = video.canonicalize().with_context(|| format!("cannot open {}", video.display()))?;
    let environment = Environment::new(&output)?;
    let recording = output.join("recording.mkv");
    let name = video.file_name().unwrap_or_default().display();
    println!("One process decodes {name}, three others read its frames.");
    println!("To join as another reader, in another terminal:\n");
    environment.joining(&stream).iter().for_each(|line| println!("    {line}"));
    println!();

    let (sender, events) = mpsc::channel();
    interrupt::watch(sender.clone())?;
    let mut run = Run::new(&environment, sender, events, loops);
    let stream = || stream.clone();
    run.start(Process::Exporter, Job::Export { video, stream: stream(), loops })?;
    run.start(Process::Checksum, Job::ReadChecksum { stream: stream() })?;
    run.start(Process::Motion, Job::ReadMotion { stream: stream() })?;
    run.start(Process::Recorder, Job::Record { stream: stream(), file: recording.clone() })?;
    run.wait()?;
    if run.interruption != Interruption::Broken && !run.log.has_failed(Process::Recorder) {
        run.start(Process::Playback, Job::PlayBack { file: recording.clone() })?;
        run.wait()?;
    }
    if run.interruption == Interruption::Broken {
        println!("\ninterrupted");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let is_good = summary::print(&run.log, &recording);
    Ok(match (is_good, run.interruption) {
        (false, _) => ExitCode::FAILURE,
        (true, Interruption::None) => ExitCode::SUCCESS,
        (true, _) => ExitCode::from(INTERRUPTED),
    })
}
