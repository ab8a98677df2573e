// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages of the engine, and notices of exporters, to a function of C's.
//!
//! # Safety
//!
//! The function and its data come from C, as the header describes them: they are valid until they
//! are replaced. A lock keeps the function from being replaced during a call.
#![allow(unsafe_code)]

use crate::{
    border::{c_string, guard},
    failure::{Failure, Status},
};
use frameshare::exporter::Notice;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::{
    cell::Cell,
    ffi::{c_char, c_uint, c_void},
    sync::{OnceLock, PoisonError, RwLock},
};

/// A level from C, or for C.
pub type RawLogLevel = c_uint;

/// A function of C's that takes messages.
pub type LogFunction = Option<unsafe extern "C" fn(RawLogLevel, *const c_char, *mut c_void)>;

/// The function, and the data that it gets.
struct Target {
    function: LogFunction,
    data: *mut c_void,
}

// SAFETY: C calls the function with the data on any thread, as the header says.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

thread_local! {
    /// This thread is in the function of C's.
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

static TARGET: RwLock<Target> = RwLock::new(Target { function: None, data: std::ptr::null_mut() });

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("frameshare")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => 1,
            Level::Warn => 2,
            Level::Info | Level::Debug | Level::Trace => 3,
        };
        // A record of a call that C's function makes, against the contract: it would never end.
        if IS_LOGGING.try_with(|is_logging| is_logging.replace(true)).unwrap_or(true) {
            return;
        }
        let text = c_string(record.args().to_string());
        let target = TARGET.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = target.function {
            // SAFETY: C's function and data are valid until they are replaced, which the lock
            // prevents.
            unsafe { function(level, text.as_ptr(), target.data) };
        }
        let _ = IS_LOGGING.try_with(|is_logging| is_logging.set(false));
    }

    fn flush(&self) {}
}

/// Logs a notice of an exporter.
pub fn notice(notice: Notice) {
    match notice {
        Notice::ReaderAdded(reader) => {
            log::info!("reader {} ({}, process {}) joined", reader.id, reader.name, reader.pid);
        }
        Notice::ReaderRemoved { reader, why, .. } => {
            log::info!("reader {} ({}, process {}) left: {why}", reader.id, reader.name, reader.pid);
        }
        Notice::ReaderRefused { pid, uid, why } => {
            log::warn!("process {pid} of user {uid} refused: {why}");
        }
        Notice::ReaderBlocking { reader, blocked_for } => log::warn!(
            "reader {} ({}, process {}) has held the stream back for {blocked_for:?}",
            reader.id,
            reader.name,
            reader.pid
        ),
        Notice::SocketLost { why } => log::warn!("readers cannot connect: {why}"),
        Notice::SocketBound => log::info!("readers can connect again"),
        Notice::OthersCouldWrite { why, .. } => log::warn!("{why}"),
        other => log::info!("{other:?}"),
    }
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_set_log(function: LogFunction, data: *mut c_void) -> Status {
    static IS_SET: OnceLock<bool> = OnceLock::new();
    guard(|| {
        if IS_LOGGING.with(Cell::get) {
            return Err(Failure::argument("the log function must not call the library"));
        }
        if !IS_SET.get_or_init(|| log::set_logger(&Logger).is_ok()) {
            return Err(Failure::new(Status::Unsupported, "this program has a logger of Rust's crate log"));
        }
        let mut target = TARGET.write().unwrap_or_else(PoisonError::into_inner);
        *target = Target { function, data };
        log::set_max_level(if function.is_some() { LevelFilter::Info } else { LevelFilter::Off });
        Ok(Status::Ok)
    })
}
