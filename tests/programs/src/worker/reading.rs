// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of a reader.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use frameshare::memory::Address;
use frameshare::reader::{Config, ConnectError, Frame, Item, ReadError, Reader};
use frameshare::{Endpoint, FenceKind, Interrupt, Policy};
use frameshare_cuda::stream::Stream;

use super::{Thread, gpu, report};
use crate::program::option;

/// How long a call waits for a frame.
const WAIT: Duration = Duration::from_millis(30);

/// Objects of a reading thread.
#[derive(Default)]
pub struct Reading {
    // Dropped in this order.
    reads: gpu::Reads,
    frames: BTreeMap<String, Held>,
    readers: BTreeMap<String, Open>,
}

struct Open {
    reader: Reader,
    /// No frame may be lost.
    is_complete: bool,
    /// The exporter dies within its program, and may leave frames unwritten.
    is_mortal: bool,
}

/// A frame that a program holds.
pub struct Held {
    frame: Frame,
    number: u64,
    is_mortal: bool,
    /// Streams that read it and were not named as done.
    on: Vec<Arc<Stream>>,
    /// Streams that the frame was not told of read it.
    is_anywhere: bool,
}

impl Reading {
    /// Verifies all reads.
    pub fn finish(&mut self) -> Result<()> {
        self.reads.verify()
    }
}

impl Thread<'_> {
    /// Makes a call of a reader. Returns whether it is one.
    pub fn call_reader(&mut self, words: &[&str]) -> Result<bool> {
        let shared = self.shared;
        let reading = &mut self.reading;
        match words {
            ["open", name, process, policy, held, place] => {
                self.open(name, process.parse()?, policy, held.parse()?, place)?;
            }
            ["take", name, reader] => self.take(name, reader)?,
            ["read", name, stream] => {
                if let (Some(stream), Some(held)) =
                    (self.any_stream(stream), self.reading.frames.get_mut(*name))
                {
                    let Some(is_checked) = is_checked(held) else { return Ok(true) };
                    let address = held.frame.address_on(&stream);
                    if let Some(address) = shared.outcome("read", address, |_| false) {
                        if let Address::Device(_) = address {
                            held.on.push(stream.clone());
                        }
                        self.read(name, &stream, address, is_checked)?;
                    }
                }
            }
            ["plain", name, stream] => {
                if let (Some(stream), Some(held)) = (self.stream(stream), self.reading.frames.get_mut(*name))
                    && stream.context().as_raw() == shared.context.as_raw()
                {
                    let Some(is_checked) = is_checked(held) else { return Ok(true) };
                    if shared.outcome("wait", held.frame.wait_on(&stream), |_| false).is_some() {
                        held.is_anywhere = true;
                        let address = held.frame.address();
                        self.read(name, &stream, address, is_checked)?;
                    }
                }
            }
            // Wrong: the frame is not told of the second stream, which reads it.
            ["misread", name, named, stream] => {
                if let (Some(named), Some(stream), Some(held)) =
                    (self.stream(named), self.stream(stream), self.reading.frames.get(*name))
                {
                    let address = held.frame.address_on(&named)?;
                    stream.wait_for(&named)?;
                    self.read(name, &stream, address, true)?;
                }
            }
            ["used", name, stream] => {
                if let (Some(stream), Some(held)) =
                    (self.any_stream(stream), self.reading.frames.get_mut(*name))
                {
                    held.frame.used_on_stream(stream.clone());
                    held.on.push(stream);
                }
            }
            ["done", name, stream] => {
                if let (Some(stream), Some(held)) =
                    (self.any_stream(stream), self.reading.frames.get_mut(*name))
                    && shared.outcome("done", held.frame.done_on(&stream), |_| false).is_some()
                {
                    held.on.retain(|on| !Arc::ptr_eq(on, &stream));
                }
            }
            ["release", name, stream] => {
                if let (Some(stream), Some(held)) = (self.any_stream(stream), self.reading.frames.get(*name))
                    && !held.is_anywhere
                    && held.on.iter().all(|on| Arc::ptr_eq(on, &stream))
                    && let Some(held) = self.reading.frames.remove(*name)
                {
                    shared.outcome("release", held.frame.release_on(&stream), |_| false);
                }
            }
            ["drop", name] => _ = reading.frames.remove(*name),
            ["leave", name] => _ = reading.readers.remove(*name),
            ["hand", name] => {
                if let Some(held) = reading.frames.remove(*name) {
                    shared.handed.lock().unwrap_or_else(PoisonError::into_inner).push(held);
                }
            }
            ["fetch", name] => {
                if !reading.frames.contains_key(*name) {
                    let handed = shared.handed.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    if let Some(held) = handed {
                        reading.frames.insert((*name).to_owned(), held);
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn open(&mut self, name: &str, process: usize, policy: &str, held: u32, place: &str) -> Result<()> {
        let policy = if policy == "lossless" { Policy::Lossless } else { Policy::Latest };
        let mut config = Config::default()
            .policy(policy)
            .max_held(held)
            .gpu((place != "host").then(|| self.shared.context.clone()))
            .host_fallback(true)
            .connection_timeout(Some(Duration::from_millis(300)));
        config.written_only = place == "late";
        config.fence = (place == "event").then_some(FenceKind::Event);
        let endpoint = Endpoint::at(self.shared.socket(process))?;
        self.reading.readers.remove(name);
        let reader = Reader::connect(&endpoint, config, &Interrupt::new()?);
        let is_expected = |error: &_| {
            use ConnectError::{NotAnswering, NotThere, Refused};
            matches!(error, NotThere { .. } | NotAnswering { .. } | Refused { .. })
        };
        if let Some(reader) = self.shared.outcome("open", reader, is_expected) {
            let exporter = self.shared.program.processes.get(process);
            let is_mortal = exporter.is_some_and(|process| process.has("die"));
            // Other kinds of memory are imported once in a process. Frames of an import that failed
            // are lost, and counted.
            let options = exporter.and_then(|process| process.export.as_deref()).unwrap_or_default();
            let is_complete = policy == Policy::Lossless && option(options, "memory") == Some("auto");
            self.reading.readers.insert(name.to_owned(), Open { reader, is_complete, is_mortal });
        }
        Ok(())
    }

    fn take(&mut self, name: &str, reader: &str) -> Result<()> {
        let reading = &mut self.reading;
        let Some(open) = reading.readers.get_mut(reader) else { return Ok(()) };
        let until = Instant::now() + WAIT;
        let interrupt = Interrupt::new()?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match open.reader.next(Some(left), &interrupt) {
                Ok(None | Some(Item::EndOfStream)) => return Ok(()),
                Ok(Some(Item::Frame(frame))) => {
                    if open.is_complete && frame.lost_before() > 0 {
                        report(&format!(
                            "take {name}: a lossless reader lost {} frames",
                            frame.lost_before()
                        ));
                    }
                    let number = frame.descriptor().pts.unwrap_or_default();
                    let held =
                        Held { frame, number, is_mortal: open.is_mortal, on: Vec::new(), is_anywhere: false };
                    // The former frame of this name is released now.
                    reading.frames.insert(name.to_owned(), held);
                    return Ok(());
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    let is_expected = match &error {
                        ReadError::Stopped(_) | ReadError::CutOff { .. } => true,
                        ReadError::Gone { .. } => open.is_mortal,
                        _ => false,
                    };
                    if !is_expected {
                        report(&format!("take {name}: {error}"));
                    }
                    reading.readers.remove(reader);
                    return Ok(());
                }
            }
        }
    }

    /// Reads a frame at an address, on a stream if it is in GPU memory.
    fn read(&mut self, name: &str, stream: &Arc<Stream>, address: Address, is_checked: bool) -> Result<()> {
        let Some(held) = self.reading.frames.get(name) else { return Ok(()) };
        let what =
            format!("read {name} of frame {} with content {}", held.frame.descriptor().sequence, held.number);
        match address {
            Address::Device(start) if is_checked => {
                self.reading.reads.read(stream, start, held.frame.len(), held.number, what)?;
            }
            Address::Device(_) => {}
            Address::Host(_) => {
                let bytes: Vec<u8> =
                    held.frame.bytes().iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
                gpu::check(&bytes, gpu::byte_of(held.number), &what);
            }
        }
        Ok(())
    }
}

/// Returns whether the content of a frame is known; `None` if it cannot be read.
fn is_checked(held: &Held) -> Option<bool> {
    // A dead exporter writes no more.
    Some(!held.is_mortal || held.frame.is_written().ok()?)
}
