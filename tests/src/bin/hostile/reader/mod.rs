// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile readers.

mod files;
mod floods;
mod foreign;
pub mod fuse;
mod hellos;
pub mod hoard;
mod messages;
mod observers;
mod pages;
mod wakes;

pub use floods::{connect, fill, stay_silent};

use crate::Result;
use frameshare::{EntryIndex, Policy, Sequence};
use frameshare_queue::Consumer;
use frameshare_tests::raw::{PATIENCE, Page, RawReader, hello};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Required reaction of the exporter.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// The exporter evicted the reader, and named it in one line.
    CutOff,
    /// The exporter never admitted it, and named it at least once.
    Refused,
    /// None: the reader closed the connection.
    Left,
}

/// Name and function of an attack.
pub type Attack = (&'static str, fn(&Path) -> Result<Fate>);

/// All attacks.
pub const ATTACKS: [Attack; 60] = [
    ("greeting-cut-short", hellos::cut_short),
    ("greeting-flipped", hellos::flipped),
    ("greeting-absurd", hellos::absurd),
    ("greeting-of-another-kind", hellos::another_kind),
    ("greeting-with-descriptors", hellos::with_descriptors),
    ("hello-twice", messages::hello_twice),
    ("garbage", messages::garbage),
    ("too-long", messages::too_long),
    ("empty-packet", messages::empty),
    ("gives-up-unknown", messages::gives_up_unknown),
    ("gives-up-unasked", messages::gives_up_unasked),
    ("gives-up-slot-unasked", messages::gives_up_slot_unasked),
    ("goodbye-again-and-again", messages::goodbyes),
    ("escape-codes", messages::escape_codes),
    ("descriptors", messages::descriptors),
    ("many-descriptors", messages::many_descriptors),
    ("never-listens", messages::never_listens),
    ("claim-zero", pages::zero),
    ("claim-ones", pages::ones),
    ("claim-published-again", pages::published_again),
    ("claim-revoked", pages::revoked),
    ("claim-foreign", pages::foreign),
    ("release-ahead", pages::ahead),
    ("release-stale", pages::stale),
    ("release-double", pages::double),
    ("release-untaken", pages::untaken),
    ("flip-after-revoke", pages::flip_after_revoke),
    ("sleeping-garbage", pages::sleeping_garbage),
    ("counters-absurd", pages::absurd_counters),
    ("scribble", pages::scribble),
    ("punch-claims", files::punch_claims),
    ("write-what-is-read", files::write_what_is_read),
    ("wake-fill", wakes::fill),
    ("wake-close", wakes::close),
    ("wake-half-close", wakes::half_close),
    ("wake-blocking", wakes::blocking),
    ("wake-storm", wakes::storm),
    ("wake-divert", wakes::divert),
    ("wake-crowd", wakes::crowd),
    ("lingering-over-wake", foreign::lingering_over_wake),
    ("nested-over-wake", foreign::nested_over_wake),
    ("many-lingering-over-wake", foreign::many_over_wake),
    ("lingering-over-control", foreign::lingering_over_control),
    ("nested-over-control", foreign::nested_over_control),
    ("lingering-unread", foreign::lingering_unread),
    ("nested-unread", foreign::nested_unread),
    ("lingering-unread-before-hello", foreign::unread_before_hello),
    ("lingering-in-many-connections", foreign::in_many_connections),
    ("flood-silent", floods::silent),
    ("flood-hello", floods::hellos),
    ("flood-greedy", floods::greedy),
    ("flood-messages", floods::messages),
    ("observer-garbage", observers::garbage),
    ("observer-as-reader", observers::as_reader),
    ("observer-descriptors", observers::descriptors),
    ("observer-floods-requests", observers::flood_requests),
    ("observer-never-reads", observers::never_reads),
    ("observer-never-reads-answers", observers::never_reads_answers),
    ("observer-many", observers::many),
    ("observer-brief", observers::brief),
];

/// Joins as an honest reader does.
fn join(path: &Path) -> Result<RawReader> {
    Ok(RawReader::join(path, hello(Policy::Latest, 4))?)
}

fn consumer(reader: &RawReader) -> Consumer<&Page> {
    let credit = reader.welcome.credit as usize;
    Consumer::new(&reader.queue, &reader.claims, credit).expect("the exporter's page is ready")
}

/// Polls until `found` returns a value.
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match found() {
            Some(found) => return Ok(found),
            None if Instant::now() > end => return Err(format!("{what} did not come").into()),
            None => thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Takes the oldest frame, and returns its entry and sequence number.
fn take(reader: &RawReader) -> Result<(EntryIndex, Sequence)> {
    let consumer = consumer(reader);
    wait_for("a frame", || {
        let found = consumer.oldest()?.ok()?;
        let sequence = found.descriptor.sequence;
        consumer.claim(found.entry, sequence).then_some((found.entry, sequence))
    })
}

/// Waits until the exporter disconnects the reader.
fn cut_off(reader: &RawReader) -> Result<Fate> {
    if reader.channel.hangs_up(PATIENCE) {
        return Ok(Fate::CutOff);
    }
    Err("the exporter does not mind".into())
}
