// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interpreter of the calls of one process, over the interface of the engine.
//!
//! A call that names an object that does not exist does nothing, and so does one that would break a
//! rule of the interface, such as a write of a slot on a second stream.

mod arrays;
mod exporting;
mod gpu;
mod reading;

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::exporter::VideoExporter;
use frameshare_cuda::capture::{self, Announced};
use frameshare_cuda::context::Context;
use frameshare_cuda::device::Device;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::graph;

use crate::program::{Process, Program};

static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Reports a result that no correct program has.
pub fn report(what: &str) {
    HAS_FAILED.store(true, Ordering::Relaxed);
    eprintln!("REPORT {what}");
}

/// State that the threads of a worker share.
struct Shared<'a> {
    program: &'a Program,
    process: &'a Process,
    folder: &'a Path,
    context: Arc<Context>,
    exporter: Mutex<Option<VideoExporter>>,
    /// Number of the last content.
    contents: AtomicU64,
    /// Frames on their way to another thread.
    handed: Mutex<Vec<reading::Held>>,
}

impl Shared<'_> {
    fn socket(&self, process: usize) -> PathBuf {
        self.folder.join(format!("{process}.sock"))
    }

    fn exporter(&self) -> Option<VideoExporter> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports an error, unless a call may end with it.
    fn outcome<T, E: std::fmt::Display>(
        &self,
        call: &str,
        result: Result<T, E>,
        is_expected: impl Fn(&E) -> bool,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                // Calls in a known capture are refused.
                let is_captured = self.process.has("capture") && error.to_string().contains("captur");
                if !is_captured && !is_expected(&error) {
                    report(&format!("{call}: {error}"));
                }
                None
            }
        }
    }
}

/// A stream of a thread.
struct Named {
    stream: Arc<Stream>,
    kind: String,
    capture: Option<Announced>,
}

/// A thread of the program.
struct Thread<'a> {
    shared: &'a Shared<'a>,
    streams: BTreeMap<String, Named>,
    exporting: exporting::Exporting,
    reading: reading::Reading,
}

/// Runs the calls of a process.
pub fn run(file: &Path, index: usize, folder: &Path) -> Result<bool> {
    let program = Program::parse(&std::fs::read_to_string(file)?)?;
    let process = program.processes.get(index).context("no such process")?;
    let context = Context::primary(&Device::get(0)?)?;
    let shared = Shared {
        program: &program,
        process,
        folder,
        exporter: Mutex::default(),
        contents: AtomicU64::new(0),
        handed: Mutex::default(),
        context,
    };
    if let Some(options) = &process.export {
        *shared.exporter.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(exporting::open(&shared, index, options)?);
    }
    meet("ready")?;
    std::thread::scope(|scope| {
        for calls in &process.threads {
            let mut thread = Thread {
                shared: &shared,
                streams: BTreeMap::new(),
                exporting: exporting::Exporting::default(),
                reading: reading::Reading::default(),
            };
            scope.spawn(move || {
                if let Err(error) = thread.run(calls) {
                    report(&format!("{error:#}"));
                }
            });
        }
    });
    shared.handed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    meet("done")?;
    drop(shared);
    if !frameshare::wait_for_deferred_drops(Duration::from_secs(5)) {
        report("GPU resources are not freed within 5 s of the end of exporters and readers");
    }
    gpu::end();
    Ok(!HAS_FAILED.load(Ordering::Relaxed))
}

/// Tells the runner what this process has done, and waits until all processes have.
fn meet(what: &str) -> Result<()> {
    println!("{what}");
    std::io::stdout().flush()?;
    let mut line = String::new();
    ensure!(std::io::stdin().lock().read_line(&mut line)? > 0, "the runner has ended");
    Ok(())
}

impl Thread<'_> {
    fn run(&mut self, calls: &[String]) -> Result<()> {
        for call in calls {
            let words: Vec<&str> = call.split(' ').collect();
            self.call(&words).with_context(|| call.clone())?;
        }
        let captured = self.streams.keys().cloned().collect::<Vec<_>>();
        captured.iter().try_for_each(|name| self.end_capture(name))?;
        self.finish_exporting()?;
        self.reading.finish()
    }

    fn call(&mut self, words: &[&str]) -> Result<()> {
        match words {
            ["stream", name, kind] => self.create_stream(name, kind),
            ["destroy", name] => {
                if self.stream(name).is_some() {
                    self.streams.remove(*name);
                }
                Ok(())
            }
            ["sync", name] => self.stream(name).map_or(Ok(()), |stream| Ok(stream.synchronize()?)),
            ["capture", name, mode] => self.begin_capture(name, mode),
            ["end-capture", name] => self.end_capture(name),
            ["pause", us] => {
                std::thread::sleep(Duration::from_micros(us.parse()?));
                Ok(())
            }
            ["die"] => gpu::die(),
            _ => {
                if self.call_exporter(words)? || self.call_reader(words)? {
                    return Ok(());
                }
                bail!("unknown call")
            }
        }
    }

    /// A stream that is not being captured.
    fn stream(&self, name: &str) -> Option<Arc<Stream>> {
        let named = self.streams.get(name).filter(|named| named.capture.is_none())?;
        Some(named.stream.clone())
    }

    /// A stream, captured or not, that any thread may use.
    fn any_stream(&self, name: &str) -> Option<Arc<Stream>> {
        let named = self.streams.get(name).filter(|named| named.kind != "perthread")?;
        Some(named.stream.clone())
    }

    fn create_stream(&mut self, name: &str, kind: &str) -> Result<()> {
        if self.streams.get(name).is_some_and(|named| named.capture.is_some()) {
            return Ok(());
        }
        // The one before is destroyed first, so that its handle can be used again.
        self.streams.remove(name);
        let context =
            if kind == "other" { other_context(&self.shared.context)? } else { self.shared.context.clone() };
        let stream = gpu::stream(&context, kind)?;
        self.streams.insert(name.to_owned(), Named { stream, kind: kind.to_owned(), capture: None });
        Ok(())
    }

    fn begin_capture(&mut self, name: &str, mode: &str) -> Result<()> {
        let uses_legacy = self.shared.process.threads.iter().flatten().any(|call| call.ends_with(" legacy"));
        let Some(named) = self.streams.get_mut(name) else { return Ok(()) };
        let may = match named.kind.as_str() {
            "nonblocking" => true,
            // Work of the NULL stream would invalidate it.
            "blocking" => !uses_legacy,
            _ => false,
        };
        if may && named.capture.is_none() {
            let announced = capture::announce();
            let mode = graph::MODES.iter().find(|(known, _)| *known == mode).context("unknown mode")?.1;
            match graph::begin(&named.stream, mode) {
                Ok(()) => named.capture = Some(announced),
                Err(error) => report(&format!("capture {name}: {error}")),
            }
        }
        Ok(())
    }

    fn end_capture(&mut self, name: &str) -> Result<()> {
        if let Some(named) = self.streams.get_mut(name)
            && let Some(announced) = named.capture.take()
        {
            if let Err(error) = graph::end(&named.stream) {
                report(&format!("end-capture {name}: {error}"));
            }
            drop(announced);
        }
        Ok(())
    }
}

/// A second context of the process, for streams of other code.
fn other_context(first: &Arc<Context>) -> Result<Arc<Context>> {
    static OTHER: Mutex<Option<Arc<Context>>> = Mutex::new(None);
    let mut other = OTHER.lock().unwrap_or_else(PoisonError::into_inner);
    if other.is_none() {
        *other = Some(Context::create(first.device())?);
    }
    Ok(other.as_ref().context("no context")?.clone())
}
