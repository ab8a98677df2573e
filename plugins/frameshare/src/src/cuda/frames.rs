//! A frame in GPU memory as a buffer: in place where it can stay there, else as a copy on the GPU.

use super::{Cuda, Line, place::Place};
use crate::src::{frames::Way, lease::Lease, picture::Picture};
use frameshare::fence::FenceError;
use gst_cuda::{Reusable, memory::Rules};
use std::sync::{Arc, Mutex, PoisonError};

/// Most memories that one slot is wrapped as. More than one are needed where the layout changes from frame to frame, or
/// the exporter publishes a frame again while it is held.
const MAX_WRAPS: usize = 4;

/// Why a frame in GPU memory cannot be handed on.
#[derive(Debug, thiserror::Error)]
pub(in crate::src) enum CudaError {
    #[error("only raw video can lie in GPU memory")]
    NotVideo,
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("GStreamer's CUDA library does not wrap memory of {0}")]
    NotWrapped(gst_video::VideoFormat),
    #[error("its copy on the GPU failed: {0}")]
    Copy(String),
    #[error(transparent)]
    Meta(#[from] glib::BoolError),
}

/// The memories that a slot was wrapped as; kept with the slot, and gone before it is unmapped.
#[derive(Debug, Default)]
struct Wraps(Mutex<Vec<Wrap>>);

#[derive(Debug)]
struct Wrap {
    stream: gst_cuda::Stream,
    address: u64,
    place: Place,
    memory: Reusable,
}

/// The buffer that a frame becomes, and how.
pub(in crate::src) fn to_buffer(
    cuda: &mut Cuda,
    lease: Lease,
    picture: Option<Picture<'_>>,
    is_last_credit: bool,
) -> Result<(gst::Buffer, Way), CudaError> {
    let picture = picture.ok_or(CudaError::NotVideo)?;
    // Work on the stream waits for the frame; who reads on another one is told by the memory's flag.
    let pending = !lease.frame().is_written()?;
    if pending {
        lease.frame().wait_on(&cuda.line.engine)?;
    }
    if is_last_credit {
        return Ok((cuda.copies.of(&lease, &picture, &cuda.context, &cuda.line)?, Way::CopiedForCredit));
    }
    match Place::of(&picture, lease.frame().len()) {
        Some(place) => Ok((in_place(cuda, lease, picture, place, pending)?, Way::InPlace)),
        None => Ok((cuda.copies.of(&lease, &picture, &cuda.context, &cuda.line)?, Way::CopiedForLayout)),
    }
}

fn in_place(
    cuda: &Cuda,
    lease: Lease,
    picture: Picture<'_>,
    place: Place,
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

/// The slot's memory, with the lease inside; wrapped anew only where none of the slot's fits.
fn lend(cuda: &Cuda, lease: Lease, place: Place, pending: bool) -> Option<gst::Memory> {
    let Line { gst: stream, .. } = &cuda.line;
    let address = lease.address()? + u64::try_from(place.start).ok()?;
    #[cfg(test)]
    if cuda.releases_in_order {
        return super::tests::lend_in_order(cuda, lease, &place, address, pending);
    }
    let lease = Arc::new(lease);
    let wraps = lease.frame().keep_with_slot(Wraps::default)?;
    let mut wraps = wraps.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    // The oldest goes, which may be out: then it is freed when it comes back.
    let oldest = (wraps.len() == MAX_WRAPS).then(|| wraps.remove(0));
    wraps.push(Wrap { stream: stream.clone(), address, place, memory });
    drop(wraps);
    drop(oldest);
    lent
}
