// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporters of raw video.
//!
//! # Safety
//!
//! Pointers come from C, as the header describes them; [`border`](crate::border) checks them.
//! Addresses that go to C are of a slot that the new frame holds, and that only C writes.
#![allow(unsafe_code)]

use crate::{
    border::{check_optional, guard, object, quietly, store, take, text, timeout, values},
    cuda,
    failure::{Failure, Status},
    log, structs,
    video::{CBool, Format, MEMORY_CUDA, MEMORY_HOST, NO_TIME, Plane, RawMemory},
};
use frameshare::{
    Endpoint, Event, Wait,
    cuda::Context,
    exporter::{self, Config, LosslessReaders, PublishError, SlowReaders, VideoExporter, VideoExporterError},
    memory::Address,
};
use std::{
    ffi::{c_char, c_uint, c_void},
    ptr,
    sync::Arc,
    time::Duration,
};

/// As [`RawMemory`].
pub type RawLosslessReaders = c_uint;
/// As [`RawMemory`].
pub type RawSlowReaders = c_uint;

/// The first kind of event that is the application's: bit 31.
const EVENT_APPLICATION: u32 = 0x8000_0000;

structs::define! {
    /// Configuration of an exporter.
    ExporterConfig as "frameshare_exporter_config" of 96 {
        memory: RawMemory = MEMORY_HOST,
        cuda_device_id: i32 = 0,
        cuda_uuid: *const c_char = ptr::null(),
        cuda_context: *mut c_void = ptr::null_mut(),
        max_slots: u32 = 512,
        max_held_limit: u32 = 16,
        lossless_readers: RawLosslessReaders = 1,
        slow_readers: RawSlowReaders = 0,
        reader_timeout_ns: u64 = 5_000_000_000,
        socket_mode: u32 = 0o600,
        allowed_uids: *const u32 = ptr::null(),
        allowed_uid_count: usize = 0,
        allowed_gids: *const u32 = ptr::null(),
        allowed_gid_count: usize = 0,
    }
}

structs::define! {
    /// Statistics of an exporter.
    ExporterStats as "frameshare_exporter_stats" of 48 {
        published: u64 = 0,
        readers_total: u64 = 0,
        readers: u32 = 0,
        slots: u32 = 0,
        free_slots: u32 = 0,
        max_slots: u32 = 0,
        slot_size: u64 = 0,
    }
}

structs::define! {
    /// Options of a publication.
    PublishOptions as "frameshare_publish_options" of 48 {
        pts_ns: u64 = NO_TIME,
        duration_ns: u64 = NO_TIME,
        metadata: *const c_void = ptr::null(),
        metadata_size: usize = 0,
        timeout_ns: i64 = -1,
    }
}

/// An exporter of one stream.
#[derive(Debug)]
pub struct Exporter {
    video: VideoExporter,
    gpu: Option<Arc<Context>>,
}

/// A frame that is written, and then published.
pub type NewFrame = exporter::NewFrame;

/// Returns the wait of a number of nanoseconds; a negative one is without limit.
fn wait(timeout_ns: i64) -> Wait {
    timeout(timeout_ns).map_or(Wait::Forever, Wait::For)
}

/// The configuration in the form of the engine.
///
/// # Safety
/// The arrays have their lengths, the UUID is NULL or a text, the context is NULL or a CUcontext
/// that outlives the exporter.
pub unsafe fn config_of(config: &ExporterConfig) -> Result<Config, Failure> {
    if ![MEMORY_HOST, MEMORY_CUDA].contains(&config.memory) {
        return Err(Failure::argument(format!("memory is {}: use HOST or CUDA", config.memory)));
    }
    let lossless = match config.lossless_readers {
        0 => LosslessReaders::None,
        1 => LosslessReaders::OwnUid,
        2 => LosslessReaders::All,
        other => return Err(Failure::argument(format!("lossless_readers is {other}: use an enumerator"))),
    };
    let slow = match config.slow_readers {
        0 => SlowReaders::Wait,
        1 => SlowReaders::QueueThenWait,
        2 => SlowReaders::QueueThenDisconnect,
        other => return Err(Failure::argument(format!("slow_readers is {other}: use an enumerator"))),
    };
    // SAFETY: the caller's guarantee.
    let (gpu, uids, gids) = unsafe {
        (
            cuda::context(config.memory, config.cuda_device_id, config.cuda_uuid, config.cuda_context)?,
            values(config.allowed_uids, config.allowed_uid_count, "allowed_uids")?,
            values(config.allowed_gids, config.allowed_gid_count, "allowed_gids")?,
        )
    };
    Ok(Config::default()
        .gpu(gpu)
        .max_slots(config.max_slots)
        .max_held_limit(config.max_held_limit)
        .lossless_readers(lossless)
        .slow_readers(slow)
        .reader_timeout(Duration::from_nanos(config.reader_timeout_ns))
        .socket_mode(config.socket_mode)
        .allowed_uids(uids.to_vec())
        .allowed_gids(gids.to_vec()))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_create(
    stream: *const c_char,
    format: *const Format,
    config: *const ExporterConfig,
    exporter: *mut *mut Exporter,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let (stream, format, config) = unsafe {
            store(exporter, ptr::null_mut(), "exporter")?;
            let format = structs::read(format)?.to_video()?;
            (text(stream, "stream")?, format, structs::read_or_default(config)?)
        };
        let endpoint = Endpoint::of_text(stream)?;
        // SAFETY: the header's contract.
        let config = unsafe { config_of(&config) }?;
        let gpu = config.gpu.clone();
        let new = Exporter { video: VideoExporter::bind(&endpoint, config, format, log::notice)?, gpu };
        // SAFETY: the header's contract.
        unsafe { store(exporter, Box::into_raw(Box::new(new)), "exporter") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_close(exporter: *mut Exporter) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(exporter, "exporter") }));
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_set_format(
    exporter: *mut Exporter,
    format: *const Format,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let (this, format) = unsafe { (object(exporter, "exporter")?, structs::read(format)?.to_video()?) };
        this.video.set_format(format)?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_acquire(
    exporter: *mut Exporter,
    timeout_ns: i64,
    frame: *mut *mut NewFrame,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(frame, ptr::null_mut(), "frame")?;
            object(exporter, "exporter")?
        };
        let new = Box::into_raw(Box::new(this.video.acquire(wait(timeout_ns))?));
        // SAFETY: the header's contract.
        unsafe { store(frame, new, "frame") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_new_frame_get_plane(
    frame: *const NewFrame,
    index: u32,
    plane: *mut Plane,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let frame = unsafe { object(frame, "frame") }?;
        let place = frame.plane(index as usize)?;
        let mut found = Plane::of(place);
        match frame.address() {
            Address::Host(start) => {
                // SAFETY: the plane is inside the frame, whose size the slot has at least.
                found.writable = unsafe { start.as_ptr().add(place.offset) };
                found.data = found.writable;
            }
            Address::Device(start) => found.device_pointer = start + place.offset as u64,
        }
        // SAFETY: the header's contract.
        unsafe { structs::write(plane, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_new_frame_discard(frame: *mut NewFrame) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(frame, "frame") }));
}

/// Publishes a frame, on a stream or not.
///
/// # Safety
/// As the functions of the header.
unsafe fn publish(
    exporter: *mut Exporter,
    frame: *mut NewFrame,
    stream: Option<*mut c_void>,
    options: *const PublishOptions,
    sequence: *mut u64,
) -> Result<Status, Failure> {
    // Taken first: the frame is the library's in case of a failure too.
    // SAFETY: the header's contract.
    let mut owned = unsafe { take(frame, "frame") }?;
    // Before the publication, which a failure must not follow.
    check_optional(sequence, "sequence")?;
    // SAFETY: the header's contract.
    let (this, options) = unsafe { (object(exporter, "exporter")?, structs::read_or_default(options)?) };
    // SAFETY: the header's contract.
    let metadata = unsafe { values(options.metadata.cast::<u8>(), options.metadata_size, "metadata") }?;
    let given = |time: u64| Some(time).filter(|time| *time != NO_TIME);
    (owned.pts, owned.duration) = (given(options.pts_ns), given(options.duration_ns));
    owned.metadata = metadata.to_vec();
    let wait = wait(options.timeout_ns);
    let gpu = this.gpu.as_ref().filter(|_| matches!(owned.slot().address(), Address::Device(_)));
    let published = match (gpu, stream) {
        (Some(gpu), Some(stream)) => {
            // SAFETY: the header's contract.
            let stream = unsafe { cuda::stream(stream, gpu) }?;
            this.video.publish_on(&owned, &stream, wait)
        }
        _ => this.video.publish(&owned, wait),
    };
    let number = match published {
        Err(error @ VideoExporterError::Publish(PublishError::NoRoom)) => {
            // The caller may publish it again: it is at the same address.
            let _ = Box::into_raw(owned);
            return Err(error.into());
        }
        published => published?.0,
    };
    if !sequence.is_null() {
        // SAFETY: the header's contract.
        unsafe { store(sequence, number, "sequence") }?;
    }
    Ok(Status::Ok)
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_publish(
    exporter: *mut Exporter,
    frame: *mut NewFrame,
    options: *const PublishOptions,
    sequence: *mut u64,
) -> Status {
    // SAFETY: the header's contract.
    guard(|| unsafe { publish(exporter, frame, None, options, sequence) })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_publish_on(
    exporter: *mut Exporter,
    frame: *mut NewFrame,
    stream: *mut c_void,
    options: *const PublishOptions,
    sequence: *mut u64,
) -> Status {
    // SAFETY: the header's contract.
    guard(|| unsafe { publish(exporter, frame, Some(stream), options, sequence) })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_send_event(
    exporter: *mut Exporter,
    kind: u32,
    is_sticky: CBool,
    payload: *const c_void,
    payload_size: usize,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let (this, payload) = unsafe {
            (object(exporter, "exporter")?, values(payload.cast::<u8>(), payload_size, "payload")?)
        };
        if kind < EVENT_APPLICATION {
            let text = "use FRAMESHARE_EVENT_APPLICATION or above, lower ones are framesharesink's";
            return Err(Failure::argument(format!("kind is {kind}: {text}")));
        }
        this.video.exporter().send_event(Event {
            kind,
            sticky: is_sticky != 0,
            payload: payload.to_vec(),
        })?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_end_stream(exporter: *mut Exporter) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        unsafe { object(exporter, "exporter") }?.video.exporter().end_of_stream();
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_wait_for_reader(
    exporter: *mut Exporter,
    timeout_ns: i64,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(exporter, "exporter") }?;
        Ok(match this.video.exporter().wait_for_reader(wait(timeout_ns))? {
            true => Status::Ok,
            false => Status::Timeout,
        })
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_drain(exporter: *mut Exporter, timeout_ns: i64) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(exporter, "exporter") }?;
        Ok(match this.video.exporter().drain(wait(timeout_ns))? {
            true => Status::Ok,
            false => Status::Timeout,
        })
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_interrupt(exporter: *mut Exporter, on: CBool) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(exporter, "exporter") }?;
        let interrupt = this.video.exporter().interrupt();
        if on == 0 {
            interrupt.clear()
        } else {
            interrupt.set()
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_exporter_get_stats(
    exporter: *mut Exporter,
    stats: *mut ExporterStats,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let found = unsafe { object(exporter, "exporter") }?.video.exporter().stats();
        let found = ExporterStats {
            published: found.published,
            readers_total: found.readers_total,
            readers: u32::try_from(found.readers.len()).unwrap_or(u32::MAX),
            slots: found.slots,
            free_slots: found.free_slots,
            max_slots: found.max_slots,
            slot_size: found.slot_size,
            ..structs::Struct::init()
        };
        // SAFETY: the header's contract.
        unsafe { structs::write(stats, &found) }?;
        Ok(Status::Ok)
    })
}
