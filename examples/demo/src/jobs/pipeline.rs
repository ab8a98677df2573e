// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pipeline loop of a job, with commands of the supervisor.
//!
//! The supervisor writes to standard input: each line is a command, and the end of input is the
//! command [`STOP`]. So a job also ends when the supervisor is killed.

use anyhow::{Context, Result, bail};
use gst::{MessageView, prelude::*};
use std::{io::BufRead, thread};

/// Command at the end of standard input.
pub const STOP: &str = "stop";

/// Events of a running pipeline.
pub enum Event<'a> {
    /// The poll interval has passed.
    Tick,
    /// Command of the supervisor, or of the job itself (see [`post`]).
    Command(&'a str),
}

/// Sets the pipeline's state and returns at the end of the pipeline. Calls `on` for each event, and
/// `last` at the end, before the pipeline is stopped.
///
/// # Errors
///
/// The first error on the bus, or an error of `on`.
pub fn run(
    pipeline: &gst::Pipeline,
    state: gst::State,
    mut on: impl FnMut(Event<'_>) -> Result<()>,
    last: impl FnOnce(),
) -> Result<()> {
    let bus = pipeline.bus().context("the pipeline has no bus")?;
    listen(bus.clone());
    let _stopped_at_last = Stop(pipeline);
    if pipeline.set_state(state).is_err() {
        // The cause is on the bus.
        let second = gst::ClockTime::from_seconds(1);
        if let Some(message) = bus.timed_pop_filtered(second, &[gst::MessageType::Error]) {
            check(&message)?;
        }
        bail!("the pipeline did not start");
    }
    loop {
        let Some(message) = bus.timed_pop(gst::ClockTime::from_mseconds(200)) else {
            on(Event::Tick)?;
            continue;
        };
        check(&message)?;
        match message.view() {
            MessageView::Eos(_) => break,
            MessageView::Application(message) => {
                on(Event::Command(message.structure().map_or("", |command| command.name().as_str())))?;
            }
            _ => {}
        }
    }
    last();
    Ok(())
}

/// Event handler of jobs that react to [`STOP`] only.
pub fn until_stopped(event: Event<'_>) -> Result<()> {
    match event {
        Event::Command(STOP) => bail!("stopped"),
        _ => Ok(()),
    }
}

/// Posts a command on the bus of a pipeline.
pub fn post(bus: &gst::Bus, command: &str) {
    // Fails only during the shutdown of the pipeline, when commands have no effect.
    let _ = bus.post(gst::message::Application::new(gst::Structure::new_empty(command)));
}

fn listen(bus: gst::Bus) {
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            post(&bus, &line);
        }
        post(&bus, STOP);
    });
}

fn check(message: &gst::Message) -> Result<()> {
    let MessageView::Error(error) = message.view() else { return Ok(()) };
    let source = message.src().map(|source| source.name().to_string()).unwrap_or_default();
    bail!("{source}: {}", error.error())
}

/// Stops the pipeline before it is dropped.
struct Stop<'a>(&'a gst::Pipeline);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}
