// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by upstream events. The exporters in the tests accept navigation, and no reports.

use super::{Fate, cut_off, join, take};
use crate::Result;
use frameshare::upstream::{Navigation, Qos, UpstreamEvent};
use frameshare_protocol::{
    limits::{MAX_MESSAGE, MAX_NAVIGATION_FIELDS, MAX_NAVIGATION_TEXT},
    message::ToExporter,
};
use frameshare_tests::raw::encoded;
use std::{
    path::Path,
    time::{Duration, Instant},
};

fn packet(event: UpstreamEvent) -> Vec<u8> {
    encoded(ToExporter::Upstream(event).encode())
}

fn navigation(navigation: Navigation) -> Vec<u8> {
    packet(UpstreamEvent::Navigation(navigation))
}

/// Sends packets, after each of which the exporter must disconnect the reader.
fn each_cut_off(path: &Path, packets: &[Vec<u8>]) -> Result<Fate> {
    let mut fate = Err("no packet was sent".into());
    for packet in packets {
        let reader = join(path)?;
        take(&reader)?;
        reader.channel.send(packet, &[])?;
        fate = Ok(cut_off(&reader)?);
    }
    fate
}

/// An event that the Welcome does not grant.
pub fn not_accepted(path: &Path) -> Result<Fate> {
    each_cut_off(path, &[packet(UpstreamEvent::Qos(Qos { proportion: 1.0, jitter: 0, time: 1 }))])
}

/// Values that would be wrong in a structure of GStreamer.
pub fn invalid(path: &Path) -> Result<Fate> {
    each_cut_off(path, &[navigation(Navigation::new("key-press").field("state", "a\n\0\u{1b}"))])
}

/// More fields and text than any input has.
pub fn oversized(path: &Path) -> Result<Fate> {
    let text = "t".repeat(MAX_NAVIGATION_TEXT);
    let fields = MAX_MESSAGE / 2 / MAX_NAVIGATION_TEXT;
    let many = (0..fields)
        .fold(Navigation::new("key-press"), |many, index| many.field(format!("field{index}"), &*text));
    assert!(many.fields.len() > MAX_NAVIGATION_FIELDS, "it is no attack");
    each_cut_off(path, &[navigation(many)])
}

/// A message that announces more fields than it has.
pub fn cut_short(path: &Path) -> Result<Fate> {
    let mut packet = navigation(Navigation::new("key-press"));
    let last = packet.len() - 1;
    packet[last] = 0x7f;
    each_cut_off(path, &[packet])
}

/// Valid events as fast as the socket takes them.
pub fn flood(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    take(&reader)?;
    assert!(reader.welcome.upstream.navigation, "it is no attack");
    let press = navigation(Navigation::new("key-press").field("key", "a"));
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        let _ = reader.channel.try_send(&press, &[]);
    }
    Ok(Fate::Left)
}
