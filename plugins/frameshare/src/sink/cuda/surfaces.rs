// SPDX-License-Identifier: MIT OR Apache-2.0

//! A decoder's own surfaces, shared in place.
//!
//! A surface is exported once, and its buffer is held until all leases on it have ended. The
//! decoder must not free its surfaces while readers have them open. An output buffer keeps its
//! decoder alive, so one buffer, the *pin*, is kept of each decoder: of each *span* between two
//! caps or allocation queries, since a decoder can be replaced only after one of these. When a span
//! ends, readers drop their imports of it; then the pin is dropped.
//!
//! A decoder without a free surface stops. The sink therefore holds at most one less than it has
//! proposed, pins included, and copies further frames.

use super::super::copy_stats::CopyReason;
use crate::sync::lock;
use frameshare::exporter::{Exporter, Slot};
use gst_cuda::memory::Memory;
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};

/// Number of surfaces that the sink asks for when it shares them in place.
pub(in crate::sink) const SURFACES: u32 = 8;

/// The surfaces that the sink holds.
#[derive(Default)]
pub(in crate::sink) struct Surfaces {
    /// Those with frames that were published.
    published: Arc<AtomicU32>,
    pins: Arc<AtomicU32>,
    span: Mutex<Span>,
}

/// The time between two caps or allocation queries.
#[derive(Default)]
struct Span {
    pin: Option<Arc<Held>>,
    /// The reason why no surface of this span can be shared in place.
    refused: Option<CopyReason>,
}

/// A decoder's buffer, counted while it is held.
pub(in crate::sink) struct Held {
    _buffer: gst::Buffer,
    count: Arc<AtomicU32>,
}

impl Held {
    fn new(buffer: &gst::Buffer, count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { _buffer: buffer.clone(), count: count.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Surfaces {
    fn span(&self) -> MutexGuard<'_, Span> {
        lock(&self.span)
    }

    /// Counts and holds the buffer of a frame that is published.
    pub(in crate::sink) fn hold(&self, buffer: &gst::Buffer) -> Held {
        Held::new(buffer, &self.published)
    }

    /// Number of held buffers.
    pub(in crate::sink) fn held(&self) -> u32 {
        self.published.load(Ordering::Relaxed) + self.pins.load(Ordering::Relaxed)
    }

    /// Returns whether at least so many buffers are held. Readers may have released some since the
    /// last publication.
    pub(in crate::sink) fn are_held(&self, exporter: &Exporter, count: u32) -> bool {
        is_still(exporter, || self.held() >= count)
    }

    /// Returns whether readers have not released all surfaces.
    pub(in crate::sink) fn are_read(&self, exporter: &Exporter) -> bool {
        is_still(exporter, || self.published.load(Ordering::Relaxed) > 0)
    }

    /// Retires the surfaces shared so far.
    pub(in crate::sink) fn end_span(&self, exporter: &Exporter) {
        let span = std::mem::take(&mut *self.span());
        if span.pin.is_some() {
            exporter.retire_adopted();
        }
        drop(span);
    }

    /// Returns the slot of a surface, and the offset of the frame from its start; or the reason why
    /// it cannot be shared in place.
    pub(in crate::sink) fn share(
        &self,
        exporter: &Exporter,
        context: &gst_cuda::Context,
        buffer: &gst::Buffer,
        memory: Memory<'_>,
    ) -> Result<(Slot, u64), CopyReason> {
        let (pin, refused) = {
            let span = self.span();
            (span.pin.clone(), span.refused)
        };
        if let Some(reason) = refused {
            return Err(reason);
        }
        // Memory that is freed soon would be pinned piece by piece, and never returned to its
        // owner.
        if !memory.is_from_fixed_pool() {
            return Err(CopyReason::ForeignMemory);
        }
        if memory.context() != *context {
            return Err(CopyReason::OtherContext);
        }
        exporter.can_adopt().map_err(|_| CopyReason::ReaderCannot)?;
        let more = if pin.is_some() { 1 } else { 2 };
        if self.are_held(exporter, SURFACES - more) {
            return Err(CopyReason::TooManyHeld);
        }
        let address = memory.map().ok_or(CopyReason::ForeignMemory)?.address();
        let pin = pin.unwrap_or_else(|| Arc::new(Held::new(buffer, &self.pins)));
        match exporter.adopt(address, Box::new(pin.clone())) {
            Ok(shared) => {
                self.span().pin.get_or_insert(pin);
                Ok(shared)
            }
            Err(error) => {
                gst::debug!(super::super::log::CAT, "a surface cannot be shared in place: {error}");
                self.span().refused = Some(CopyReason::NotShareable);
                Err(CopyReason::NotShareable)
            }
        }
    }
}

/// Returns whether a condition holds, also after what readers have released was taken back.
fn is_still(exporter: &Exporter, holds: impl Fn() -> bool) -> bool {
    holds() && {
        exporter.reclaim();
        holds()
    }
}
