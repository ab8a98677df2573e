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
        slot::Slot,
        state::{Shared, State},
    },
    memory::copy_out,
    sys::Timeout,
};
use frameshare_protocol::{
    Descriptor, Sequence,
    limits::{MAX_PLANES, METADATA_AREA},
};
use std::sync::Arc;

/// Publishes a frame to every reader, after a wait for lossless ones.
pub fn publish(
    shared: &Shared,
    frame: Frame<'_>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, PublishError> {
    let mut frame = Some(frame);
    let published = try_publish(shared, &mut frame, timeout, interrupt);
    if let Some(frame) = frame {
        shared.with(|state| state.abandon(frame));
    }
    published
}

/// As [`publish`], but takes the frame only if it is handed out.
fn try_publish(
    shared: &Shared,
    unpublished: &mut Option<Frame<'_>>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, PublishError> {
    let Some(frame) = unpublished.as_ref() else { return Err(PublishError::Closed) };
    let inner = &frame.slot.0;
    if inner.exporter != shared.id {
        return Err(InvalidFrame::ForeignSlot.into());
    }
    if frame.planes.len() > MAX_PLANES
        || frame.metadata.len() as u64 > frameshare_protocol::limits::MAX_PAYLOAD
    {
        return Err(InvalidFrame::TooMuch.into());
    }
    let mut descriptor = Descriptor {
        slot: inner.id,
        offset: frame.offset,
        size: frame.size,
        pts: frame.pts,
        dts: frame.dts,
        duration: frame.duration,
        media_offset: frame.media_offset,
        media_offset_end: frame.media_offset_end,
        flags: frame.flags,
        plane_count: frame.planes.len() as u32,
        ..Descriptor::default()
    };
    descriptor.planes[..frame.planes.len()].copy_from_slice(frame.planes);
    descriptor.check_frame(frame.slot.size()).map_err(|invalid| InvalidFrame::Field(invalid.field))?;

    prepare_large_areas(shared, frame.metadata.len());
    let weight = Weight::of(frame.slot, frame.metadata.len());
    let mut content = kept_content(shared, frame);
    let (slot, size) = (frame.slot, frame.size);
    // Download target: not requested yet, requested without success, or a slot.
    let mut target: Option<Option<Slot>> = None;
    loop {
        let outcome = when_there_is_room(shared, timeout, interrupt, |state| {
            if state.is_closed() {
                return Some(Some(Err(PublishError::Closed)));
            }
            if state.is_retired(slot) {
                return Some(Some(Err(InvalidFrame::Retired.into())));
            }
            if let Some(plane) = state.overlapping_plane(descriptor.used_planes()) {
                return Some(Some(Err(InvalidFrame::OverlappingRows { plane }.into())));
            }
            if state.would_lose(weight) {
                return None;
            }
            if state.must_copy(slot) {
                return Some(Some(Err(PublishError::WouldWait)));
            }
            if let Some(why) = state.not_for_all(slot) {
                return Some(Some(Err(PublishError::NotForAll(why))));
            }
            if target.is_none() && state.wants_download(slot) {
                return Some(None);
            }
            // Every reader has room: from here on only links fail.
            let (frame, target) = (unpublished.take()?, target.get_or_insert_default());
            Some(Some(state.hand_out(frame, descriptor.clone(), content.take(), target)))
        })?;
        match outcome {
            Some(Some(outcome)) => return outcome,
            // With the state unlocked: allocation and registration with a GPU take long.
            Some(None) => {
                target = Some(download_target::wait_for_target(shared, interrupt, timeout, size)?);
            }
            None => return Err(PublishError::NoRoom),
        }
    }
}

/// Makes large areas if metadata of this length needs the first one, with the state unlocked.
fn prepare_large_areas(shared: &Shared, metadata: usize) {
    if metadata <= METADATA_AREA {
        return;
    }
    let Some(count) = shared.with(|state| state.wants_large_areas(metadata)) else { return };
    // Without the memory or a descriptor for it, metadata takes messages.
    if let Ok(areas) = LargeAreas::new(count, &shared.label) {
        shared.with(|state| state.add_large_areas(areas));
    }
}

/// Copies a unit that the exporter keeps for joining readers, with the state unlocked.
fn kept_content(shared: &Shared, frame: &Frame<'_>) -> Option<Arc<Content>> {
    let wanted =
        frame.unit != Unit::Whole && shared.lock().keeps_unit(frame.unit, frame.size, frame.metadata.len());
    let bytes = wanted.then(|| copy_out(&*frame.slot.0.memory, frame.offset, frame.size)).flatten()?;
    Some(Arc::new(Content { metadata: frame.metadata.into(), bytes }))
}

/// Runs `publish` until it returns a value: now, or after a full lossless reader has made room;
/// `None` on timeout.
fn when_there_is_room<T>(
    shared: &Shared,
    timeout: Timeout,
    interrupt: &Interrupt,
    mut publish: impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut state = shared.lock();
    if state.has_room() {
        // One pass over all claims, which share cache lines with what is published. Release fences
        // take driver calls, which can wait until the readers are woken.
        let polls = state.needs_poll();
        let polls_first = polls && !shared.has_gpu();
        if polls_first {
            state.reclaim();
        }
        if let Some(outcome) = publish(&mut state) {
            drop(state);
            if polls && !polls_first {
                shared.with(State::reclaim);
            }
            return Ok(Some(outcome));
        }
    }
    drop(state);
    let outcome = wait_until(shared, interrupt, timeout, Awaited::Room, publish)?;
    // The wait has polled only as many readers as it needed.
    shared.with(State::reclaim);
    Ok(outcome)
}
