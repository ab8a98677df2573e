// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publication of a frame to every reader, after a wait for lossless readers.

use super::{
    backpressure::{Awaited, wait_until},
    download_target,
};
use crate::{
    Interrupt,
    exporter::{
        error::Interrupted,
        frame::{Frame, InvalidFrame, PublishError, Unit},
        link::Weight,
        parts::Content,
        resources::LargeAreas,
        state::{Shared, State},
        unpublished::{NotPublished, Unpublished},
    },
    memory::copy_out,
    sys::Timeout,
};
use frameshare_protocol::{Sequence, limits::METADATA_AREA};
use std::sync::Arc;

/// The end of one attempt to publish a frame.
enum Attempt {
    /// It was handed out, or cannot be.
    Ended(Result<Sequence, NotPublished>),
    /// It is to be downloaded, and there is no slot yet to copy it into.
    NeedsTarget,
    /// A lossless reader would lose it.
    NoRoom,
}

/// Publishes a frame to every reader, after a wait for lossless ones.
pub fn publish(
    shared: &Shared,
    frame: &mut Frame<'_>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, NotPublished> {
    if let Some(fault) = frame.fault(shared.id) {
        return abandon(shared, frame, PublishError::Invalid(fault).into());
    }
    let mut unpublished = Unpublished {
        descriptor: frame.descriptor(),
        frame,
        content: None,
        target: None,
        was_target_sought: false,
        is_handed_out: false,
    };
    let frame = &unpublished.frame;
    if let Err(invalid) = unpublished.descriptor.check_frame(frame.slot.size()) {
        let why = PublishError::Invalid(InvalidFrame::Field(invalid.field));
        return abandon(shared, unpublished.frame, why.into());
    }
    if frame.metadata.len() > METADATA_AREA {
        prepare_large_areas(shared, frame.metadata.len());
    }
    if frame.unit != Unit::Whole {
        unpublished.content = kept_content(shared, frame);
    }
    match try_publish(shared, &mut unpublished, timeout, interrupt) {
        Err(why) if !unpublished.is_handed_out => abandon(shared, unpublished.frame, why),
        published => published,
    }
}

/// Gives up a frame that no reader gets, for this reason.
#[cold]
fn abandon(shared: &Shared, frame: &mut Frame<'_>, why: NotPublished) -> Result<Sequence, NotPublished> {
    shared.with(|state| state.abandon(frame));
    Err(why)
}

fn try_publish(
    shared: &Shared,
    unpublished: &mut Unpublished<'_, '_>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, NotPublished> {
    loop {
        let attempted = match try_at_once(shared, unpublished) {
            Attempt::NoRoom => {
                try_when_there_is_room(shared, unpublished, timeout, interrupt).map_err(PublishError::from)?
            }
            attempted => attempted,
        };
        match attempted {
            Attempt::Ended(result) => return result,
            // With the state unlocked: allocation and registration with a GPU take long.
            Attempt::NeedsTarget => {
                let size = unpublished.frame.size;
                unpublished.target = download_target::wait_for_target(shared, interrupt, timeout, size)?;
                unpublished.was_target_sought = true;
            }
            Attempt::NoRoom => return Err(PublishError::NoRoom.into()),
        }
    }
}

/// Publishes a frame if every reader has room for it, as far as that is known without a wait.
fn try_at_once(shared: &Shared, unpublished: &mut Unpublished<'_, '_>) -> Attempt {
    let mut state = shared.lock();
    if !state.has_room() {
        return Attempt::NoRoom;
    }
    // One pass over all claims, which share cache lines with what is published. Release fences take
    // driver calls, which can wait until the readers are woken.
    let polls = state.needs_poll();
    let polls_first = polls && !shared.has_gpu();
    if polls_first {
        state.reclaim();
        // A message that asks a reader for its memory may not fit into its socket.
        if !state.has_room() {
            return Attempt::NoRoom;
        }
    }
    let attempted = attempt(&mut state, unpublished);
    drop(state);
    if polls && !polls_first {
        shared.with(State::reclaim);
    }
    attempted
}

/// Publishes a frame now, or after a full lossless reader has made room.
#[cold]
fn try_when_there_is_room(
    shared: &Shared,
    unpublished: &mut Unpublished<'_, '_>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Attempt, Interrupted> {
    let weight = Weight::of(unpublished.frame.slot, unpublished.frame.metadata.len());
    let attempted = wait_until(shared, interrupt, timeout, Awaited::Room, |state| {
        let waits = state.refusal(unpublished).is_none() && state.would_lose(weight);
        (!waits).then(|| attempt(state, unpublished))
    })?;
    // The wait has polled only as many readers as it needed.
    shared.with(State::reclaim);
    Ok(attempted.unwrap_or(Attempt::NoRoom))
}

/// Publishes a frame that every reader has room for.
fn attempt(state: &mut State, unpublished: &mut Unpublished<'_, '_>) -> Attempt {
    if let Some(why) = state.refusal(unpublished) {
        return Attempt::Ended(Err(why));
    }
    if let Some(why) = state.refusal_in_place(unpublished.frame.slot) {
        return Attempt::Ended(Err(why));
    }
    if !unpublished.was_target_sought && state.wants_download(unpublished.frame.slot) {
        return Attempt::NeedsTarget;
    }
    // From here on only links fail.
    Attempt::Ended(state.hand_out(unpublished))
}

/// Makes large areas if metadata of this length needs the first one, with the state unlocked.
#[cold]
fn prepare_large_areas(shared: &Shared, metadata: usize) {
    let Some(count) = shared.with(|state| state.wants_large_areas(metadata)) else { return };
    // Without the memory or a descriptor for it, metadata takes messages.
    if let Ok(areas) = LargeAreas::new(count, &shared.label) {
        shared.with(|state| state.add_large_areas(areas));
    }
}

/// Copies a unit that the exporter keeps for joining readers, with the state unlocked.
fn kept_content(shared: &Shared, frame: &Frame<'_>) -> Option<Arc<Content>> {
    let wanted = shared.lock().keeps_unit(frame.unit, frame.size, frame.metadata.len());
    let bytes = wanted.then(|| copy_out(&*frame.slot.0.memory, frame.offset, frame.size)).flatten()?;
    Some(Arc::new(Content { metadata: frame.metadata.into(), bytes }))
}
