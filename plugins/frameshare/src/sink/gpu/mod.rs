//! The GPU that frames lie on, during one run of the sink, and the copies that it makes there.
//!
//! Everything that is written to slots is written on one stream, the one that upstream is offered: by upstream itself,
//! and by the copies of what comes in other memory. So no write of a slot overtakes an earlier one, whoever lost interest
//! in that. A copy is put there behind all work of the context that the frame comes from, since who wrote it, and on which
//! stream, its memory does not always say. No CPU waits.
//!
//! # Safety
//!
//! Addresses are handed to a stream that gets there later. Sources and slots are held until it has
//! ([`Exporter::drop_after`](frameshare::exporter::Exporter::drop_after)), slots are written on this stream alone.
#![allow(unsafe_code)]

mod find;
mod place;
mod staging;
mod surfaces;

pub(super) use find::NoGpu;
pub(super) use surfaces::{SURFACES, Surfaces};

use crate::{
    gpu::{engine_context, engine_stream, null_stream},
    rows::rows,
};
use frameshare::{
    cuda::{
        self, Error,
        context::Context,
        copy::{Place, Plane},
        event::Event,
        stream::Stream,
    },
    exporter::{Exporter, Slot},
    fence::Written,
    memory::Address,
};
use gst_video::VideoInfo;
use staging::Staging;
use std::sync::{Arc, Mutex, PoisonError};

/// What frames are written and copied with.
pub(super) struct Gpu {
    pub(super) context: gst_cuda::Context,
    /// The stream that upstream is offered.
    pub(super) stream: gst_cuda::Stream,
    pub(super) engine: Arc<Context>,
    /// The same stream.
    writes: Stream,
    /// Stands for the work that a copy waits for.
    arrived: Event,
    /// Where the driver cannot record a whole context: its NULL stream, which waits for all that GStreamer makes.
    null: Option<Stream>,
    /// Other contexts that frames came from.
    others: Mutex<Vec<Other>>,
    staging: Staging,
}

struct Other {
    context: gst_cuda::Context,
    arrived: Event,
}

/// Where a picture lies.
pub(super) struct Picture<'a> {
    pub(super) address: u64,
    /// Bytes that may be read there.
    pub(super) size: usize,
    pub(super) offsets: &'a [usize],
    pub(super) strides: &'a [i32],
}

impl Gpu {
    /// Works in a context that the sink shares with its neighbours.
    pub(super) fn new(context: gst_cuda::Context) -> Result<Self, String> {
        let stream = gst_cuda::Stream::new(&context).ok_or("the driver gives no stream")?;
        let open = || -> cuda::Result<_> {
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

    /// Says that frames were written on the stream that upstream is offered, by upstream or by copies.
    pub(super) fn written_here(&self) -> Written<'_> {
        Written::On(&self.writes)
    }

    /// Says that frames were written by somebody in this context.
    pub(super) fn written_somewhere(&self) -> Written<'_> {
        self.null.as_ref().map_or(Written::Somewhere, Written::On)
    }

    /// Has what is put on the stream from now on wait for all work so far of the context that a frame comes from.
    fn wait_for_writers(&self, from: &gst_cuda::Context) -> cuda::Result<()> {
        if *from == self.context {
            match &self.null {
                Some(null) => self.arrived.record(null)?,
                None => self.arrived.record_context()?,
            }
            return self.writes.wait(&self.arrived);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Copies a picture into a slot, where it is to lie as `to` says. `source` and the slot are held until that is done,
    /// also if the frame is never published: upstream may write the slot on other streams. The planes of both must have been looked at: they lie inside, and are `rows` long.
    pub(super) fn copy(
        &self,
        exporter: &Exporter,
        slot: &Slot,
        to: &VideoInfo,
        from: &Picture<'_>,
        context: &gst_cuda::Context,
        source: gst::Buffer,
    ) -> cuda::Result<()> {
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
            let from = Plane { at: Place::Device(from.address + *offset as u64), pitch };
            let to = Plane { at: Place::Device(start + to.offset()[plane] as u64), pitch: target };
            // SAFETY: the source's rows lie inside its memory, which was just checked, and that is held below. The
            // slot's do since the layout is that of its size; it is written on this stream alone.
            unsafe { self.writes.copy_2d(to, from, bytes, rows)? };
        }
        exporter.drop_after(&self.writes, Box::new((source, slot.clone())))
    }

    /// Copies `size` bytes of host memory, as `fill` writes them, into a slot: through memory that the GPU reads without
    /// the CPU's help.
    pub(super) fn upload<E: From<cuda::Error>>(
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
        let from = block.as_ptr();
        let mut source = gst::Buffer::from_mut_slice(block);
        fill(source.make_mut())?;
        // SAFETY: the block has `size` bytes or more, and goes back to be written again when the copy is done; the slot
        // has room for them, and is written on this stream alone.
        unsafe { self.writes.upload(start, from, size)? };
        exporter.drop_after(&self.writes, Box::new((source, slot.clone())))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::{
        Endpoint,
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
        let config = Config { gpu: Some(gpu.engine.clone()), ..Config::default() };
        let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
        const SIZE: u64 = 320 * 240;
        let fill = |_: &mut gst::BufferRef| Ok::<_, cuda::Error>(());
        let info = VideoInfo::builder(gst_video::VideoFormat::Gray8, 320, 240).build().unwrap();
        let source = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        let Address::Device(address) = source.address() else { panic!("it is a slot of the GPU") };
        for copies in [false, true] {
            let (done, stuck) = mpsc::channel::<()>();
            gpu.writes.call(move || _ = stuck.recv_timeout(Duration::from_secs(60))).unwrap();
            let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
            let written = slot.address();
            if copies {
                let (offsets, strides) = (info.offset(), info.stride());
                let from = Picture { address, size: SIZE as usize, offsets, strides };
                gpu.copy(&exporter, &slot, &info, &from, &gpu.context, gst::Buffer::new()).unwrap();
            } else {
                gpu.upload(&exporter, &slot, SIZE as usize, fill).unwrap();
            }
            drop(slot);
            let others: Vec<_> = (0..3).map(|_| exporter.acquire(SIZE, Purpose::Copy).unwrap()).collect();
            assert!(others.iter().all(|other| other.address() != written), "copies: {copies}");
            drop((others, done));
            gpu.writes.synchronize().unwrap();
            exporter.reclaim();
            let free = exporter.acquire(SIZE, Purpose::Copy).unwrap();
            assert_eq!(free.address(), written, "copies: {copies}");
        }
    }
}
