// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reception of cameras: each stream of a camera in one session, which is opened again after it is
//! lost.

mod branch;
mod number;
mod outlet;
mod raw;
mod session;
mod stamp;
mod timeline;

use super::{Context, attempts::Attempts, pipeline::End, status::Status};
use crate::{
    config::{Camera, Source},
    report::Condition,
};
use anyhow::{Result, bail};
use raw::Raw;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::{Outlets, Session};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Interval of checks.
const TICK: Duration = Duration::from_millis(200);
/// Time without a unit after which a session counts as lost.
const STALLED: Duration = Duration::from_secs(10);

/// Maximum private memory of the process, and in addition of each camera. A 3840x2160 camera needs
/// 80 MB, a raw one with its encoder 270 MB. Frames and units in shared memory are not counted.
const MEMORY: u64 = 256 << 20;

/// Bounds the memory of a process that receives so many cameras.
pub fn bound_memory(cameras: usize) {
    let limit = getrlimit(Resource::Data);
    let current = Some(MEMORY * (1 + cameras as u64));
    // Fails if the hard limit is lower, which bounds the memory as well.
    let _ = setrlimit(Resource::Data, Rlimit { current, ..limit });
}

/// Receives a camera until the role is stopped.
pub fn run(context: &Context, camera: &Camera) {
    let status = Arc::new(Status::new(&context.reporter, &camera.name));
    thread::scope(|scope| {
        if let Some(sub) = &camera.sub {
            let stream = Stream { context, camera, source: sub, part: "sub", status: status.clone() };
            scope.spawn(move || stream.keep());
        }
        let part = if camera.sub.is_some() { "main" } else { "" };
        Stream { context, camera, source: &camera.main, part, status }.keep();
    });
}

/// One stream of a camera.
struct Stream<'a> {
    context: &'a Context<'a>,
    camera: &'a Camera,
    source: &'a Source,
    /// Name in reports.
    part: &'static str,
    status: Arc<Status>,
}

/// Progress of an attempt.
struct Progress {
    units: u64,
    /// Time of the first unit.
    begin: Option<Instant>,
    last: Instant,
}

impl Stream<'_> {
    /// Receives the stream until the role is stopped.
    fn keep(&self) {
        let mut attempts = Attempts::new(self.context, &self.status, self.part);
        let mut outlets = None;
        let mut sessions = 0.0;
        while !self.context.stop.is_set() {
            sessions += 1.0;
            self.status
                .value(&format!("{}_sessions", if self.part == "sub" { "sub" } else { "main" }), sessions);
            let mut progress = Progress { units: 0, begin: None, last: Instant::now() };
            let result = match self.source.is_raw() {
                true => self.raw(&mut progress),
                false => self.encoded(&mut outlets, &mut progress),
            };
            let Err(error) = result else { continue };
            if !attempts.failed(&error, progress.begin) {
                return;
            }
        }
    }

    fn raw(&self, progress: &mut Progress) -> Result<()> {
        self.status.set(self.part, Condition::Waiting, "starting");
        let raw = Raw::start(self.camera, &self.context.config.access)?;
        while !self.context.stop.is_set() {
            match raw.wait(TICK) {
                Some(End::Failed(error)) => bail!(error),
                Some(End::EndOfStream) => bail!("the source ended"),
                None => self.follow(progress, raw.frames(), || raw.description())?,
            }
        }
        Ok(())
    }

    /// Receives one session, or plays a file once. The streams stay open for the next session
    /// unless their exporter failed.
    fn encoded(&self, kept: &mut Option<Arc<Outlets>>, progress: &mut Progress) -> Result<()> {
        let outlets = match kept.take() {
            Some(outlets) => outlets,
            None => Arc::new(self.open()?),
        };
        let result = self.session(&outlets, progress);
        outlets.check()?;
        *kept = Some(outlets);
        result
    }

    fn session(&self, outlets: &Arc<Outlets>, progress: &mut Progress) -> Result<()> {
        let before = outlets.video().units();
        if before == 0 {
            self.status.set(self.part, Condition::Waiting, format!("connecting to {}", self.source));
        }
        let session = Session::start(self.source, outlets)?;
        while !self.context.stop.is_set() {
            let end = session.wait(TICK);
            outlets.check()?;
            self.follow(progress, outlets.video().units() - before, || outlets.video().description())?;
            match (end, self.source) {
                (None, _) => {}
                (Some(End::EndOfStream), Source::File(_)) if progress.units > 0 => break,
                (Some(End::EndOfStream), Source::File(_)) => bail!("no video in {}", self.source),
                (Some(End::EndOfStream), _) => bail!("the camera ended the stream"),
                (Some(End::Failed(error)), _) => bail!(error),
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<Outlets> {
        let access = &self.context.config.access;
        match self.part {
            "sub" => Outlets::open(&self.camera.encoded_sub(), None, access),
            _ => Outlets::open(&self.camera.encoded(), Some(self.camera.audio()), access),
        }
    }

    /// Reports the stream as running once units arrive.
    fn follow(&self, progress: &mut Progress, units: u64, text: impl Fn() -> Option<String>) -> Result<()> {
        if units > progress.units {
            progress.units = units;
            progress.last = Instant::now();
            progress.begin.get_or_insert(progress.last);
            self.status.set(self.part, Condition::Running, text().unwrap_or_default());
        } else if progress.last.elapsed() > STALLED {
            bail!("no video for {} s", STALLED.as_secs());
        }
        Ok(())
    }
}
