// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pipeline that runs to its end, and stops when it is dropped.

use anyhow::{Context, Result, bail};
use gst::{ClockTime, MessageType, MessageView, SeekFlags, SeekType, prelude::*};

pub struct Pipeline(gst::Pipeline);

impl Pipeline {
    /// Creates the pipeline of a description, as gst-launch-1.0 does.
    pub fn parse(description: &str) -> Result<Self> {
        let pipeline = gst::parse::launch(description)?.downcast();
        Ok(Self(pipeline.ok().context("the description is not a pipeline")?))
    }

    /// Returns an element by its name.
    pub fn element(&self, name: &str) -> Result<gst::Element> {
        self.0.by_name(name).with_context(|| format!("the pipeline has no element {name}"))
    }

    /// Waits until the first frame has reached each sink, which takes no further one until
    /// [`Pipeline::run`].
    pub fn preroll(&self) -> Result<()> {
        let is_ready = self.0.set_state(gst::State::Paused).and_then(|_| self.0.state(None).0);
        self.check(is_ready.is_ok())
    }

    /// Plays the pipeline to its end, `loops` times as one continuous stream. Calls `on_tick` with
    /// the number of the loop, about ten times a second.
    ///
    /// # Errors
    ///
    /// The first error of an element or of `on_tick`.
    pub fn run(&self, loops: u32, on_tick: impl Fn(u32) -> Result<()>) -> Result<()> {
        // The end of a segment does not end the stream. A seek without a flush continues its time.
        let rewind = |flags: SeekFlags, is_last: bool| {
            let flags = if is_last { flags } else { flags | SeekFlags::SEGMENT };
            self.0.seek(1.0, flags, SeekType::Set, ClockTime::ZERO, SeekType::None, ClockTime::NONE)
        };
        if loops > 1 {
            rewind(SeekFlags::FLUSH, false).context("this file cannot be repeated: use --loops 1")?;
        }
        self.check(self.0.set_state(gst::State::Playing).is_ok())?;
        let mut current = 1;
        loop {
            on_tick(current)?;
            match self.next_message(100)?.as_ref().map(|message| message.type_()) {
                Some(MessageType::SegmentDone) => {
                    current += 1;
                    rewind(SeekFlags::empty(), current >= loops)?;
                }
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }

    fn check(&self, has_succeeded: bool) -> Result<()> {
        if !has_succeeded {
            // The cause is on the bus.
            self.next_message(1000)?;
            bail!("the pipeline does not start");
        }
        Ok(())
    }

    /// Waits for the end of the stream or of a segment, or an error.
    fn next_message(&self, milliseconds: u64) -> Result<Option<gst::Message>> {
        let bus = self.0.bus().context("the pipeline has no bus")?;
        let timeout = ClockTime::from_mseconds(milliseconds);
        let message = bus
            .timed_pop_filtered(timeout, &[MessageType::Eos, MessageType::SegmentDone, MessageType::Error]);
        if let Some(MessageView::Error(error)) = message.as_ref().map(|message| message.view()) {
            let source = error.src().map(|source| source.name().to_string()).unwrap_or_default();
            bail!("{source}: {}", error.error());
        }
        Ok(message)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

/// Calls `look` with each frame on a pad. Its error ends the pipeline.
pub fn watch_frames(
    pad: &gst::Pad,
    look: impl Fn(&gst::BufferRef, &gst::CapsRef) -> Result<()> + Send + Sync + 'static,
) {
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let Some(buffer) = info.buffer() else { return gst::PadProbeReturn::Ok };
        let caps = pad.current_caps().context("frames arrived before their caps");
        if let (Err(error), Some(element)) = (caps.and_then(|caps| look(buffer, &caps)), pad.parent_element())
        {
            gst::element_error!(element, gst::StreamError::Failed, ("{error:#}"));
        }
        gst::PadProbeReturn::Ok
    });
}
