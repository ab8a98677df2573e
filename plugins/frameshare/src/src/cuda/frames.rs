// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion of frames in GPU memory to buffers: in place if possible, otherwise as a GPU copy.

use super::{connection::Cuda, error::CudaError, layout::CudaLayout, line::Line};
use crate::{
    src::{leased_memory::LeasedMemory, picture::Picture, way::Way},
    sync::lock,
};
use frameshare::reader::ReaderCopy;
use gst_cuda::{Reusable, memory::Rules};
use std::sync::{Arc, Mutex};

/// Maximum number of memories that wrap one slot. More than one is needed if the layout changes
/// from frame to frame, or if the exporter publishes a frame again while it is held.
const MAX_WRAPS: usize = 4;

/// Wrapped memories of a slot: per-slot user data, dropped before the slot is unmapped.
#[derive(Debug, Default)]
struct Wraps(Mutex<Vec<Wrap>>);

#[derive(Debug)]
struct Wrap {
    stream: gst_cuda::Stream,
    address: u64,
    place: CudaLayout,
    memory: Reusable,
}

/// Converts a frame to a buffer; returns the delivery mode as well.
pub(in crate::src) fn to_buffer(
    cuda: &mut Cuda,
    lease: LeasedMemory,
    picture: Option<Picture<'_>>,
    is_last_credit: bool,
) -> Result<(gst::Buffer, Way), CudaError> {
    let picture = picture.ok_or(CudaError::NotVideo)?;
    // Work on the stream waits for the frame; readers on other streams rely on the memory's flag.
    let pending = !lease.frame().is_written()?;
    if pending {
        lease.frame().wait_on(&cuda.line.engine)?;
    }
    if is_last_credit {
        lease.frame().count_copy(ReaderCopy::Credit);
        return Ok((cuda.copier.of(&lease, &picture, &cuda.context, &cuda.line)?, Way::CopiedForCredit));
    }
    match CudaLayout::of(&picture, lease.frame().len()) {
        Some(place) => Ok((in_place(cuda, lease, picture, place, pending)?, Way::InPlace)),
        None => {
            lease.frame().count_copy(ReaderCopy::Layout);
            Ok((cuda.copier.of(&lease, &picture, &cuda.context, &cuda.line)?, Way::CopiedForLayout))
        }
    }
}

fn in_place(
    cuda: &Cuda,
    lease: LeasedMemory,
    picture: Picture<'_>,
    place: CudaLayout,
    pending: bool,
) -> Result<gst::Buffer, CudaError> {
    let format = picture.info.format();
    let (info, layout) = (picture.info.clone(), place.layout.clone());
    let memory = lend(cuda, lease, place, pending).ok_or(CudaError::NotWrapped(format))?;
    let mut buffer = gst::Buffer::new();
    let buffer_ref = buffer.make_mut();
    buffer_ref.append_memory(memory);
    picture.in_memory(info, layout).add_meta(buffer_ref)?;
    Ok(buffer)
}

/// Loans the slot's memory with the lease inside; creates a new wrapped memory only if none of the
/// slot's fits.
fn lend(cuda: &Cuda, lease: LeasedMemory, place: CudaLayout, pending: bool) -> Option<gst::Memory> {
    let Line { gst: stream, .. } = &cuda.line;
    let address = lease.address()? + u64::try_from(place.start).ok()?;
    #[cfg(test)]
    if cuda.releases_in_order {
        return super::tests::lend_in_order(cuda, lease, &place, address, pending);
    }
    let lease = Arc::new(lease);
    let wraps = lease.frame().keep_with_slot(Wraps::default)?;
    let mut wraps = lock(&wraps.0);
    let fitting =
        wraps.iter().filter(|wrap| wrap.stream == *stream && wrap.address == address && wrap.place == place);
    if let Some(memory) =
        fitting.map(|wrap| wrap.memory.lend(lease.clone(), pending)).find_map(|memory| memory)
    {
        return Some(memory);
    }
    let rules = Rules { read_only: true, fixed_pool: true };
    let memory = Reusable::wrap(&cuda.context, Some(stream), &place.info, address, rules)?;
    let lent = memory.lend(lease.clone(), pending);
    // Drop the oldest entry. If it is on loan, it is freed when the loan ends.
    let oldest = (wraps.len() == MAX_WRAPS).then(|| wraps.remove(0));
    wraps.push(Wrap { stream: stream.clone(), address, place, memory });
    drop(wraps);
    drop(oldest);
    lent
}
