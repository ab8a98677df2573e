// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of an exporter.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use frameshare::exporter::{
    AcquireError, Config, Frame, History, NewFrame, PublishError, SlowReaders, VideoExporter,
    VideoExporterError,
};
use frameshare::fence::Written;
use frameshare::video::VideoFormat;
use frameshare::{Endpoint, Wait};
use frameshare_cuda::stream::Stream;

use super::{Shared, Thread, arrays::Library, gpu, report};
use crate::program::{SMALLEST, WIDTH, option};

/// How long calls wait for readers.
const WAIT: Wait = Wait::For(Duration::from_millis(300));

/// Objects of an exporting thread.
#[derive(Default)]
pub struct Exporting {
    slots: BTreeMap<String, Slot>,
    library: Library,
}

struct Slot {
    frame: NewFrame,
    /// The stream that writes it, and the number of its content.
    written: Option<(Arc<Stream>, u64)>,
    is_published: bool,
}

fn format(size: u32) -> Result<VideoFormat> {
    Ok(VideoFormat::new("GRAY8".parse()?, WIDTH, SMALLEST * (size + 1)))
}

/// Opens the stream of a process.
pub fn open(shared: &Shared<'_>, process: usize, options: &str) -> Result<VideoExporter> {
    let kind = |name| option(options, name).filter(|kind| *kind != "auto");
    let config = Config::default()
        .gpu(Some(shared.context.clone()))
        .memory(kind("memory").map(str::parse).transpose()?)
        .fence(kind("fence").map(str::parse).transpose()?)
        .history(History::Frames(option(options, "history").unwrap_or("0").parse()?))
        .max_slots(option(options, "slots").unwrap_or("16").parse()?)
        .slow_readers(match option(options, "slow") {
            Some("queue") => SlowReaders::QueueThenWait,
            Some("disconnect") => SlowReaders::QueueThenDisconnect,
            _ => SlowReaders::Wait,
        })
        .reader_timeout(Duration::from_millis(200));
    let endpoint = Endpoint::at(shared.socket(process))?;
    VideoExporter::bind(&endpoint, config, format(0)?, |_| ()).context("cannot export")
}

impl Thread<'_> {
    /// Makes a call of an exporter. Returns whether it is one.
    pub fn call_exporter(&mut self, words: &[&str]) -> Result<bool> {
        let exporter = self.shared.exporter();
        let slots = &mut self.exporting.slots;
        match words {
            ["acquire", name] => {
                if let Some(exporter) = exporter
                    && slots.get(*name).is_none_or(|slot| slot.is_published)
                {
                    slots.remove(*name);
                    let acquired = exporter.acquire(WAIT);
                    let is_expected =
                        |error: &_| matches!(error, AcquireError::Exhausted { .. } | AcquireError::Closed);
                    if let Some(frame) = self.shared.outcome("acquire", acquired, is_expected) {
                        let slot = Slot { frame, written: None, is_published: false };
                        self.exporting.slots.insert((*name).to_owned(), slot);
                    }
                }
            }
            ["write", name, stream] => self.write(name, stream)?,
            ["publish", name, how] => {
                if let Some(exporter) = exporter {
                    self.publish(&exporter, name, how);
                }
            }
            // Wrong: another stream than this one writes the slot.
            ["lie", name, stream] => {
                if let (Some(exporter), Some(stream), Some(slot)) =
                    (exporter, self.stream(stream), self.exporting.slots.get(*name))
                {
                    exporter.publish_on(&slot.frame, &stream, WAIT)?;
                }
            }
            ["fail", name] => {
                if let Some(exporter) = exporter
                    && let Some(Slot { frame, written: Some((stream, _)), is_published: false }) =
                        slots.get(*name)
                {
                    let described = exporter.describe(frame, Written::On(stream));
                    if let Some(described) = self.shared.outcome("describe", described, is_former) {
                        let wrong = Frame { offset: frame.slot().size(), ..described };
                        match exporter.exporter().publish(wrong, WAIT) {
                            Err(PublishError::Invalid(_) | PublishError::Closed | PublishError::Gpu(_)) => {}
                            other => report(&format!("fail: {other:?}")),
                        }
                        slots.remove(*name);
                    }
                }
            }
            ["drop", name] if name.starts_with('f') => self.drop_slot(name)?,
            ["discard", name] => {
                if let Some(exporter) = exporter
                    && let Some(Slot { frame, written: Some((stream, _)), is_published: false }) =
                        slots.get(*name)
                {
                    let slot = Box::new(frame.slot().clone());
                    let dropped = exporter.exporter().drop_after(stream, slot);
                    if self.shared.outcome("discard", dropped, |_| false).is_some() {
                        slots.remove(*name);
                    }
                }
            }
            ["array", library, stream] => {
                if let (Some(exporter), Some(stream)) = (exporter, self.stream(stream)) {
                    self.publish_array(&exporter, library, &stream)?;
                }
            }
            ["format", size] => {
                if let Some(exporter) = exporter {
                    exporter.set_format(format(size.parse()?)?)?;
                }
            }
            ["await", count] => {
                let (count, until) = (count.parse::<usize>()?, Instant::now() + Duration::from_millis(200));
                while exporter.as_ref().is_some_and(|exporter| exporter.exporter().reader_count() < count)
                    && Instant::now() < until
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            ["drain"] => {
                if let Some(exporter) = exporter {
                    exporter.exporter().drain(WAIT)?;
                }
            }
            ["end"] => {
                if let Some(exporter) = exporter {
                    exporter.exporter().end_of_stream();
                }
            }
            ["close"] => {
                drop(self.shared.exporter.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Drops all slots.
    pub fn finish_exporting(&mut self) -> Result<()> {
        let names: Vec<String> = self.exporting.slots.keys().cloned().collect();
        names.iter().try_for_each(|name| self.drop_slot(name))
    }

    fn drop_slot(&mut self, name: &str) -> Result<()> {
        let Some(slot) = self.exporting.slots.remove(name) else { return Ok(()) };
        if let Slot { written: Some((stream, _)), is_published: false, .. } = &slot
            && stream.context().as_raw() != self.shared.context.as_raw()
        {
            // The engine does not wait for unnamed work of another context.
            stream.synchronize()?;
        }
        Ok(())
    }

    fn write(&mut self, name: &str, stream: &str) -> Result<()> {
        let Some(stream) = self.stream(stream) else { return Ok(()) };
        let Some(slot) = self.exporting.slots.get_mut(name) else { return Ok(()) };
        let is_first = slot.written.as_ref().is_none_or(|(writer, _)| Arc::ptr_eq(writer, &stream));
        if is_first && !slot.is_published {
            let number = self.shared.contents.fetch_add(1, Ordering::Relaxed) + 1;
            let start = slot.frame.device_pointer(0).context("the slot is in host memory")?;
            gpu::fill(&stream, start, slot.frame.size(), gpu::byte_of(number))?;
            slot.frame.pts = Some(number);
            slot.written = Some((stream, number));
        }
        Ok(())
    }

    fn publish(&mut self, exporter: &VideoExporter, name: &str, how: &str) {
        let Some(slot) = self.exporting.slots.get_mut(name) else { return };
        let Some((stream, _)) = &slot.written else { return };
        // Context-wide work does not cover streams of another context.
        let is_somewhere = how == "somewhere" && stream.context().as_raw() == self.shared.context.as_raw();
        let published = if is_somewhere {
            exporter.publish(&slot.frame, WAIT)
        } else {
            exporter.publish_on(&slot.frame, stream, WAIT)
        };
        let is_expected = |error: &_| {
            use PublishError::{Closed, NoRoom};
            is_former(error) || matches!(error, VideoExporterError::Publish(Closed | NoRoom))
        };
        if self.shared.outcome("publish", published, is_expected).is_some() {
            slot.is_published = true;
            // The stream may be destroyed as soon as the call has returned.
            if !is_somewhere {
                slot.written = None;
            }
        }
    }

    /// Publishes a copy of an array of a library, which may free the array when the copy is done.
    fn publish_array(&mut self, exporter: &VideoExporter, library: &str, stream: &Arc<Stream>) -> Result<()> {
        let acquired = exporter.acquire(WAIT);
        let is_expected = |error: &_| matches!(error, AcquireError::Exhausted { .. } | AcquireError::Closed);
        let Some(mut frame) = self.shared.outcome("acquire", acquired, is_expected) else { return Ok(()) };
        let number = self.shared.contents.fetch_add(1, Ordering::Relaxed) + 1;
        let array = self.exporting.library.array(library, stream, frame.size())?;
        gpu::fill(stream, array.start(), frame.size(), gpu::byte_of(number))?;
        let start = frame.device_pointer(0).context("the slot is in host memory")?;
        gpu::copy(stream, start, array.start(), frame.size())?;
        frame.pts = Some(number);
        let dropped = exporter.exporter().drop_after(stream, Box::new(array));
        self.shared.outcome("drop_after", dropped, |_| false);
        let published = exporter.publish_on(&frame, stream, WAIT);
        let is_expected = |error: &_| {
            use PublishError::{Closed, NoRoom};
            is_former(error) || matches!(error, VideoExporterError::Publish(Closed | NoRoom))
        };
        self.shared.outcome("publish", published, is_expected);
        Ok(())
    }
}

/// Another thread has changed the format meanwhile.
fn is_former(error: &VideoExporterError) -> bool {
    matches!(error, VideoExporterError::FormerFormat)
}
