// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader role of a peer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use frameshare::fence::{FenceError, FenceFault};
use frameshare::reader::{self, Frame, Item, ReadError, Reader};
use frameshare::{Endpoint, Interrupt};
use frameshare_cuda::context::Context;
use frameshare_cuda::event::Event;
use frameshare_gpu_harness::{GIVEN_UP, graph, order, random::Random};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::capture::Captures;
use crate::gpu::{self, Gpu, Scratch};
use crate::job::{Command, Connect, End, Read, Reply, Temporary, Use, WasRead, Where, misplaced};
use crate::measure::{Meter, percentiles, since};

/// Number of pending downloads beyond the reader's credit, so that a frame can be released before
/// its download is complete.
const MORE_ON_THE_WAY: usize = 8;
/// Time limit for a download.
const PATIENCE: Duration = Duration::from_secs(20);

/// A reader and its GPU resources.
pub struct Reading {
    held: VecDeque<Frame>,
    reader: Option<Reader>,
    credit: u32,
    connected_in: Duration,
    gpu: Option<Gpu>,
    /// Another context to read in, created on first use.
    elsewhere: Option<Gpu>,
    captures: Option<(Where, Captures)>,
    scratch: Option<Scratch>,
    random: Random,
    expected: Option<(u64, u64)>,
}

/// Totals of a read run.
#[derive(Default)]
struct Tally {
    frames: u64,
    lost: u64,
    longest_gap: Duration,
    ended_at: u64,
    wake: Vec<f64>,
    done: Vec<f64>,
    metadata: usize,
    metadata_wrong: Option<String>,
    /// Description of errors of frames in host memory.
    wrong: u64,
    first_wrong: Option<String>,
}

/// Returns the engine's configuration.
pub fn config(connect: &Connect, gpu: Option<&Gpu>) -> reader::Config {
    let default = reader::Config::default();
    let mut config = reader::Config::default()
        .policy(connect.policy)
        .max_held(connect.max_held.unwrap_or(default.max_held))
        .max_queued(frameshare::MAX_CREDIT)
        .spin(connect.spin)
        .gpu(gpu.map(|gpu| gpu.context.clone()))
        .host_fallback(connect.host_fallback)
        .fence(connect.fence)
        .connection_timeout(
            connect
                .connection_timeout_ms
                .map_or(default.connection_timeout, |ms| Some(Duration::from_millis(ms))),
        )
        .reconnect(connect.reconnect)
        .exporter_uid(connect.exporter_uid)
        .fence_timeout(connect.fence_timeout_ms.map_or(GIVEN_UP, Duration::from_millis));
    config.written_only = connect.written_only;
    config
}

impl Reading {
    /// Connects in the primary context of a device.
    pub fn connect(connect: &Connect) -> Result<Reading> {
        let gpu = if connect.host { None } else { Some(Gpu::open(connect.device)?) };
        Reading::open(connect, gpu)
    }

    /// Connects in a given context of this process.
    pub fn connect_in(connect: &Connect, context: Arc<Context>) -> Result<Reading> {
        Reading::open(connect, Some(Gpu::with(context)?))
    }

    fn open(connect: &Connect, gpu: Option<Gpu>) -> Result<Reading> {
        let config = config(connect, gpu.as_ref());
        let begin = Instant::now();
        let reader = Reader::connect(&Endpoint::at(&connect.path)?, config, &Interrupt::new()?)?;
        Ok(Reading {
            held: VecDeque::new(),
            credit: reader.credit(),
            reader: Some(reader),
            connected_in: begin.elapsed(),
            gpu,
            elsewhere: None,
            captures: None,
            scratch: None,
            random: Random::new(connect.seed),
            expected: None,
        })
    }

    /// Returns the report to the case.
    pub fn connected(&self) -> Reply {
        Reply::Connected { credit: self.credit, ms: self.connected_in.as_millis() as u64 }
    }

    /// Executes one command.
    pub fn work(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Read(job) => {
                let read = self.read(&job);
                if job.leave {
                    drop(self.reader.take());
                }
                return read.map(|read| Reply::Read(Box::new(read)));
            }
            Command::ReadInCapture => return self.read_in_capture().map(Reply::Texts),
            Command::ReleaseHeld { count } => drop(self.held.drain(..count.min(self.held.len()))),
            Command::CheckHeld => return self.check_held().map(Reply::Texts),
            Command::Disconnect => drop(self.reader.take()),
            Command::StallReading { us } => gpu::stall(&self.gpu()?.stream, us)?,
            Command::LongKernels { ms, count } => gpu::long_kernels(&self.gpu()?.stream, ms, count)?,
            Command::LoseContext => gpu::lose_context(self.gpu()?)?,
            other => return misplaced(&other),
        }
        Ok(Reply::Done)
    }

    fn gpu(&self) -> Result<&Gpu> {
        self.gpu.as_ref().context("the reader has no GPU")
    }

    fn read(&mut self, job: &Read) -> Result<WasRead> {
        if !at_home(job.on) && self.elsewhere.is_none() {
            self.elsewhere = Some(self.gpu()?.another()?);
        }
        if job.what != Use::Check && self.scratch.is_none() {
            self.scratch = Some(Scratch::new(self.gpu()?, 4096)?);
        }
        let watched = self.gpu.as_ref().map(|gpu| Event::new(&gpu.context)).transpose()?;
        let interrupt = Interrupt::new()?;
        let patience = Duration::from_millis(job.patience_ms);
        let mut tally = Tally::default();
        let mut meter = Meter::new(job.count_from);
        let mut last = Instant::now();
        let end = loop {
            if job.frames.is_some_and(|frames| tally.frames >= frames) {
                break End::Enough;
            }
            meter.before(tally.frames);
            let reader = self.reader.as_mut().context("the reader was dropped")?;
            let next = match job.by_descriptor {
                true => next_by_descriptor(reader, patience),
                false => reader.next(Some(patience), &interrupt),
            };
            let item = match next {
                Ok(Some(item)) => item,
                Ok(None) => break End::Nothing,
                Err(error) => {
                    let end = ended_by(&error);
                    ensure_final(reader, &error)?;
                    break end;
                }
            };
            let before = std::mem::replace(&mut last, Instant::now());
            match item {
                Item::Frame(frame) => {
                    if tally.frames > 0 {
                        tally.longest_gap = tally.longest_gap.max(last - before);
                    }
                    self.take(frame, job, watched.as_ref(), &mut tally)?;
                }
                Item::EndOfStream => break End::Stream,
                Item::Format(_) | Item::Event(_) | Item::Reconnected => {}
            }
        };
        tally.ended_at = frameshare::monotonic_ns();
        if job.leave {
            drop(self.reader.take());
        }
        let steady = meter.stop(tally.frames);
        self.settle(job, tally, end, steady)
    }

    /// Processes a frame as the command says and releases it at once: the release fence covers work
    /// that is still pending.
    fn take(&mut self, frame: Frame, job: &Read, watched: Option<&Event>, tally: &mut Tally) -> Result<()> {
        if job.what != Use::Check {
            tally.wake.push(since(frame.descriptor().published));
        }
        tally.frames += 1;
        tally.lost += frame.lost_before();
        let (session, sequence) = (frame.session(), frame.descriptor().sequence.0);
        if let Some((before, expected)) = self.expected.replace((session, sequence + 1))
            && before == session
        {
            ensure!(
                sequence == expected + frame.lost_before(),
                "frame {sequence} arrived instead of {expected}"
            );
        }
        tally.metadata += frame.metadata().len();
        if frame.metadata().chunks(8).any(|number| number != sequence.to_le_bytes()) {
            tally.metadata_wrong =
                Some(format!("frame {sequence} arrived with the metadata of another frame"));
        }
        if frame.as_ptr().is_some() {
            look(&frame, tally);
            return Ok(());
        }
        if job.what == Use::Check {
            self.make_room(job.on, frame.len())?;
        }
        let gpu = if at_home(job.on) { self.gpu.as_ref() } else { self.elsewhere.as_ref() };
        let Some(gpu) = gpu else { bail!("the reader has no GPU") };
        let mut stream = gpu.stream.clone();
        if job.temporary.is_some() {
            stream = Arc::new(gpu.another_stream()?);
        }
        if !job.without_wait && !job.named && job.temporary.is_none() {
            std::thread::sleep(Duration::from_millis(job.sit_ms));
            match frame.wait_on(&stream) {
                // The reader reports the cause at the request for the next frame.
                Err(FenceError { cause: FenceFault::WentBack { .. }, .. }) => return Ok(()),
                waits => waits?,
            }
        }
        let from = match (job.temporary, job.named) {
            (Some(Temporary::Named), _) => frame.address_on(&Arc::new(Gpu::raw_handle(&stream)))?,
            (Some(_), _) | (None, true) => frame.address_on(&stream)?,
            (None, false) => frame.address(),
        };
        if job.temporary == Some(Temporary::DoneEarly) {
            frame.done_on(&stream)?;
        }
        let from = gpu::device(from)?;
        gpu::slow(&stream, job.slow, &mut self.random)?;
        let expected = if job.zero { 0 } else { gpu::byte_of(sequence) };
        match (job.what, &mut self.captures, &self.scratch) {
            (Use::Check, Some((_, captures)), _) => {
                captures.begin((&frame, from), expected, &stream, PATIENCE)?;
            }
            (Use::Touch | Use::Watch, _, Some(scratch)) => scratch.touch(&frame, from, &stream)?,
            _ => bail!("no GPU resources for this mode"),
        }
        if job.temporary == Some(Temporary::Done) {
            frame.done_on(&stream)?;
        }
        drop(stream);
        if job.on == Where::Elsewhere {
            frame.used_on_stream(gpu.another_handle());
        }
        let published = frame.descriptor().published;
        if self.held.len() < job.hold {
            self.held.push_back(frame);
        } else if matches!(job.on, Where::OwnInOrder | Where::ElsewhereInOrder) {
            frame.release_on(&gpu.stream)?;
        } else {
            drop(frame);
        }
        if let (Some(ms), Some((_, captures))) = (job.at_once_ms, &mut self.captures) {
            let stuck = captures.settle(Duration::from_millis(ms))?;
            ensure!(stuck == 0, "the stream is stuck: a download did not complete within {ms} ms");
        }
        if let (Use::Watch, Some(watched)) = (job.what, watched) {
            watched.record(&gpu.stream)?;
            let until = Instant::now() + PATIENCE;
            while !watched.query()?.is_ready() {
                ensure!(Instant::now() < until, "the frame was not written in time");
            }
            tally.done.push(since(published));
        }
        Ok(())
    }

    /// Allocates download buffers in the context that downloads run in.
    fn make_room(&mut self, on: Where, size: usize) -> Result<()> {
        if let Some((there, captures)) = &mut self.captures {
            if at_home(*there) == at_home(on) && captures.fit(size) {
                return Ok(());
            }
            ensure!(captures.settle(PATIENCE)? == 0, "a download does not complete");
        }
        let gpu = if at_home(on) { self.gpu.as_ref() } else { self.elsewhere.as_ref() };
        let (mut wrong, mut first_wrong) = (0, None);
        if let Some((_, old)) = self.captures.take() {
            (wrong, first_wrong) = (old.wrong, old.first_wrong.clone());
        }
        let mut captures = Captures::new(
            gpu.context("the reader has no GPU")?,
            self.credit as usize + MORE_ON_THE_WAY,
            size,
        )?;
        (captures.wrong, captures.first_wrong) = (wrong, first_wrong);
        self.captures = Some((on, captures));
        Ok(())
    }

    /// Waits for pending downloads and returns the totals.
    fn settle(&mut self, job: &Read, tally: Tally, end: End, steady: crate::job::Steady) -> Result<WasRead> {
        let begin = Instant::now();
        let (mut stuck, mut wrong, mut first_wrong) = (0, tally.wrong, tally.first_wrong);
        if let Some((on, mut captures)) = self.captures.take() {
            stuck = captures.settle(job.settle_ms.map_or(PATIENCE, Duration::from_millis))?;
            wrong += captures.wrong;
            first_wrong = captures.first_wrong.take().or(first_wrong);
            captures.wrong = 0;
            if stuck == 0 {
                self.captures = Some((on, captures));
            } else {
                ensure!(job.settle_ms.is_some(), "{stuck} downloads do not complete");
                captures.abandon();
            }
        } else if let Some(gpu) = self.gpu.as_ref().filter(|_| job.settle_ms.is_none()) {
            gpu.stream.synchronize()?;
        }
        if let Some(text) = tally.metadata_wrong {
            bail!("{text}");
        }
        Ok(WasRead {
            frames: tally.frames,
            lost: tally.lost,
            metadata: tally.metadata,
            wrong,
            first_wrong,
            end,
            ended_at: tally.ended_at,
            longest_gap_ms: tally.longest_gap.as_secs_f64() * 1e3,
            settled_ms: begin.elapsed().as_millis() as u64,
            stuck,
            reconnects: self.reader.as_ref().map_or(0, |reader| reader.stats().reconnects),
            steady,
            wake_us: percentiles(tally.wake),
            done_us: percentiles(tally.done),
        })
    }

    /// Takes a frame while the reading stream is captured. Returns the errors.
    fn read_in_capture(&mut self) -> Result<Vec<String>> {
        let stream = Arc::clone(&self.gpu()?.stream);
        let reader = self.reader.as_mut().context("the reader was dropped")?;
        let frame = loop {
            match reader.next(Some(PATIENCE), &Interrupt::new()?)? {
                Some(Item::Frame(frame)) => break frame,
                Some(_) => {}
                None => bail!("no frame arrived"),
            }
        };
        graph::begin(&stream, 0).map_err(|error| anyhow!(error))?;
        let taken = frame.address_on(&stream).map(|_| ()).and_then(|()| frame.wait_on(&stream));
        let released = frame.release_on(&stream);
        graph::end(&stream).map_err(|error| anyhow!(error))?;
        let errors = [taken, released].map(|result| result.err().map(|error| error.to_string()));
        errors.into_iter().map(|error| error.context("a captured stream got a frame")).collect()
    }

    /// Reads held frames again and returns a description of each error.
    fn check_held(&mut self) -> Result<Vec<String>> {
        let room = self.held.iter().map(Frame::len).max().unwrap_or(1);
        let gpu = self.gpu.as_ref().context("the reader has no GPU")?;
        let mut captures = Captures::new(gpu, self.held.len().max(1), room)?;
        for frame in &self.held {
            let expected = gpu::byte_of(frame.descriptor().sequence.0);
            let from = gpu::device(frame.address())?;
            captures.begin((frame, from), expected, &gpu.stream, PATIENCE)?;
        }
        ensure!(captures.settle(PATIENCE)? == 0, "the download of a held frame does not complete");
        Ok(captures.first_wrong.take().into_iter().collect())
    }
}

/// Returns the next item, by waiting on the descriptor as an event loop does.
fn next_by_descriptor(reader: &mut Reader, patience: Duration) -> Result<Option<Item>, ReadError> {
    let until = Instant::now() + patience;
    loop {
        if let Some(item) = reader.try_next()? {
            return Ok(Some(item));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let sleep = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        poll(&mut [PollFd::new(&*reader, PollFlags::IN)], Some(&sleep))
            .map_err(|error| ReadError::Io(error.into()))?;
    }
}

/// Returns whether frames are processed in the reader's own context.
fn at_home(on: Where) -> bool {
    matches!(on, Where::Own | Where::OwnInOrder)
}

/// Checks every byte of a frame in host memory.
fn look(frame: &Frame, tally: &mut Tally) {
    let sequence = frame.descriptor().sequence.0;
    let expected = gpu::byte_of(sequence);
    order::reads(frame.bytes());
    let wrong = frame.bytes().iter().filter(|byte| byte.load(Ordering::Relaxed) != expected).count();
    if wrong > 0 {
        tally.wrong += 1;
        let text = format!("frame {sequence}: {wrong} of {} bytes in host memory are wrong", frame.len());
        tally.first_wrong.get_or_insert(text);
    }
}

/// Checks that a reader repeats the same final error after the connection to its exporter is lost.
fn ensure_final(reader: &mut Reader, error: &ReadError) -> Result<()> {
    if error.is_exporter_gone() {
        let again = reader.try_next();
        let is_same = matches!(&again, Err(again) if again.is_exporter_gone());
        ensure!(is_same, "after \"{error}\" the reader returns {again:?}");
    }
    Ok(())
}

fn ended_by(error: &ReadError) -> End {
    let (torn, lost) = match error {
        ReadError::Gone { torn, lost } | ReadError::Stalled { torn, lost, .. } => (*torn, *lost),
        _ => (0, 0),
    };
    let kind = match error {
        ReadError::Gone { .. } => "Gone",
        ReadError::Stalled { .. } => "Stalled",
        ReadError::Stopped(_) => "Stopped",
        ReadError::Fence(_) => "Fence",
        ReadError::CutOff { .. } => "CutOff",
        ReadError::NotBack(_) => "NotBack",
        ReadError::TooMuchMetadata { .. } => "TooMuchMetadata",
        ReadError::Violation(_) => "Violation",
        ReadError::Memory(_) => "Memory",
        ReadError::Gpu(_) => "Gpu",
        _ => "Io",
    };
    End::Error { kind: kind.to_owned(), torn, lost, text: error.to_string() }
}
