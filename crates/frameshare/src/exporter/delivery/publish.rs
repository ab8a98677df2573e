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
        frame::{Frame, InvalidFrame, PublishError},
        resources::{LargeAreas, Resources},
        state::Shared,
    },
    memory::copy_out,
    sys::Timeout,
};
use frameshare_core::exporter::{
    parts::Content,
    state::Attempt,
    unit::Unit,
    unpublished::{NotPublished, Unpublished},
};
use frameshare_protocol::{Sequence, limits::METADATA_AREA};
use std::sync::Arc;

/// Publishes a frame to every reader, after a wait for lossless ones.
pub fn publish(
    shared: &Shared,
    frame: &mut Frame<'_>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, Box<PublishError>> {
    if let Some(fault) = frame.fault(shared.id) {
        return abandon(shared, frame, PublishError::Invalid(fault).into());
    }
    let descriptor = frame.descriptor();
    if let Err(invalid) = descriptor.check_frame(frame.slot.size()) {
        let why = PublishError::Invalid(InvalidFrame::Field(invalid.field));
        return abandon(shared, frame, why.into());
    }
    if frame.metadata.len() > METADATA_AREA {
        prepare_large_areas(shared, frame.metadata.len());
    }
    let content = if frame.unit == Unit::Whole { None } else { kept_content(shared, frame) };
    let mut unpublished = Unpublished {
        slot: frame.slot,
        written: frame.written,
        unit: frame.unit,
        metadata: frame.metadata,
        arrived: frame.arrived,
        late_after: frame.late_after,
        keep: frame.keep.take(),
        descriptor,
        content,
        target: None,
        was_target_sought: false,
        is_handed_out: false,
    };
    match try_publish(shared, &mut unpublished, timeout, interrupt) {
        Err(why) if !unpublished.is_handed_out => {
            frame.keep = unpublished.keep.take();
            abandon(shared, frame, why)
        }
        published => published,
    }
}

/// Gives up a frame that no reader gets, for this reason.
#[cold]
fn abandon(
    shared: &Shared,
    frame: &mut Frame<'_>,
    why: Box<PublishError>,
) -> Result<Sequence, Box<PublishError>> {
    shared.with(|state| state.abandon(frame.slot, frame.written, frame.keep.take()));
    Err(why)
}

fn try_publish(
    shared: &Shared,
    unpublished: &mut Unpublished<'_, Resources>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Sequence, Box<PublishError>> {
    loop {
        let attempted = match try_at_once(shared, unpublished) {
            Attempt::NoRoom => {
                try_when_there_is_room(shared, unpublished, timeout, interrupt).map_err(PublishError::from)?
            }
            attempted => attempted,
        };
        match attempted {
            Attempt::Ended(result) => return result.map_err(|why| not_published(*why)),
            // With the state unlocked: allocation and registration with a GPU take long.
            Attempt::NeedsTarget => {
                let size = unpublished.descriptor.size;
                unpublished.target = download_target::wait_for_target(shared, interrupt, timeout, size)?;
                unpublished.was_target_sought = true;
            }
            Attempt::NoRoom => return Err(PublishError::NoRoom.into()),
        }
    }
}

#[cold]
fn not_published(why: NotPublished<Resources>) -> Box<PublishError> {
    Box::new(why.into())
}

/// Publishes a frame if every reader has room for it, as far as that is known without a wait.
fn try_at_once(shared: &Shared, unpublished: &mut Unpublished<'_, Resources>) -> Attempt<Resources> {
    let (attempted, polls) = shared.lock().try_at_once(unpublished, shared.has_gpu());
    if polls {
        shared.with(|state| state.reclaim());
    }
    attempted
}

/// Publishes a frame now, or after a full lossless reader has made room.
#[cold]
fn try_when_there_is_room(
    shared: &Shared,
    unpublished: &mut Unpublished<'_, Resources>,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Attempt<Resources>, Interrupted> {
    let attempted =
        wait_until(shared, interrupt, timeout, Awaited::Room, |state| state.try_with_room(unpublished))?;
    Ok(attempted.unwrap_or(Attempt::NoRoom))
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
