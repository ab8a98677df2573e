// SPDX-License-Identifier: MIT OR Apache-2.0

//! Supervisor: starts the roles, shows their progress, and checks the results.

mod child;
mod interrupt;
mod log;
mod picture;
mod proof;
mod scene;
mod stage;
mod summary;
mod table;

use crate::Role;
use anyhow::{Context, Result};
use child::Part;
use frameshare::StreamName;
use scene::{Interruption, Scene};
use stage::Stage;
use std::{path::PathBuf, process::ExitCode, sync::mpsc};

/// Parameters of a run.
pub struct Play {
    pub film: PathBuf,
    pub plays: u32,
    pub stream: StreamName,
    pub output: PathBuf,
}

/// Exit status that shells expect of an interrupted program.
const INTERRUPTED: u8 = 130;

/// Runs the demo; returns the exit status.
pub fn direct(play: Play) -> Result<ExitCode> {
    let Play { film, plays, stream, output } = play;
    let film = film.canonicalize().with_context(|| format!("cannot open {}", film.display()))?;
    let stage = Stage::new(&output)?;
    let recording = output.join("recording.mkv");
    let name = film.file_name().unwrap_or_default().display();
    println!("One process decodes {name}, three others read its frames.");
    println!("To join as another reader, in another terminal:\n");
    stage.joining(&stream).iter().for_each(|line| println!("    {line}"));
    println!();

    let (sender, events) = mpsc::channel();
    interrupt::watch(sender.clone())?;
    let mut scene = Scene::new(&stage, sender, events, plays);
    let stream = || stream.clone();
    scene.start(Part::Exporter, Role::Export { film, stream: stream(), plays })?;
    scene.start(Part::Checksum, Role::ReadChecksum { stream: stream() })?;
    scene.start(Part::Motion, Role::ReadMotion { stream: stream() })?;
    scene.start(Part::Recorder, Role::Record { stream: stream(), file: recording.clone() })?;
    scene.play()?;
    if scene.interruption != Interruption::Broken && !scene.log.has_failed(Part::Recorder) {
        scene.start(Part::Playback, Role::PlayBack { file: recording.clone() })?;
        scene.play()?;
    }
    if scene.interruption == Interruption::Broken {
        println!("\ninterrupted");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let is_good = summary::print(&scene.log, &recording);
    Ok(match (is_good, scene.interruption) {
        (false, _) => ExitCode::FAILURE,
        (true, Interruption::None) => ExitCode::SUCCESS,
        (true, _) => ExitCode::from(INTERRUPTED),
    })
}
