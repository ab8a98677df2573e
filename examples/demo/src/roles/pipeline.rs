//! Running a pipeline to its end, with the director's word in between.
//!
//! The director speaks over standard input: a line is a word, and the end is the word [`STOP`]. So a role also ends
//! when the director is killed.

use anyhow::{Context, Result, bail};
use gst::{MessageView, prelude::*};
use std::{io::BufRead, thread};

/// What a pipeline hears when standard input ends.
pub const STOP: &str = "stop";

/// What comes up while a pipeline runs.
pub enum Happening<'a> {
    /// Some time has passed.
    Tick,
    /// The director, or a part of the role itself, said something (see [`say`]).
    Word(&'a str),
}

/// Sets the pipeline's state and returns when it has come to its end. `on` is told what happens meanwhile; `last`
/// is called at the end, while the pipeline still is what it was.
pub fn run(
    pipeline: &gst::Pipeline,
    state: gst::State,
    mut on: impl FnMut(Happening<'_>) -> Result<()>,
    last: impl FnOnce(),
) -> Result<()> {
    let bus = pipeline.bus().context("a pipeline has a bus")?;
    listen(bus.clone());
    let _stopped_at_last = Stop(pipeline);
    if pipeline.set_state(state).is_err() {
        // What went wrong is on the bus.
        let second = gst::ClockTime::from_seconds(1);
        if let Some(message) = bus.timed_pop_filtered(second, &[gst::MessageType::Error]) {
            check(&message)?;
        }
        bail!("the pipeline does not start");
    }
    loop {
        let Some(message) = bus.timed_pop(gst::ClockTime::from_mseconds(200)) else {
            on(Happening::Tick)?;
            continue;
        };
        check(&message)?;
        match message.view() {
            MessageView::Eos(_) => break,
            MessageView::Application(word) => {
                on(Happening::Word(word.structure().map_or("", |word| word.name().as_str())))?;
            }
            _ => {}
        }
    }
    last();
    Ok(())
}

/// For roles that end when they are told to, and need no more than that.
pub fn until_stopped(happening: Happening<'_>) -> Result<()> {
    match happening {
        Happening::Word(STOP) => bail!("stopped"),
        _ => Ok(()),
    }
}

/// Has a word come up in the pipeline of this bus.
pub fn say(bus: &gst::Bus, word: &str) {
    // Fails only while the pipeline is being taken down, when nobody is interested any more.
    let _ = bus.post(gst::message::Application::new(gst::Structure::new_empty(word)));
}

fn listen(bus: gst::Bus) {
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            say(&bus, &line);
        }
        say(&bus, STOP);
    });
}

fn check(message: &gst::Message) -> Result<()> {
    let MessageView::Error(error) = message.view() else { return Ok(()) };
    let source = message.src().map(|source| source.name().to_string()).unwrap_or_default();
    bail!("{source}: {}", error.error())
}

/// No pipeline is dropped while it runs.
struct Stop<'a>(&'a gst::Pipeline);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}
