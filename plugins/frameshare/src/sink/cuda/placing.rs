// SPDX-License-Identifier: MIT OR Apache-2.0

//! Placement of frames on a GPU: in place, or by a copy.

use super::{Gpu, Picture};
use crate::{
    ffi::slot_memory,
    pool::cuda::layout,
    sink::{
        copy_stats::{CopyReason, Path},
        kinds::Export,
        placed::{PlaceError, Placed, copy_picture, slot_size, whole},
        stream::Stream,
    },
};
use frameshare::exporter::Slot;
use gst_cuda::memory::Memory;

impl Stream {
    /// Copies a frame that cannot be published where it is, for this reason.
    pub(in crate::sink) fn place_for_all(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        reason: CopyReason,
    ) -> Result<Placed, PlaceError> {
        match self.on_gpu() {
            Some(gpu) => self.place_on(gpu, buffer, info, Some(reason)),
            None => self.place_in_host(buffer, info, Some(reason)),
        }
    }

    /// Places a frame on a GPU. A surface stays in place unless there is a `reason` to copy it.
    pub(in crate::sink) fn place_on(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        reason: Option<CopyReason>,
    ) -> Result<Placed, PlaceError> {
        let memory = (buffer.n_memory() == 1).then(|| Memory::of(buffer.peek_memory(0))).flatten();
        let (Some(memory), Some(info)) = (memory, info) else { return self.upload(gpu, buffer, info) };
        let reason = match (
            gst_cuda::memory::held::<Slot>(buffer.peek_memory(0)),
            slot_memory::origin(buffer.peek_memory(0)),
        ) {
            (Some(slot), _) if slot.belongs_to(&self.exporter) => {
                return on_gpu_in(slot, 0, Path::Pool, buffer, memory, info);
            }
            (Some(_), _) => CopyReason::OtherStream,
            (None, Some(_)) => CopyReason::NoFreeSlot,
            (None, None) if self.export == Export::Copy => CopyReason::Asked,
            (None, None) => match reason
                .map_or_else(|| self.surfaces.share(&self.exporter, &gpu.context, buffer, memory), Err)
            {
                Ok((slot, offset)) => return on_gpu_in(slot, offset, Path::InPlace, buffer, memory, info),
                Err(reason) => reason,
            },
        };
        let for_good = !matches!(
            reason,
            CopyReason::TooManyHeld
                | CopyReason::NoFreeSlot
                | CopyReason::OtherStream
                | CopyReason::ReaderWaits
                | CopyReason::DecoderChanges
        );
        if self.export == Export::InPlace && for_good {
            return Err(PlaceError::NotInPlace(reason));
        }
        let placed = self.copy_on(gpu, buffer, memory, info)?;
        self.count_copy(reason, placed.size);
        Ok(placed)
    }

    /// Copies a GPU frame on the GPU: the copy may not be done when this returns.
    fn copy_on(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        memory: Memory<'_>,
        info: &gst_video::VideoInfo,
    ) -> Result<Placed, PlaceError> {
        let bad = |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what}", buffer.size()));
        let whole = whole(buffer, info);
        let to = layout(whole.as_ref().unwrap_or(info), &gpu.context);
        let slot = self.free_slot(to.size() as u64)?;
        let mapped = memory.map().ok_or_else(|| bad("that another component is writing"))?;
        let own = memory.info();
        let meta = buffer.meta::<gst_video::VideoMeta>();
        let (offsets, strides) =
            meta.as_ref().map_or((own.offset(), own.stride()), |meta| (meta.offset(), meta.stride()));
        if offsets.len() != to.n_planes() as usize {
            return Err(bad("with another number of planes than its caps say"));
        }
        let from = Picture { address: mapped.address(), size: mapped.size(), offsets, strides };
        gpu.copy(&self.exporter, &slot, &to, &from, &memory.context(), buffer.clone())?;
        Ok(Placed::new(slot, to.size() as u64, Path::Copied, Some(&to)))
    }

    /// Uploads a host frame: the copy may not be done when this returns.
    fn upload(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        let bad = |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what}", buffer.size()));
        let whole = info.and_then(|info| whole(buffer, info));
        let info = whole.as_ref().or(info);
        let to = info.map(|info| layout(info, &gpu.context));
        let size = to.as_ref().map_or(buffer.size(), |to| to.size());
        let slot_size = slot_size(size, to.is_some());
        let slot = self.free_slot(slot_size)?;
        gpu.upload(&self.exporter, &slot, size, |target| {
            let (Some(info), Some(to)) = (info, &to) else {
                let mut map = target.map_writable().map_err(|_| bad("that cannot be copied"))?;
                return buffer.copy_to_slice(0, &mut map).map_err(|_| bad("that cannot be read"));
            };
            let flags = gst_video::VideoFrameFlags::empty();
            gst_video::VideoMeta::add_full(
                target,
                flags,
                to.format(),
                to.width(),
                to.height(),
                to.offset(),
                to.stride(),
            )
            .map_err(|_| bad("that cannot be copied"))?;
            copy_picture(buffer, target, info)
        })?;
        self.count_copy(CopyReason::HostMemory, size as u64);
        Ok(Placed::new(slot, size as u64, Path::Uploaded, to.as_ref()))
    }
}

/// A frame in a GPU slot, whose memory starts `offset` bytes behind the slot's start, with all its
/// planes.
fn on_gpu_in(
    slot: Slot,
    offset: u64,
    path: Path,
    buffer: &gst::BufferRef,
    memory: Memory<'_>,
    info: &gst_video::VideoInfo,
) -> Result<Placed, PlaceError> {
    // Mapping uploads data that the CPU may have written.
    let size = memory.map().map(|mapped| mapped.size() as u64).ok_or_else(|| {
        PlaceError::BadBuffer(format!(
            "a buffer of {} bytes that another component is writing",
            buffer.size()
        ))
    })?;
    let own = memory.info();
    let mut placed = Placed::new(slot, size, path, Some(&own)).at(offset);
    if let Some(meta) = buffer.meta::<gst_video::VideoMeta>() {
        placed.set_planes(meta.offset(), meta.stride());
    }
    placed.check(info)?;
    Ok(placed)
}
