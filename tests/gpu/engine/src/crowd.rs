// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many readers in one process, each with a stream of its own: readers of one exporter, and links
//! of rings of exporters that read from each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::exporter::{self, Exporter, Purpose};
use frameshare::fence::Written;
use frameshare::reader::{self, Frame, Item, ReadError, Reader};
use frameshare::{Endpoint, Interrupt, Policy, Wait};
use frameshare_cuda::event::Event;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::{GIVEN_UP, random::Random};

use crate::capture::Captures;
use crate::exporting::frame_in;
use crate::gpu::{self, Gpu, Scratch};
use crate::job::{Connect, Crowded, Slow};
use crate::reading;

/// Size of the frames of a crowd's exporter and of a ring.
pub const SIZE: u64 = 512 << 10;

/// Time for work of a stream that does not wait.
const SOON: Duration = Duration::from_secs(1);

/// Readers of one process.
pub struct Crowd {
    readers: Vec<Member>,
    gpu: Gpu,
    /// A stream that waits for no frame, and its memory.
    other: (Arc<Stream>, Scratch),
    captures: Captures,
}

struct Member {
    reader: Reader,
    stream: Arc<Stream>,
    is_ended: bool,
}

impl Crowd {
    pub fn connect(connect: &Connect, count: usize) -> Result<Crowd> {
        let gpu = Gpu::open(connect.device)?;
        let members = (0..count).map(|_| {
            let config = reading::config(connect, Some(&gpu));
            let reader = Reader::connect(&Endpoint::at(&connect.path)?, config, &Interrupt::new()?)?;
            Ok(Member { reader, stream: Arc::new(gpu.another_stream()?), is_ended: false })
        });
        let readers = members.collect::<Result<Vec<_>>>()?;
        let other = (Arc::new(gpu.another_stream()?), Scratch::new(&gpu, 4096)?);
        let captures = Captures::new(&gpu, count, SIZE as usize)?;
        Ok(Crowd { readers, gpu, other, captures })
    }

    /// Each reader takes a frame, if it comes within the time, and downloads it on its stream. Then
    /// another stream works.
    pub fn take(&mut self, ms: u64) -> Result<Crowded> {
        let until = Instant::now() + Duration::from_millis(ms);
        let mut found = Crowded::default();
        let mut missing: Vec<_> = self.readers.iter_mut().filter(|member| !member.is_ended).collect();
        while !missing.is_empty() && Instant::now() < until {
            let mut left = Vec::new();
            for member in missing {
                match member.reader.try_next() {
                    Ok(Some(Item::Frame(frame))) => {
                        let from = gpu::device(frame.address_on(&member.stream)?)?;
                        let expected = gpu::byte_of(frame.descriptor().sequence.0);
                        self.captures.begin((&frame, from), expected, &member.stream, GIVEN_UP)?;
                        found.frames += 1;
                    }
                    Ok(_) => left.push(member),
                    Err(ReadError::Gone { torn, lost }) => {
                        found.torn += torn;
                        found.lost += lost;
                        member.is_ended = true;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            missing = left;
            std::thread::sleep(Duration::from_millis(1));
        }
        let (stream, memory) = &self.other;
        memory.fill(stream)?;
        found.is_held_back = !is_done(&Event::behind(stream, stream.context())?, SOON)?;
        found.limited = self.readers.iter().map(|member| member.reader.stats().gpu_wait_limited).sum();
        Ok(found)
    }

    /// Waits for all downloads. Returns the number of those that do not complete, or are wrong.
    pub fn settle(&mut self) -> Result<u64> {
        let stuck = self.captures.settle(SOON)?;
        if stuck > 0 {
            self.captures = Captures::new(&self.gpu, self.readers.len(), SIZE as usize)?;
        }
        Ok(stuck as u64 + self.captures.wrong)
    }
}

/// Returns whether the event is complete within a time.
fn is_done(event: &Event, within: Duration) -> Result<bool> {
    let until = Instant::now() + within;
    while !event.query()?.is_ready() {
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

/// The exporters of one process, each of which is a link of another ring.
pub struct Rings {
    // Dropped first: the exporter may wait for work on the streams.
    links: Vec<(Exporter, Arc<Stream>)>,
    gpu: Gpu,
}

impl Rings {
    pub fn bind(paths: &[String]) -> Result<Rings> {
        let gpu = Gpu::open(0)?;
        let bind = |path: &String| -> Result<_> {
            let config = exporter::Config::default()
                .reader_timeout(GIVEN_UP)
                .fence_timeout(GIVEN_UP)
                .gpu(Some(gpu.context.clone()));
            let exporter = Exporter::bind(&Endpoint::at(path)?, config, |_| {})?;
            Ok((exporter, Arc::new(gpu.another_stream()?)))
        };
        let links = paths.iter().map(bind).collect::<Result<Vec<_>>>()?;
        Ok(Rings { links, gpu })
    }

    /// Copies each frame of the links before into a frame of its own, with a delay on the stream,
    /// so many times for each ring. The process that begins publishes the first frames and checks
    /// the ones that come back. Returns the number of wrong ones.
    pub fn relay(&mut self, befores: &[String], begins: bool, rounds: u64, seed: u64) -> Result<u64> {
        let mut random = Random::new(seed);
        let connect = |path: &String| -> Result<Reader> {
            let config = reader::Config::default()
                .policy(Policy::Lossless)
                .fence_timeout(GIVEN_UP)
                .gpu(Some(self.gpu.context.clone()));
            Ok(Reader::connect(&Endpoint::at(path)?, config, &Interrupt::new()?)?)
        };
        let mut readers = befores.iter().map(connect).collect::<Result<Vec<_>>>()?;
        let mut captures = Captures::new(&self.gpu, 2 * readers.len(), SIZE as usize)?;
        let until = Instant::now() + GIVEN_UP;
        for (number, (exporter, stream)) in self.links.iter_mut().enumerate().filter(|_| begins) {
            while exporter.stats().readers.is_empty() {
                ensure!(Instant::now() < until, "the next link has not connected");
                std::thread::sleep(Duration::from_millis(1));
            }
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::Forever)?;
            gpu::slow(stream, Slow::Always(20_000), &mut random)?;
            gpu::write(&slot, 0, SIZE, number as u64, stream)?;
            let frame = exporter::Frame { written: Written::On(stream), size: SIZE, ..frame_in(&slot) };
            exporter.publish(frame, Wait::Forever)?;
        }
        let mut left = vec![rounds; readers.len()];
        while left.iter().any(|left| *left > 0) {
            ensure!(Instant::now() < until, "rings do not go on: {left:?} rounds are left");
            for (number, reader) in readers.iter_mut().enumerate() {
                let frame: Frame = match reader.try_next()? {
                    Some(Item::Frame(frame)) => frame,
                    Some(Item::EndOfStream) => bail!("ring {number} ended"),
                    _ => continue,
                };
                left[number] = left[number].saturating_sub(1);
                let (exporter, stream) = &mut self.links[number];
                let from = gpu::device(frame.address_on(stream)?)?;
                if begins {
                    captures.begin((&frame, from), gpu::byte_of(number as u64), stream, GIVEN_UP)?;
                }
                if begins && left[number] == 0 {
                    continue;
                }
                let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::Forever)?;
                gpu::slow(stream, Slow::Sometimes(2000), &mut random)?;
                gpu::copy(&frame, from, &slot, stream)?;
                let frame = exporter::Frame { written: Written::On(stream), size: SIZE, ..frame_in(&slot) };
                exporter.publish(frame, Wait::Forever)?;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let stuck = captures.settle(GIVEN_UP)?;
        let wrong = captures.wrong + stuck as u64;
        for (exporter, _) in &mut self.links {
            exporter.drain(Wait::For(GIVEN_UP))?;
        }
        self.links.first().context("no ring")?;
        Ok(wrong)
    }
}
