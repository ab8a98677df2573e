// SPDX-License-Identifier: MIT OR Apache-2.0

//! Element messages about readers.

use super::stats;
use frameshare::{Reason, exporter::ReaderInfo};
use std::time::Duration;

/// A reader holds the stream back.
pub(super) fn blocking(reader: &ReaderInfo, blocked_for: Duration) -> gst::Structure {
    let mut structure = stats::reader(reader);
    structure.set_name("framesharesink-reader-blocking");
    structure.set("blocked-for", u64::try_from(blocked_for.as_nanos()).unwrap_or(u64::MAX));
    structure
}

/// The message for an evicted reader; none for one that disconnected or died.
pub(super) fn cut_off(reader: &ReaderInfo, reason: Reason, why: &str) -> Option<gst::Structure> {
    let reason = match reason {
        Reason::Stopped => return None,
        Reason::TooSlow => "too-slow",
        Reason::LimitExceeded => "limit-exceeded",
        Reason::Violation => "violation",
        Reason::Disconnected => "disconnected",
        // The other reasons occur at refusals only.
        _ => "failed",
    };
    let mut structure = stats::reader(reader);
    structure.set_name("framesharesink-reader-cut-off");
    structure.set("reason", reason);
    structure.set("why", why);
    Some(structure)
}

/// Returns a reader's name and process, for people. The name is the reader's own text.
pub(super) fn name(reader: &ReaderInfo) -> String {
    format!("reader {} ({} of user {})", printable(&reader.name), process(reader.pid), reader.uid)
}

/// Returns the number of a process, for people.
pub(super) fn process(pid: u32) -> String {
    match pid {
        0 => "a process of another PID namespace".into(),
        pid => format!("process {pid}"),
    }
}

/// Returns text of a peer without the characters that control a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
