// SPDX-License-Identifier: MIT OR Apache-2.0

//! Log of all processes on standard error: each line begins with the name of its process.
//!
//! A thread writes it. If the terminal or the pipe takes no lines, they are dropped and counted
//! instead of holding a process back.

use crate::config::redact;
use frameshare::make_printable;
use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

/// Number of lines that wait.
const MAX_WAITING: usize = 1024;

/// Writes lines. Clones write to the same log.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    pub fn new() -> Self {
        let (lines, receiver) = sync_channel(MAX_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        thread::spawn(move || write(&receiver, &count));
        Self { lines, dropped }
    }

    /// Writes a line of a process.
    pub fn line(&self, process: &str, text: &str) {
        let mut text = redact(text);
        make_printable(&mut text, usize::MAX);
        if self.lines.try_send(format!("{process}: {text}\n")).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(lines: &Receiver<String>, dropped: &AtomicU64) {
    for line in lines {
        let mut output = std::io::stderr().lock();
        let count = dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            let _ = writeln!(output, "supervisor: {count} lines of the log were dropped");
        }
        let _ = output.write_all(line.as_bytes());
    }
}
