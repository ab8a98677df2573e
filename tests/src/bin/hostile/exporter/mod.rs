// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile exporters.

mod bulk;
mod foreign;
mod frames;
pub mod fuse;
mod memory;
mod messages;
mod metas;
mod pages;
mod units;
mod welcomes;

use crate::{Result, is_refused};
use frameshare_protocol::page::{Claim, ClaimState};
use frameshare_tests::raw::{Listener, Offer, PATIENCE, RawExporter};
use serde_json::json;
use std::{
    error::Error,
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Required reaction of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// End the stream with an error while the exporter is still connected.
    GivesUp,
    /// Skip the invalid part and continue. In the end the reader reports that the exporter
    /// disconnected.
    GoesOn,
}
use Fate::{GivesUp, GoesOn};

/// Attacks the first reader that connects, and returns the owner of the connection.
pub type Harm = fn(&Listener) -> Result<RawExporter>;
/// Required reaction, and the attack.
pub type How = (Fate, Harm);

/// All attacks.
pub const ATTACKS: [(&str, How); 116] = [
    ("welcome-garbage", (GivesUp, welcomes::garbage)),
    ("welcome-cut-short", (GivesUp, welcomes::cut_short)),
    ("welcome-never-comes", (GivesUp, welcomes::never)),
    ("welcome-is-something-else", (GivesUp, welcomes::something_else)),
    ("welcome-refusal-with-escape-codes", (GivesUp, welcomes::refusal)),
    ("welcome-no-credit", (GivesUp, welcomes::no_credit)),
    ("welcome-much-credit", (GivesUp, welcomes::much_credit)),
    ("welcome-many-areas", (GivesUp, welcomes::many_areas)),
    ("welcome-timeline", (GivesUp, welcomes::timeline)),
    ("welcome-events", (GivesUp, welcomes::events)),
    ("welcome-without-descriptors", (GivesUp, welcomes::without_descriptors)),
    ("welcome-one-descriptor-less", (GivesUp, welcomes::one_less)),
    ("welcome-one-descriptor-more", (GivesUp, welcomes::one_more)),
    ("welcome-many-descriptors", (GivesUp, welcomes::many_descriptors)),
    ("queue-is-a-pipe", (GivesUp, welcomes::queue_is_a_pipe)),
    ("queue-is-a-folder", (GivesUp, welcomes::queue_is_a_folder)),
    ("queue-shrinks", (GivesUp, welcomes::queue_shrinks)),
    ("claims-shrink", (GivesUp, welcomes::claims_shrink)),
    ("queue-too-short", (GivesUp, welcomes::queue_too_short)),
    ("queue-of-nothing", (GivesUp, welcomes::queue_of_nothing)),
    ("claims-of-huge-pages", (GivesUp, welcomes::claims_of_huge_pages)),
    ("metadata-with-holes", (GivesUp, welcomes::metadata_with_holes)),
    ("metadata-writable", (GivesUp, welcomes::metadata_writable)),
    ("wake-is-a-pipe", (GivesUp, welcomes::wake_is_a_pipe)),
    ("wake-lingers", (GivesUp, foreign::wake_lingers)),
    ("slot-is-a-pipe", (GivesUp, memory::pipe)),
    ("slot-is-a-folder", (GivesUp, memory::folder)),
    ("slot-shrinks", (GivesUp, memory::shrinks)),
    ("slot-is-punched", (GivesUp, memory::is_punched)),
    ("slot-too-short", (GivesUp, memory::too_short)),
    ("slot-with-holes", (GivesUp, memory::with_holes)),
    ("slot-with-blocks-behind-a-hole", (GivesUp, memory::with_blocks_behind_a_hole)),
    ("slot-without-descriptor", (GivesUp, memory::without_descriptor)),
    ("slot-twice", (GivesUp, memory::twice)),
    ("slot-retired-twice", (GivesUp, memory::retired_twice)),
    ("slot-of-unknown-generation-retired", (GivesUp, memory::unknown_retired)),
    ("slot-retired-and-used", (GivesUp, memory::retired_and_used)),
    ("slot-of-no-generation", (GivesUp, memory::of_no_generation)),
    ("generation-twice", (GivesUp, memory::generation_twice)),
    ("generation-of-a-gpu", (GivesUp, memory::of_a_gpu)),
    ("dma-buf-is-a-memory-file", (GivesUp, memory::file_as_dma_buf)),
    ("dma-buf-of-own-making", (GivesUp, memory::own_dma_bufs)),
    ("generations-without-end", (GivesUp, memory::generations)),
    ("slots-without-end", (GivesUp, memory::slots)),
    ("message-garbage", (GivesUp, messages::garbage)),
    ("message-too-long", (GivesUp, messages::too_long)),
    ("message-welcome-again", (GivesUp, messages::welcome_again)),
    ("message-with-a-file", (GivesUp, messages::with_a_file)),
    ("payload-is-a-pipe", (GivesUp, messages::payload_is_a_pipe)),
    ("payload-too-short", (GivesUp, messages::payload_too_short)),
    ("payload-can-shrink", (GivesUp, messages::payload_can_shrink)),
    ("messages-for-no-frame", (GivesUp, messages::for_no_frame)),
    ("payloads-for-no-frame", (GivesUp, messages::payloads_for_no_frame)),
    ("messages-without-end", (GoesOn, messages::without_end)),
    ("messages-that-do-not-come", (GivesUp, messages::do_not_come)),
    ("a-message-that-does-not-come", (GoesOn, messages::does_not_come)),
    ("goodbye-with-escape-codes", (GivesUp, messages::goodbye)),
    ("units-honest", (GoesOn, units::honest)),
    ("units-file-is-a-pipe", (GivesUp, units::file_is_a_pipe)),
    ("units-file-can-shrink", (GivesUp, units::file_can_shrink)),
    ("units-file-too-short", (GivesUp, units::file_too_short)),
    ("units-too-few", (GivesUp, units::too_few)),
    ("units-too-many", (GivesUp, units::too_many)),
    ("units-none", (GivesUp, units::none)),
    ("units-larger-than-file", (GivesUp, units::larger_than_file)),
    ("units-of-absurd-size", (GivesUp, units::of_absurd_size)),
    ("units-of-absurd-metadata", (GivesUp, units::of_absurd_metadata)),
    ("units-at-another-place", (GivesUp, units::at_another_place)),
    ("units-twice", (GivesUp, units::twice)),
    ("units-of-the-future", (GivesUp, units::of_the_future)),
    ("units-beyond-limit", (GivesUp, units::beyond_limit)),
    ("units-without-end", (GivesUp, units::without_end)),
    ("units-written", (GoesOn, units::written)),
    ("units-scribbled", (GivesUp, units::scribbled)),
    ("frame-outside-its-slot", (GivesUp, frames::outside)),
    ("frame-of-no-slot", (GivesUp, frames::of_no_slot)),
    ("frame-again", (GivesUp, frames::again)),
    ("frame-far-ahead", (GoesOn, frames::far_ahead)),
    ("frame-numbers-at-their-ends", (GoesOn, frames::numbers_at_their_ends)),
    ("frame-skipped-to-the-end", (GivesUp, frames::skipped_to_the_end)),
    ("frame-metadata-nowhere", (GivesUp, frames::metadata_nowhere)),
    ("frame-metadata-without-large-areas", (GivesUp, frames::metadata_without_large_areas)),
    ("frame-metadata-behind-large-areas", (GivesUp, frames::metadata_behind_large_areas)),
    ("large-areas-twice", (GivesUp, frames::large_areas_twice)),
    ("large-areas-too-short", (GivesUp, frames::large_areas_too_short)),
    ("large-areas-unsealed", (GivesUp, frames::large_areas_unsealed)),
    ("frame-of-overlapping-rows", (GoesOn, frames::overlapping_rows)),
    ("frame-written-while-read", (GoesOn, frames::written)),
    ("claims-flicker", (GivesUp, pages::flicker)),
    ("claims-scribbled", (GoesOn, pages::claims_scribbled)),
    ("queue-scribbled", (GivesUp, pages::queue_scribbled)),
    ("wake-closed", (GivesUp, pages::wake_closed)),
    ("wake-half-closed", (GivesUp, pages::wake_half_closed)),
    ("wake-flood", (GoesOn, pages::wake_flood)),
    ("refused-then-lingering", (GivesUp, foreign::refused_then_lingering)),
    ("many-lingering", (GivesUp, foreign::many)),
    ("wake-is-nested", (GivesUp, foreign::wake_is_nested)),
    ("queue-lingers", (GivesUp, foreign::queue_lingers)),
    ("slot-lingers", (GivesUp, foreign::slot_lingers)),
    ("slot-is-nested", (GivesUp, foreign::slot_is_nested)),
    ("payload-lingers", (GivesUp, foreign::payload_lingers)),
    ("lingering-unread", (GivesUp, foreign::lingering_unread)),
    ("nested-unread", (GivesUp, foreign::nested_unread)),
    ("lingering-over-wake", (GivesUp, foreign::lingering_over_wake)),
    ("nested-over-wake", (GivesUp, foreign::nested_over_wake)),
    ("metas", (GoesOn, metas::metas)),
    ("nested-events", (GoesOn, bulk::nested_events)),
    ("nested-metas", (GoesOn, bulk::nested_metas)),
    ("nested-caps", (GoesOn, bulk::nested_caps)),
    ("caps-of-a-tag-list", (GoesOn, bulk::caps_of_a_tag_list)),
    ("caps-with-negative-rates", (GoesOn, bulk::negative_rates)),
    ("bulk-sticky-events", (GoesOn, bulk::sticky_events)),
    ("bulk-early-tags", (GoesOn, bulk::early_tags)),
    ("bulk-empty-tags", (GoesOn, bulk::empty_tags)),
    ("bulk-crop-metas", (GoesOn, bulk::crop_metas)),
    ("bulk-caps-names", (GoesOn, bulk::caps_names)),
];

/// Not an attack: their control.
pub const HONEST: (&str, How) = ("honest", (GoesOn, frames::honest));

/// Time that an exporter stays connected after an attack that the reader may survive.
const AFTERWARDS: Duration = Duration::from_millis(200);
/// Caps of the frames.
const CAPS: &str = "application/x-frameshare-test";
/// Bytes of a slot.
const SLOT: u64 = 8192;

/// Waits for a reader, attacks it, and prints the required reaction.
pub fn run(path: &Path, fate: Fate, harm: impl FnOnce(&Listener) -> Result<RawExporter>) -> Result<()> {
    let listener = Listener::bind(path)?;
    println!("{}", json!({ "event": "open" }));
    let (gave_up, refused) = match harm(&listener) {
        Ok(exporter) => {
            let patience = if fate == GivesUp { PATIENCE } else { AFTERWARDS };
            (exporter.channel.hangs_up(patience), false)
        }
        Err(error) if is_refused(&*error) => (false, true),
        Err(error) => (is_hang_up(&*error).then_some(true).ok_or(error)?, false),
    };
    let fate = format!("{fate:?}");
    println!("{}", json!({ "event": "done", "fate": fate, "gave_up": gave_up, "refused": refused }));
    Ok(())
}

/// Whether the reader disconnected before the attack was complete.
fn is_hang_up(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset))
}

/// Accepts a reader as an honest exporter does, and sends it one slot and one frame.
fn accept(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    exporter.slot(1, SLOT)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// Waits until the reader has released all frames but one. Returns after a timeout too: the reader
/// may have disconnected.
fn wait_until_taken(exporter: &RawExporter) {
    let end = Instant::now() + Duration::from_secs(2);
    let is_free = |word: &AtomicU64| {
        matches!(Claim::decode(word.load(Relaxed)).state, ClaimState::Revoked | ClaimState::Released)
    };
    while !exporter.channel.hangs_up(Duration::ZERO)
        && exporter.entries().iter().filter(|word| !is_free(word)).count() > 1
        && Instant::now() < end
    {
        thread::sleep(Duration::from_micros(50));
    }
}
