// SPDX-License-Identifier: MIT OR Apache-2.0

//! `peer read`.
//!
//! # Safety
//!
//! Frames are read as plain slices while they are leased.
#![allow(unsafe_code)]

use crate::{NUMBERED, Result, child, options::Options, print};
use frameshare::{
    Event, Interrupt, MAX_CREDIT, Policy, Sequence, monotonic_ns,
    reader::{self, Frame, Item, Reader},
};
use frameshare_tests::content;
use serde_json::{Value, json};
use std::{collections::VecDeque, process::ExitCode, time::Duration};

/// Totals of the frames read so far.
#[derive(Default)]
struct Tally {
    frames: u64,
    lost: u64,
    bad: u64,
    events: u64,
    /// Number of the next event if none is lost.
    next_event: Option<u64>,
    /// Next sequence number if no frame is lost.
    expected: Option<Sequence>,
    /// Times from publication to delivery in µs. Kept on request only, since a long run has many.
    latencies: Option<Vec<u64>>,
}

pub fn read(options: &Options) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let timeout = Duration::from_millis(options.or("timeout-ms", 60_000)?);
    let config = reader::Config::default()
        .name("peer")
        .policy(options.or("policy", Policy::Latest)?)
        .spin(options.or("spin", 0)?)
        .max_held(options.or("max-held", 4)?)
        .max_queued(options.or("max-queued", MAX_CREDIT)?)
        .connection_timeout(Some(timeout))
        .reconnect(options.is_set("reconnect"))
        .exporter_uid(options.get("exporter-uid")?);
    let mut reader = Reader::connect(&options.endpoint()?, config, &interrupt)?;
    let stats = reader.stats();
    print(&json!({ "event": "connected", "credit": stats.credit, "exporter": stats.exporter_pid }))?;
    if options.is_set("fork") {
        print(&json!({ "event": "child", "pid": child::leave()? }))?;
    }

    let (limit, quiet) = (options.get::<u64>("frames")?, options.is_set("quiet"));
    let (sums, verify) = (options.is_set("sum"), options.is_set("verify"));
    let pause = Duration::from_millis(options.or("sleep-ms", 0)?);
    let requests_key_units = options.is_set("request-key-units");
    let (hold, hoard) = (options.or("hold", 0_usize)?, options.get::<usize>("hoard")?);
    let mut held = VecDeque::<Frame>::new();
    let mut tally = Tally { latencies: options.is_set("latency").then(Vec::new), ..Tally::default() };
    let end = loop {
        if limit.is_some_and(|limit| tally.frames >= limit) {
            break "frames".to_owned();
        }
        let item = match reader.next(None, &interrupt) {
            Ok(item) => item,
            Err(error) => break error.to_string(),
        };
        match item {
            None => {}
            Some(Item::Format(format)) => print(&json!({ "event": "format", "caps": format.caps }))?,
            Some(Item::Event(event)) => {
                tally.count_event(&event);
                if !quiet {
                    print(&json!({ "event": "event", "kind": event.kind, "size": event.payload.len() }))?;
                }
            }
            Some(Item::Reconnected) => {
                (tally.expected, tally.next_event) = (None, None);
                print(&json!({ "event": "reconnected", "exporter": reader.stats().exporter_pid }))?;
            }
            Some(Item::EndOfStream) => break "eos".to_owned(),
            Some(Item::Frame(frame)) => {
                if tally.expected.is_none() {
                    print(&json!({ "event": "first", "sequence": frame.descriptor().sequence.0 }))?;
                    if options.is_set("report-layout") {
                        reader.report_layout_copies();
                    }
                }
                if requests_key_units {
                    reader.request_key_unit();
                }
                let line = tally.count(&frame, sums, verify);
                if !quiet {
                    print(&line)?;
                }
                std::thread::sleep(pause);
                held.push_back(frame);
                if let Some(hoard) = hoard {
                    if held.len() >= hoard {
                        print(&json!({ "event": "hoarding", "frames": held.len() }))?;
                        loop {
                            std::thread::park();
                        }
                    }
                } else if held.len() > hold {
                    held.pop_front();
                }
            }
        }
    };
    let changed = held.iter().filter(|frame| verify && !is_whole(frame)).count();
    let mut summary = json!({
        "event": "summary",
        "frames": tally.frames,
        "lost": tally.lost,
        "bad": tally.bad,
        "events": tally.events,
        "changed": changed,
        "end": end,
        "held": reader.stats().held,
        "futex_sleeps": reader.stats().futex_sleeps,
        "missed_wakes": reader.stats().missed_wakes,
        "spin_frames": reader.stats().spin_frames,
    });
    if let Some(latencies) = &mut tally.latencies {
        latencies.sort_unstable();
        let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied();
        summary["p50_us"] = json!(at(50));
        summary["p99_us"] = json!(at(99));
    }
    print(&summary)?;
    print(&json!({ "event": "stopping" }))?;
    drop((held, reader));
    print(&json!({ "event": "stopped" }))?;
    Ok(if tally.bad > 0 || changed > 0 {
        ExitCode::from(2)
    } else if end == "eos" || end == "frames" {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn bytes(frame: &Frame) -> &[u8] {
    // SAFETY: the frame stays leased while it lives, and the tests' own exporter does not write
    // leased slots.
    unsafe { frame.as_slice() }
}

fn is_whole(frame: &Frame) -> bool {
    content::is_filled(bytes(frame), frame.descriptor().sequence.0)
}

impl Tally {
    /// Counts an event; one that does not follow the one before it is bad.
    fn count_event(&mut self, event: &Event) {
        self.events += 1;
        if let (NUMBERED, Some(head)) = (event.kind, event.payload.first_chunk()) {
            let number = u64::from_le_bytes(*head);
            self.bad += u64::from(self.next_event.is_some_and(|next| next != number));
            self.next_event = Some(number + 1);
        }
    }

    /// Counts a frame, and returns its line of output.
    fn count(&mut self, frame: &Frame, sums: bool, verify: bool) -> Value {
        let descriptor = frame.descriptor();
        let sequence = descriptor.sequence;
        if let Some(latencies) = &mut self.latencies {
            latencies.push(monotonic_ns().saturating_sub(descriptor.published) / 1000);
        }
        let is_gap_counted =
            self.expected.is_none_or(|expected| sequence.since(expected) == frame.lost_before());
        let is_good = is_gap_counted && (!verify || is_whole(frame));
        self.expected = Some(sequence.next());
        self.frames += 1;
        self.lost += frame.lost_before();
        self.bad += u64::from(!is_good);
        json!({
            "event": "frame",
            "sequence": sequence,
            "sum": sums.then(|| content::checksum(bytes(frame))),
            "lost_before": frame.lost_before(),
            "size": frame.len(),
            "pts": descriptor.pts,
            "metadata": frame.metadata().len(),
            "good": is_good,
        })
    }
}
