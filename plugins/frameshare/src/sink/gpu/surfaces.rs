//! A decoder's own surfaces, shared where they lie.
//!
//! A surface is exported once, and its buffer held until all leases on it have ended. What must not happen is that the
//! decoder frees its surfaces while readers have them open. An output keeps its decoder alive, so one buffer, the *pin*,
//! is kept of each decoder: of each *span* between two questions about caps or allocation, since only behind those may a
//! decoder make place for another. When a span ends, readers close what they have opened of it; then the pin goes.
//!
//! A decoder that has none of its surfaces left stops. So no more than one less than the sink has proposed are held, pins
//! included; what comes beyond is copied.

use super::super::copies::Reason;
use frameshare::exporter::{Exporter, Slot};
use gst_cuda::memory::Memory;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering},
};

/// How many surfaces the sink asks for, where it shares them in place.
pub(in crate::sink) const SURFACES: u32 = 8;

/// The surfaces that the sink holds.
#[derive(Default)]
pub(in crate::sink) struct Surfaces {
    held: Arc<AtomicU32>,
    span: Mutex<Span>,
}

/// What is between two questions about caps or allocation.
#[derive(Default)]
struct Span {
    pin: Option<Arc<Held>>,
    /// Why nothing of this span can be shared in place.
    refused: Option<Reason>,
}

/// A buffer of a decoder's, counted as long as it is held.
pub(in crate::sink) struct Held {
    _buffer: gst::Buffer,
    count: Arc<AtomicU32>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Surfaces {
    fn span(&self) -> MutexGuard<'_, Span> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and holds a buffer.
    pub(in crate::sink) fn hold(&self, buffer: &gst::Buffer) -> Held {
        self.held.fetch_add(1, Ordering::Relaxed);
        Held { _buffer: buffer.clone(), count: self.held.clone() }
    }

    /// How many buffers are held.
    pub(in crate::sink) fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// What was shared so far is given back when readers have closed it.
    pub(in crate::sink) fn end_span(&self, exporter: &Exporter) {
        let span = std::mem::take(&mut *self.span());
        if span.pin.is_some() {
            exporter.retire_adopted();
        }
        drop(span);
    }

    /// The slot of a surface, and how far behind its start the picture lies; or why it cannot be shared in place.
    pub(in crate::sink) fn share(
        &self,
        exporter: &Exporter,
        context: &gst_cuda::Context,
        buffer: &gst::Buffer,
        memory: Memory<'_>,
    ) -> Result<(Slot, u64), Reason> {
        let (pin, refused) = {
            let span = self.span();
            (span.pin.clone(), span.refused)
        };
        if let Some(reason) = refused {
            return Err(reason);
        }
        // Memory that is nobody's for long would be pinned one by one, and its owner never get any back.
        if !memory.is_from_fixed_pool() {
            return Err(Reason::ForeignMemory);
        }
        if memory.context() != *context {
            return Err(Reason::OtherContext);
        }
        exporter.can_adopt().map_err(|_| Reason::ReaderCannot)?;
        let more = if pin.is_some() { 1 } else { 2 };
        if self.held() + more > SURFACES - 1 {
            return Err(Reason::TooManyHeld);
        }
        let address = memory.map().ok_or(Reason::ForeignMemory)?.address();
        let pin = pin.unwrap_or_else(|| Arc::new(self.hold(buffer)));
        match exporter.adopt(address, Box::new(pin.clone())) {
            Ok(shared) => {
                self.span().pin.get_or_insert(pin);
                Ok(shared)
            }
            Err(error) => {
                gst::debug!(super::super::imp::CAT, "a surface cannot be shared in place: {error}");
                self.span().refused = Some(Reason::NotShareable);
                Err(Reason::NotShareable)
            }
        }
    }
}
