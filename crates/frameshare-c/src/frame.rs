// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames that a reader holds.
//!
//! # Safety
//!
//! Pointers come from C, as the header describes them; [`border`](crate::border) checks them.
//! Addresses that go to C are of memory that the frame keeps mapped.
#![allow(unsafe_code)]

use crate::{
    border::{guard, object, quietly, store, take},
    cuda,
    failure::{Failure, Status},
    structs,
    video::{CBool, Format, MEMORY_CUDA, MEMORY_HOST, NO_TIME, Plane, RawMemory},
};
use frameshare::{
    cuda::{Context, Stream},
    reader,
};
use std::{ffi::c_void, ptr, slice, sync::Arc};

structs::define! {
    /// The description of a frame.
    FrameInfo as "frameshare_frame_info" of 96 {
        sequence: u64 = 0,
        session: u64 = 0,
        lost_before: u64 = 0,
        pts_ns: u64 = NO_TIME,
        duration_ns: u64 = NO_TIME,
        published_ns: u64 = NO_TIME,
        flags: u64 = 0,
        memory: RawMemory = MEMORY_HOST,
        is_kept: CBool = 0,
        byte_count: usize = 0,
        metadata: *const c_void = ptr::null(),
        metadata_size: usize = 0,
    }
}

/// A frame that may be read until it is released.
#[derive(Debug)]
pub struct Frame {
    frame: reader::Frame,
    /// The context that streams are looked up with; set if frames can be in GPU memory.
    gpu: Option<Arc<Context>>,
}

impl Frame {
    pub fn new(frame: reader::Frame, gpu: Option<Arc<Context>>) -> Self {
        Self { frame, gpu }
    }

    /// The stream of C's, if the frame is in GPU memory.
    ///
    /// # Safety
    /// The stream is NULL or a CUstream that outlives the frame.
    unsafe fn stream(&self, raw: *mut c_void) -> Result<Option<Arc<Stream>>, Failure> {
        match &self.gpu {
            // SAFETY: the caller's guarantee.
            Some(gpu) if self.frame.is_on_gpu() => unsafe { cuda::stream(raw, gpu) }.map(Some),
            _ => Ok(None),
        }
    }

    /// The plane with its address in host memory, and its number of bytes before the top row.
    fn plane(&self, index: u32) -> Result<(Plane, reader::FramePlane<'_>), Failure> {
        let plane = self.frame.plane(index as usize)?;
        let mut found = Plane::of(plane.layout());
        // The top row is the last one in the memory of a bottom-up image.
        let top = plane.offset - plane.range.start;
        if let Some(row) = plane.bytes().get(top) {
            found.data = ptr::from_ref(row).cast();
        }
        Ok((found, plane))
    }
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_get_info(frame: *const Frame, info: *mut FrameInfo) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let Frame { frame, .. } = unsafe { object(frame, "frame") }?;
        let (descriptor, metadata) = (frame.descriptor(), frame.metadata());
        let found = FrameInfo {
            sequence: descriptor.sequence.0,
            session: frame.session(),
            lost_before: frame.lost_before(),
            pts_ns: descriptor.pts.unwrap_or(NO_TIME),
            duration_ns: descriptor.duration.unwrap_or(NO_TIME),
            published_ns: descriptor.published,
            flags: descriptor.flags,
            memory: if frame.is_on_gpu() { MEMORY_CUDA } else { MEMORY_HOST },
            is_kept: frame.is_kept().into(),
            byte_count: frame.len(),
            metadata: if metadata.is_empty() { ptr::null() } else { metadata.as_ptr().cast() },
            metadata_size: metadata.len(),
            ..structs::Struct::init()
        };
        // SAFETY: the header's contract.
        unsafe { structs::write(info, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_get_format(frame: *const Frame, format: *mut Format) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(frame, "frame") }?;
        let found = Format::of(this.frame.format()?);
        // SAFETY: the header's contract.
        unsafe { structs::write(format, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_get_plane(
    frame: *const Frame,
    index: u32,
    plane: *mut Plane,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            structs::check(plane)?;
            object(frame, "frame")?
        };
        let (mut found, layout) = this.plane(index)?;
        found.device_pointer = layout.device_pointer().unwrap_or_default();
        // SAFETY: the header's contract.
        unsafe { structs::write(plane, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_get_plane_on(
    frame: *const Frame,
    index: u32,
    stream: *mut c_void,
    plane: *mut Plane,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            structs::check(plane)?;
            object(frame, "frame")?
        };
        let (mut found, layout) = this.plane(index)?;
        // SAFETY: the header's contract.
        if let Some(stream) = unsafe { this.stream(stream) }? {
            found.device_pointer = layout.device_pointer_on(&stream)?.unwrap_or_default();
        }
        // SAFETY: the header's contract.
        unsafe { structs::write(plane, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_get_data(
    frame: *const Frame,
    data: *mut *const c_void,
    byte_count: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(data, ptr::null(), "data")?;
            store(byte_count, 0, "byte_count")?;
            object(frame, "frame")?
        };
        let start = this.frame.as_ptr().ok_or_else(|| {
            Failure::new(Status::Unsupported, "the frame is in CUDA memory: open the reader for HOST memory")
        })?;
        // SAFETY: the header's contract.
        unsafe {
            store(data, start.as_ptr().cast_const().cast(), "data")?;
            store(byte_count, this.frame.len(), "byte_count")?;
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_copy_plane(
    frame: *const Frame,
    index: u32,
    target: *mut c_void,
    target_size: usize,
    stride: usize,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(frame, "frame") }?;
        if target.is_null() {
            return Err(Failure::argument("target is NULL"));
        }
        if target_size > isize::MAX as usize {
            return Err(Failure::argument(format!("target_size is {target_size}, which is impossible")));
        }
        let plane = this.frame.plane(index as usize)?;
        // SAFETY: the header's contract: so many bytes, which nothing else uses meanwhile.
        let target = unsafe { slice::from_raw_parts_mut(target.cast(), target_size) };
        plane.copy_to(target, stride)?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_wait_on(frame: *const Frame, stream: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(frame, "frame") }?;
        // SAFETY: the header's contract.
        if let Some(stream) = unsafe { this.stream(stream) }? {
            this.frame.wait_on(&stream)?;
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_used_on_stream(frame: *const Frame, stream: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(frame, "frame") }?;
        // SAFETY: the header's contract.
        if let Some(stream) = unsafe { this.stream(stream) }? {
            this.frame.used_on_stream(stream);
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_done_on(frame: *const Frame, stream: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(frame, "frame") }?;
        // SAFETY: the header's contract.
        if let Some(stream) = unsafe { this.stream(stream) }? {
            this.frame.done_on(&stream)?;
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_release(frame: *mut Frame) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(frame, "frame") }));
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_frame_release_on(frame: *mut Frame, stream: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { take(frame, "frame") }?;
        // SAFETY: the header's contract.
        match unsafe { this.stream(stream) } {
            Ok(Some(stream)) => this.frame.release_on(&stream)?,
            Ok(None) => {}
            Err(failure) => {
                // The streams that read it are not known, so the release waits for all.
                this.frame.address();
                return Err(failure);
            }
        }
        Ok(Status::Ok)
    })
}
