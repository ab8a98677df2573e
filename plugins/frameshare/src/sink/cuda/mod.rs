// SPDX-License-Identifier: MIT OR Apache-2.0

//! The GPU of one run of the sink, and the copies made on it.
//!
//! All writes to slots are on one stream, the one that upstream is offered: upstream's own writes,
//! and copies from other memory. Stream order serializes the writes of a slot, abandoned ones
//! included. A copy is queued behind all work of the context that the frame comes from, since a
//! memory does not always name its writer's stream. The CPU waits for them only while a decoder
//! changes (`decoder.rs`).
//!
//! # Safety
//!
//! Addresses are handed to a stream that uses them later. Sources and slots are held until it has
//! ([`Exporter::drop_after`](frameshare::exporter::Exporter::drop_after)), and slots are written on
//! this stream only.
#![allow(unsafe_code)]

mod changes;
mod decoder;
mod find;
mod placing;
mod staging;
mod surfaces;

pub(super) use decoder::Decoder;
pub(super) use surfaces::{SURFACES, Surfaces};

use crate::{
    ffi::cuda::{engine_context, engine_stream, null_stream},
    rows::rows,
    sync::lock,
};
use frameshare::{
    exporter::{Exporter, Slot},
    fence::Written,
    memory::Address,
};
use frameshare_cuda::{
    Error,
    context::Context,
    copy::{Plane, Side},
    event::Event,
    stream::Stream,
};
use gst_video::VideoInfo;
use staging::Staging;
use std::sync::{Arc, Mutex};

/// The reason why a sink has no GPU.
#[derive(Clone, Debug)]
pub(super) enum NoGpu {
    /// It creates a context when caps with CUDA memory arrive.
    NotYet,
    /// For this reason, until it stops.
    Never(String),
}

/// The context and stream on which frames are written and copied.
pub(super) struct Gpu {
    pub(super) context: gst_cuda::Context,
    /// The stream that upstream is offered.
    pub(super) stream: gst_cuda::Stream,
    pub(super) engine: Arc<Context>,
    /// The same stream, for the engine.
    writes: Stream,
    /// Recorded behind the work that a copy waits for.
    arrived: Event,
    /// For a driver that cannot record a whole context: its NULL stream, which waits for all
    /// streams that GStreamer makes.
    null: Option<Stream>,
    /// Other contexts that frames came from.
    others: Mutex<Vec<Other>>,
    staging: Staging,
}

struct Other {
    context: gst_cuda::Context,
    arrived: Event,
}

/// Location of a frame's planes.
pub(super) struct Picture<'a> {
    pub(super) address: u64,
    /// Number of readable bytes.
    pub(super) size: usize,
    pub(super) offsets: &'a [usize],
    pub(super) strides: &'a [i32],
}

impl Gpu {
    /// Works in a context that the sink shares with neighboring elements.
    pub(super) fn new(context: gst_cuda::Context) -> Result<Self, String> {
        let stream = gst_cuda::Stream::new(&context).ok_or("the driver gives no stream")?;
        let open = || -> frameshare_cuda::Result<_> {
            let engine = engine_context(&context)?;
            let arrived = Event::new(&engine)?;
            let null = match arrived.record_context() {
                Err(Error::Missing { .. }) => Some(null_stream(&engine)),
                _ => None,
            };
            Ok((engine, arrived, null))
        };
        let (engine, arrived, null) = open().map_err(|error| error.to_string())?;
        let writes = engine_stream(&engine, &stream);
        let staging = Staging::new(&engine);
        Ok(Self { context, stream, engine, writes, arrived, null, others: Mutex::default(), staging })
    }

    /// The writer of frames that upstream or a copy wrote on the offered stream.
    pub(super) fn written_here(&self) -> Written<'_> {
        Written::On(&self.writes)
    }

    /// The writer of frames that were written on any stream of this context.
    pub(super) fn written_somewhere(&self) -> Written<'_> {
        self.null.as_ref().map_or(Written::Somewhere, Written::On)
    }

    /// Blocks the CPU until all slots are written.
    fn finish_writes(&self) -> frameshare_cuda::Result<()> {
        self.writes.synchronize()
    }

    /// Makes work queued from now on wait for all work so far of the context that a frame comes
    /// from.
    fn wait_for_writers(&self, from: &gst_cuda::Context) -> frameshare_cuda::Result<()> {
        if *from == self.context {
            match &self.null {
                Some(null) => self.arrived.record(null)?,
                None => self.arrived.record_context()?,
            }
            return self.writes.wait(&self.arrived);
        }
        let mut others = lock(&self.others);
        if !others.iter().any(|other| other.context == *from) {
            let engine = engine_context(from)?;
            others.push(Other { context: from.clone(), arrived: Event::new(&engine)? });
        }
        let Some(other) = others.iter().find(|other| other.context == *from) else { return Ok(()) };
        match &self.null {
            Some(_) => other.arrived.record(&null_stream(other.arrived.context()))?,
            None => other.arrived.record_context()?,
        }
        self.writes.wait(&other.arrived)
    }

    /// Copies a frame into a slot, in the layout `to`. `source` and the slot are held until that is
    /// done, even if the frame is never published: upstream may write the slot on other streams.
    /// The planes of both must have been checked: they lie inside, and have `rows` rows.
    pub(super) fn copy(
        &self,
        exporter: &Exporter,
        slot: &Slot,
        to: &VideoInfo,
        from: &Picture<'_>,
        context: &gst_cuda::Context,
        source: gst::Buffer,
    ) -> frameshare_cuda::Result<()> {
        let Address::Device(start) = slot.address() else {
            return Err(Error::Refused("a slot of the host's"));
        };
        if slot.size() < to.size() as u64 {
            return Err(Error::Refused("a slot that is too small"));
        }
        let _current = self.engine.push()?;
        self.wait_for_writers(context)?;
        let planes = from.offsets.iter().zip(from.strides).enumerate();
        for (plane, (offset, stride)) in planes.take(to.offset().len()) {
            let (rows, bytes) = rows(to, plane);
            let pitch = usize::try_from(*stride).map_err(|_| Error::Refused("a picture upside down"))?;
            let target = to.stride()[plane].unsigned_abs() as usize;
            let bytes = bytes.unwrap_or(target);
            let end = rows.saturating_sub(1).saturating_mul(pitch).saturating_add(bytes);
            if bytes > pitch.min(target) || offset.saturating_add(end) > from.size {
                return Err(Error::Refused("a plane that does not lie in its memory"));
            }
            let from = Plane { at: Side::Device(from.address + *offset as u64), pitch };
            let to = Plane { at: Side::Device(start + to.offset()[plane] as u64), pitch: target };
            // SAFETY: the source's rows lie inside its memory, which was just checked, and that is
            // held below. The slot's do since the layout is that of its size; it is written on this
            // stream only.
            unsafe { self.writes.copy_2d(to, from, bytes, rows)? };
        }
        exporter.drop_after(&self.writes, Box::new((source, slot.clone())))
    }

    /// Uploads `size` bytes of host memory, as `fill` writes them, into a slot, through pinned
    /// memory.
    pub(super) fn upload<E: From<frameshare_cuda::Error>>(
        &self,
        exporter: &Exporter,
        slot: &Slot,
        size: usize,
        fill: impl FnOnce(&mut gst::BufferRef) -> Result<(), E>,
    ) -> Result<(), E> {
        let Address::Device(start) = slot.address() else {
            return Err(Error::Refused("a slot of the host's").into());
        };
        if slot.size() < size as u64 {
            return Err(Error::Refused("a slot that is too small").into());
        }
        let block = self.staging.take(size)?;
        let from = block.as_ref().as_ptr();
        let mut source = gst::Buffer::from_mut_slice(block);
        fill(source.make_mut())?;
        // SAFETY: the block has `size` bytes or more, and is reused when the copy is done; the slot
        // has room for them, and is written on this stream only.
        unsafe { self.writes.upload(start, from, size)? };
        exporter.drop_after(&self.writes, Box::new((source, slot.clone())))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::{
        Endpoint, Wait,
        exporter::{Config, Purpose},
    };
    use std::{io::Write as _, sync::mpsc, time::Duration};

    #[test]
    fn slot_of_dropped_copy_is_held_until_the_copy_is_done() {
        gst::init().unwrap();
        if let Err(missing) = gst_cuda::load() {
            let line = format!("SKIP framesharesink/slot-of-dropped-copy: {missing}\n");
            std::io::stdout().write_all(line.as_bytes()).unwrap();
            return;
        }
        let gpu = Gpu::new(gst_cuda::Context::new(0).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let config = Config::default().gpu(Some(gpu.engine.clone()));
        let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
        const SIZE: u64 = 320 * 240;
        let fill = |_: &mut gst::BufferRef| Ok::<_, frameshare_cuda::Error>(());
        let info = VideoInfo::builder(gst_video::VideoFormat::Gray8, 320, 240).build().unwrap();
        let source = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        let Address::Device(address) = source.address() else { panic!("it is a slot of the GPU") };
        for copies in [false, true] {
            let (done, stuck) = mpsc::channel::<()>();
            gpu.writes.call(move || _ = stuck.recv_timeout(Duration::from_secs(60))).unwrap();
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            let written = slot.address();
            if copies {
                let (offsets, strides) = (info.offset(), info.stride());
                let from = Picture { address, size: SIZE as usize, offsets, strides };
                gpu.copy(&exporter, &slot, &info, &from, &gpu.context, gst::Buffer::new()).unwrap();
            } else {
                gpu.upload(&exporter, &slot, SIZE as usize, fill).unwrap();
            }
            drop(slot);
            let others: Vec<_> =
                (0..3).map(|_| exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()).collect();
            assert!(others.iter().all(|other| other.address() != written), "copies: {copies}");
            drop((others, done));
            gpu.writes.synchronize().unwrap();
            exporter.reclaim();
            let free = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            assert_eq!(free.address(), written, "copies: {copies}");
        }
    }
}
