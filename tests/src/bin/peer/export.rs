// SPDX-License-Identifier: MIT OR Apache-2.0

//! `peer export`.
//!
//! # Safety
//!
//! Slots are written through their pointers before publication, while the producer has exclusive
//! access.
#![allow(unsafe_code)]

use crate::{NUMBERED, Result, child, options::Options, print};
use frameshare::{
    Event, Format, Sequence, Wait,
    exporter::{self, Exporter, LosslessReaders, Notice, Purpose, SlowReaders, Unit},
};
use frameshare_tests::content;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Number of frames between two progress lines.
const PROGRESS: u64 = 100;

fn config(options: &Options) -> Result<exporter::Config> {
    let mut config = exporter::Config::default();
    config.allowed_uids = options.list("allowed-uids")?;
    config.allowed_gids = options.list("allowed-gids")?;
    config.trusted_uids = options.list("trusted-uids")?;
    config.socket_mode = match options.get::<String>("socket-mode")? {
        Some(octal) => u32::from_str_radix(&octal, 8)?,
        None => config.socket_mode,
    };
    config.max_slots = options.or("max-slots", config.max_slots)?;
    config.max_held_limit = options.or("max-held-limit", config.max_held_limit)?;
    config.max_retired_bytes = options.or("max-retired-bytes", config.max_retired_bytes)?;
    config.allow_udmabuf = options.is_set("allow-udmabuf");
    config.lossless_readers = match options.or("lossless-readers", "own-uid".to_owned())?.as_str() {
        "none" => LosslessReaders::None,
        "own-uid" => LosslessReaders::OwnUid,
        "all" => LosslessReaders::All,
        other => return Err(format!("--lossless-readers {other} is invalid").into()),
    };
    config.slow_readers = match options.or("slow-readers", "wait".to_owned())?.as_str() {
        "wait" => SlowReaders::Wait,
        "queue-then-wait" => SlowReaders::QueueThenWait,
        "queue-then-disconnect" => SlowReaders::QueueThenDisconnect,
        other => return Err(format!("--slow-readers {other} is invalid").into()),
    };
    config.max_queued_time =
        options.get("max-queued-time-ms")?.map_or(config.max_queued_time, Duration::from_millis);
    config.queue_for_other_users = options.is_set("queue-for-other-users");
    if options.is_set("keeps-last") {
        (config.history, config.history_pause) = (exporter::History::Frames(1), Duration::ZERO);
    }
    config.reader_timeout =
        options.get("reader-timeout-ms")?.map_or(config.reader_timeout, Duration::from_millis);
    Ok(config)
}

/// Formats a notice about a reader as a line of output.
fn line(notice: &Notice) -> Value {
    match notice {
        Notice::ReaderAdded(reader) => json!({ "event": "added", "pid": reader.pid }),
        Notice::ReaderRemoved { reader, reason, why } => {
            json!({ "event": "removed", "pid": reader.pid, "reason": format!("{reason:?}"), "why": why })
        }
        Notice::ReaderRefused { pid, uid, why } => {
            json!({ "event": "refused", "pid": pid, "uid": uid, "why": why })
        }
        Notice::ReaderBlocking { reader, blocked_for } => {
            json!({ "event": "blocking", "pid": reader.pid, "for_ms": blocked_for.as_millis() as u64 })
        }
        Notice::SocketLost { why } => json!({ "event": "socket-lost", "why": why }),
        Notice::OthersCouldWrite { refused, why } => {
            json!({ "event": "others-could-write", "refused": refused, "why": why })
        }
        Notice::SocketBound => json!({ "event": "socket-bound" }),
        other => json!({ "event": format!("{other:?}") }),
    }
}

pub fn export(options: &Options) -> Result<ExitCode> {
    let (frames, size) = (options.or("frames", 100_u64)?, options.or("size", 1_000_000_u64)?);
    let (fps, readers) = (options.or("fps", 0.0_f64)?, options.or("readers", 1_usize)?);
    let gop = options.get::<u64>("gop")?;
    let renew_every = options.or("renew-every", u64::MAX)?;
    let caps = options.or("caps", "application/x-frameshare-test".to_owned())?;
    let tell = |notice| drop(print(&line(&notice)));
    let exporter = Exporter::bind(&options.endpoint()?, config(options)?, tell)?;
    exporter.set_format(Format { caps: caps.clone(), video: None });
    print(&json!({ "event": "open" }))?;
    while exporter.reader_count() < readers {
        std::thread::sleep(Duration::from_millis(2));
    }
    if options.is_set("fork") {
        print(&json!({ "event": "child", "pid": child::leave()? }))?;
    }
    let mut event = options.get::<usize>("event-bytes")?.map(|bytes| vec![7; bytes]);
    let events = options.or("events", 1)?;
    let metadata = vec![7; options.or("metadata-bytes", 0)?];
    let until = options.get::<PathBuf>("until")?;
    let begin = Instant::now();
    let mut longest_wait = Duration::ZERO;
    for sequence in 1..=frames {
        if until.as_ref().is_some_and(|file| file.exists()) {
            break;
        }
        if fps > 0.0 {
            let due = Duration::from_secs_f64((sequence - 1) as f64 / fps);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        let renewed = (sequence - 1) / renew_every;
        if renewed > 0 && (sequence - 1) % renew_every == 0 {
            exporter.set_format(Format { caps: format!("{caps},part={renewed}"), video: None });
        }
        if let Some(payload) = &mut event {
            for number in (sequence - 1) * events..sequence * events {
                if let Some(head) = payload.first_chunk_mut() {
                    *head = number.to_le_bytes();
                }
                exporter.send_event(Event { kind: NUMBERED, sticky: false, payload: payload.clone() })?;
            }
        }
        let size = size * (1 + renewed % 4);
        let slot = exporter.acquire(size, Purpose::Copy, Wait::No)?;
        let start = slot.as_ptr().ok_or("the slot is no host memory")?.as_ptr();
        // SAFETY: the slot has the requested size, and the producer has exclusive access until it
        // publishes.
        content::fill(unsafe { std::slice::from_raw_parts_mut(start, size as usize) }, sequence);
        let unit = match gop {
            None => Unit::Whole,
            Some(gop) if (sequence - 1) % gop == 0 => Unit::Key,
            Some(_) => Unit::Delta,
        };
        let frame = exporter::Frame {
            unit,
            metadata: &metadata,
            media_offset: Some(sequence - 1),
            media_offset_end: Some(sequence),
            ..exporter::Frame::new(&slot, size, frameshare::fence::Written::Cpu)
        };
        let ready = Instant::now();
        let published = exporter.publish(frame, Wait::Forever)?;
        longest_wait = longest_wait.max(ready.elapsed());
        if sequence % PROGRESS == 0 {
            print(&json!({ "event": "progress", "published": sequence }))?;
        }
        if published != Sequence(sequence) {
            return Err(format!("frame {sequence} was published as {published}").into());
        }
    }
    let elapsed = begin.elapsed();
    match options.or("end", "eos".to_owned())?.as_str() {
        "eos" => exporter.end_of_stream(),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    let drained = exporter.drain(Wait::For(Duration::from_millis(options.or("drain-ms", 10_000)?)))?;
    let stats = exporter.stats();
    print(&json!({
        "event": "summary",
        "published": stats.published,
        "seconds": elapsed.as_secs_f64(),
        "longest_wait_ms": longest_wait.as_millis() as u64,
        "slots": stats.slots,
        "drained": drained,
        "readers": stats.readers.iter().map(|reader| json!({
            "pid": reader.info.pid, "sent": reader.sent, "lost": reader.lost, "held": reader.held,
        })).collect::<Vec<_>>(),
    }))?;
    print(&json!({ "event": "stopping" }))?;
    drop(exporter);
    print(&json!({ "event": "stopped" }))?;
    Ok(ExitCode::SUCCESS)
}
