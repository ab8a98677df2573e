// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare watch`.

use crate::{
    error::Error,
    frames::{Frames, Step},
    output::{Page, print_json},
};
use frameshare::{monotonic_ns, reader::Frame};
use serde_json::json;

/// Names of the bits of a frame's flags, as GStreamer's elements set them.
const FLAGS: [&str; 11] = [
    "live",
    "decode-only",
    "discont",
    "resync",
    "corrupted",
    "marker",
    "header",
    "gap",
    "droppable",
    "delta",
    "non-droppable",
];

/// Prints a line for each frame.
pub fn watch(stream: &str, count: Option<u64>, json: bool) -> Result<(), Error> {
    let mut frames = Frames::join(stream)?;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0
        && let Step::Frame(frame) = frames.next(None)?
    {
        left -= 1;
        print(&frame, json)?;
    }
    Ok(())
}

fn print(frame: &Frame, json: bool) -> Result<(), Error> {
    let descriptor = frame.descriptor();
    let age = monotonic_ns().saturating_sub(descriptor.published);
    let lost = frame.lost_before();
    let flags = flags(descriptor.flags);
    if json {
        return print_json(&json!({
            "sequence": descriptor.sequence.0,
            "age": age as f64 / 1e9,
            "size": descriptor.size,
            "pts": descriptor.pts.map(|pts| pts as f64 / 1e9),
            "flags": flags,
            "lost": lost,
        }));
    }
    let mut line =
        format!("{:8}  {:8.3} ms  {} bytes", descriptor.sequence.0, age as f64 / 1e6, descriptor.size);
    if !flags.is_empty() {
        line += &format!("  {}", flags.join(" "));
    }
    if lost > 0 {
        line += &format!("  {lost} lost before it");
    }
    let mut page = Page::new();
    page.line(&line);
    page.print()
}

/// Returns the names of the flags that are set; unknown ones are left out.
fn flags(word: u64) -> Vec<&'static str> {
    let is_set = |bit: &usize| word & (1 << bit) != 0;
    (0..FLAGS.len()).filter(is_set).map(|bit| FLAGS[bit]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_names() {
        assert_eq!(flags(0b10_0000_0101), ["live", "discont", "delta"]);
        assert_eq!(flags(1 << 32), [""; 0]);
    }
}
