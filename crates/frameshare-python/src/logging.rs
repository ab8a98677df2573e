// SPDX-License-Identifier: MIT OR Apache-2.0

//! Records of the engine, passed on to the logger "frameshare" of Python's `logging`.
//!
//! Threads of the engine, and threads that hold its locks, never wait for the GIL: a record goes to
//! a queue. A thread passes the queue on and ends when it is empty, so that an idle process has no
//! thread of it. At the interpreter's end [`finish`] waits for that thread, since a thread must not
//! call Python later.

use frameshare_process::PerProcess;
use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::{prelude::*, types::PyAnyMethods};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Name of the thread that passes records on, also in Python, whose `logging` registers it.
pub const THREAD: &str = "frameshare-log";
/// Maximum number of records that wait; more are counted and dropped.
const MAX_WAITING: usize = 256;

/// The records of one process. A forked child does not pass on those of its parent.
#[derive(Default)]
struct Records {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Level, String)>,
    dropped: u64,
    /// A thread passes records on.
    is_running: bool,
    is_finishing: bool,
}

static RECORDS: PerProcess<Records> = PerProcess::new(Records::default);

impl Records {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next record. `None` ends the thread.
    fn next(&self) -> Option<(Level, String)> {
        let mut state = self.lock();
        if state.dropped > 0 && state.waiting.is_empty() {
            let dropped = std::mem::take(&mut state.dropped);
            return Some((
                Level::Warn,
                format!("{dropped} records of the engine are dropped: too many came at once"),
            ));
        }
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.is_running = false;
            self.finished.notify_all();
        }
        next
    }
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The engine's, and this crate's, whose module is named `_frameshare`.
        metadata.target().trim_start_matches('_').starts_with("frameshare") && metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        let mut state = RECORDS.lock();
        if state.is_finishing {
            return;
        }
        if state.waiting.len() >= MAX_WAITING {
            state.dropped += 1;
            return;
        }
        state.waiting.push_back((record.level(), text));
        if !state.is_running {
            let builder = thread::Builder::new().name(THREAD.into());
            state.is_running = builder.spawn(pass_on).is_ok();
        }
    }

    fn flush(&self) {}
}

fn pass_on() {
    while let Some((level, text)) = RECORDS.next() {
        // The interpreter has ended otherwise.
        let _ = Python::try_attach(|py| {
            if let Err(error) = pass(py, level, &text) {
                error.write_unraisable(py, None);
            }
        });
    }
}

fn pass(py: Python<'_>, level: Level, text: &str) -> PyResult<()> {
    let level = match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug | Level::Trace => 10,
    };
    let logger = py.import("logging")?.call_method1("getLogger", ("frameshare",))?;
    if !logger.call_method1("isEnabledFor", (level,))?.is_truthy()? {
        return Ok(());
    }
    // Python keeps the thread in its list, in some versions after its end, too.
    py.import("threading")?.call_method0("current_thread")?.setattr("name", THREAD)?;
    logger.call_method1("log", (level, "%s", text)).map(drop)
}

/// Starts to pass records on.
pub fn start() {
    // A second import has set it before.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Passes on all records that wait, and drops later ones. Called at the interpreter's end.
#[pyfunction]
#[pyo3(name = "_finish_logging")]
pub fn finish(py: Python<'_>) {
    py.detach(|| {
        let mut state = RECORDS.lock();
        state.is_finishing = true;
        while state.is_running {
            state = RECORDS.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    });
}
