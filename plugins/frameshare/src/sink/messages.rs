//! What the sink tells the application of its readers, as element messages on the bus.

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

/// A reader was cut off; nothing for one that left of its own accord, or died.
pub(super) fn cut_off(reader: &ReaderInfo, reason: Reason, why: &str) -> Option<gst::Structure> {
    let reason = match reason {
        Reason::Stopped => return None,
        Reason::TooSlow => "too-slow",
        Reason::LimitExceeded => "limit-exceeded",
        Reason::Violation => "violation",
        // The others are said to newcomers alone.
        _ => "failed",
    };
    let mut structure = stats::reader(reader);
    structure.set_name("framesharesink-reader-cut-off");
    structure.set("reason", reason);
    structure.set("why", why);
    Some(structure)
}
