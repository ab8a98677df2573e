// SPDX-License-Identifier: MIT OR Apache-2.0

//! Trace of the operations of all processes, for the detector of unordered accesses
//! (`tests/order`).
//!
//! With `SIMCUDA_ORDER=FILE`, each operation is a line, appended to the file by one write. A line
//! is written before the effect that it announces becomes visible to another thread or process, and
//! after the effect that it has observed. So the operations can have had their effects in the order
//! of the lines, and a killed process leaves whole lines.
//!
//! A line begins with the process, `PID.NUMBER`, whose number tells apart processes with one pid:
//!
//! | line | meaning |
//! | --- | --- |
//! | `begin COMMAND` | the process uses the driver |
//! | `enqueue S:K [S:K]...` | item K is queued on stream S, behind items of other streams |
//! | `run S:K NAME [r=RANGE] [w=RANGE]...` | the item begins, and accesses memory |
//! | `access WHO NAME [r=RANGE] ...` | memory is read and written |
//! | `release WHO WORD [VALUE]` | a value is about to be stored |
//! | `acquire WHO WORD [VALUE]` | a value was loaded, or a wait for at least VALUE has ended |
//! | `signal WHO EVENT VALUE` | record number VALUE of an interprocess event is about to complete |
//! | `wait WHO EVENT VALUE` | the record was found complete |
//! | `synced S:K` | the CPU has found all items up to K complete |
//! | `enter S:K`, `leave S:K` | begin and end of a host function |
//! | `exits` | the process exits, by its exit handlers |
//! | `dying` | the process is dead; its queues run on, without further lines |
//! | `ended` | its queues have ended; it counts as exited from now on |
//!
//! WHO is `cpu` or an item `S:K`. A RANGE is `FILE:OFFSET+LENGTH`, in hexadecimal digits. A WORD is
//! `FILE:OFFSET`, `message.NUMBER` for a message that programs announce, or `pool.FILE:OFFSET` for
//! memory of a pool that the driver uses again. FILE is `DEVICE.INODE`, or `anon` for memory of the
//! process alone, whose offset is its address.

use crate::{config, sys};
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fmt::{Arguments, Display, Formatter, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

struct Trace {
    file: File,
    pid: u32,
    /// The first word of each line.
    process: String,
    /// For the helper process, which must not allocate.
    path: CString,
    last_lines: [String; 2],
}

static TRACE: OnceLock<Option<Trace>> = OnceLock::new();

fn trace() -> Option<&'static Trace> {
    // A forked child has no driver.
    TRACE.get_or_init(open).as_ref().filter(|trace| trace.pid == std::process::id())
}

fn open() -> Option<Trace> {
    let path = config::get().order.as_ref()?;
    let file = match File::options().append(true).create(true).open(path) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("simcuda: cannot open SIMCUDA_ORDER={}: {error}", path.display());
            return None;
        }
    };
    let (pid, number) = (std::process::id(), sys::random() as u32);
    let process = format!("{pid}.{number:x}");
    let last_lines = ["dying", "ended"].map(|last| format!("{process} {last}\n"));
    let path = CString::new(std::path::absolute(path).ok()?.as_os_str().as_bytes()).ok()?;
    let trace = Trace { file, pid, process, path, last_lines };
    let command: Vec<_> = std::env::args().collect();
    trace.write(format_args!("begin {}", command.join(" ").replace('\n', " ")));
    Some(trace)
}

impl Trace {
    fn write(&self, line: Arguments<'_>) {
        let line = format!("{} {line}\n", self.process);
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            eprintln!("simcuda: cannot write the file of SIMCUDA_ORDER: {error}");
        }
    }
}

/// Returns whether operations are traced.
pub fn is_on() -> bool {
    trace().is_some()
}

fn write(line: Arguments<'_>) {
    if let Some(trace) = trace() {
        trace.write(line);
    }
}

/// An item of a stream.
#[derive(Clone, Copy)]
pub struct Item {
    pub stream: u64,
    pub seq: u64,
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.stream, self.seq)
    }
}

thread_local! {
    /// The item that this thread executes; none on threads of the program and in host functions.
    static RUNNING: Cell<Option<Item>> = const { Cell::new(None) };
}

struct Who;

impl Display for Who {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match RUNNING.get() {
            Some(item) => item.fmt(f),
            None => f.write_str("cpu"),
        }
    }
}

/// Traces that an item is queued. Called before its stream can run it.
pub fn enqueued(item: Item, dependencies: impl Iterator<Item = Item>) {
    if is_on() {
        let mut line = format!("enqueue {item}");
        for dependency in dependencies {
            let _ = write!(line, " {dependency}");
        }
        write(format_args!("{line}"));
    }
}

/// Traces that the calling thread executes an item from now on, until the result is dropped.
pub fn runs(item: Item, name: &str, ranges: impl Display) -> Running {
    write(format_args!("run {item} {name}{ranges}"));
    RUNNING.set(Some(item));
    Running(())
}

/// The time in which a thread executes an item.
pub struct Running(());

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(None);
    }
}

/// Runs a host function of the program, whose accesses are the CPU's.
pub fn in_host_function(run: impl FnOnce()) {
    let item = RUNNING.take();
    if let Some(item) = item {
        write(format_args!("enter {item}"));
    }
    run();
    if let Some(item) = item {
        write(format_args!("leave {item}"));
    }
    RUNNING.set(item);
}

/// Traces an access by the CPU, or by the item that this thread executes.
pub fn accessed(name: &str, ranges: impl Display) {
    write(format_args!("access {Who} {name}{ranges}"));
}

/// Traces that a word is about to be stored.
pub fn releases(word: impl Display, value: Option<u64>) {
    carries("release", word, value);
}

/// Traces that a word was loaded; for a wait for at least `value`, that it has ended.
pub fn acquired(word: impl Display, value: Option<u64>) {
    carries("acquire", word, value);
}

fn carries(what: &str, word: impl Display, value: Option<u64>) {
    match value {
        Some(value) => write(format_args!("{what} {Who} {word} {value:x}")),
        None => write(format_args!("{what} {Who} {word}")),
    }
}

/// Traces that a record of an interprocess event is about to complete.
pub fn signals(event: impl Display, value: u64) {
    write(format_args!("signal {Who} {event} {value:x}"));
}

/// Traces that a record of an interprocess event was found complete.
pub fn waited(event: impl Display, value: u64) {
    // An event that was never recorded orders nothing.
    if value > 0 {
        write(format_args!("wait {Who} {event} {value:x}"));
    }
}

/// Traces that the CPU has found an item and those before it complete.
pub fn synced(item: Item) {
    if item.seq > 0 {
        write(format_args!("synced {item}"));
    }
}

/// Whether a helper process writes the last line.
static HAS_HELPER: AtomicBool = AtomicBool::new(false);

pub fn leave_last_lines_to_helper() {
    HAS_HELPER.store(true, Ordering::Release);
}

/// Traces the exit of the process. The helper traces the end of its queues.
pub fn exits() {
    write(format_args!("exits"));
    if !HAS_HELPER.load(Ordering::Acquire) {
        write(format_args!("ended"));
    }
}

/// The last lines of a process, which its helper writes.
#[derive(Clone, Copy)]
pub enum LastLine {
    Dying,
    Ended,
}

/// Called by the helper of a dead process: allocates nothing and takes no lock.
pub fn write_last_line(which: LastLine) {
    let Some(Some(trace)) = TRACE.get() else { return };
    let line = &trace.last_lines[which as usize];
    // SAFETY: a C string and bytes that live as long as the process's memory. The helper has closed
    // all descriptors of its owner.
    unsafe {
        let file = libc::open(trace.path.as_ptr(), libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, line.as_ptr().cast::<c_void>(), line.len());
            libc::close(file);
        }
    }
}
