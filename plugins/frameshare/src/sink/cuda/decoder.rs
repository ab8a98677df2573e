// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decoder in front of the sink, while its video changes.
//!
//! When the size of the video changes, `nvh264dec` and its siblings set the same decoder up anew,
//! which clears its surfaces: also those that it has handed out, and those that its own copies
//! still read (`gst_nv_dec_object_reconfigure`, cuvidReconfigureDecoder; GStreamer 1.26, driver
//! 580). The sink gets the new caps only afterwards. So it listens to what goes into the decoder.
//! When caps come there, it takes back the surfaces that readers hold. From then on, until the
//! first buffer behind these caps was decoded, each frame is in a slot before the decoder goes on.
//!
//! This works if no other thread, that of a queue for example, is between the decoder and the sink.

use crate::sync::lock;
use gst::prelude::*;
use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

/// Number of elements between the decoder and the sink, at most.
const MAX_ELEMENTS: usize = 16;

/// Listens to what goes into the decoder.
#[derive(Default)]
pub(in crate::sink) struct Decoder {
    /// Number of buffers, the next one included, that have to come before the present change is
    /// over.
    left: Arc<AtomicU8>,
    probe: Mutex<Option<Probe>>,
}

struct Probe {
    pad: glib::WeakRef<gst::Pad>,
    id: Option<gst::PadProbeId>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let (Some(pad), Some(id)) = (self.pad.upgrade(), self.id.take()) {
            pad.remove_probe(id);
        }
    }
}

impl Decoder {
    /// Returns whether the decoder may be about to clear its surfaces.
    pub(in crate::sink) fn is_changing(&self) -> bool {
        self.left.load(Relaxed) > 0
    }

    /// Listens to what goes into the decoder in front of this pad of the sink, if there is one, and
    /// calls `begin` when a change begins.
    pub(in crate::sink) fn listen(&self, sink: &gst::Pad, begin: impl Fn() + Send + Sync + 'static) {
        let found = input_of_decoder(sink);
        let present = lock(&self.probe).as_ref().and_then(|probe| probe.pad.upgrade());
        if present == found {
            return;
        }
        self.left.store(0, Relaxed);
        let probe = found.map(|pad| {
            let left = self.left.clone();
            let listened = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
            let id = pad.add_probe(listened, move |_, info| {
                match &info.data {
                    Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Caps => {
                        // The buffer behind the caps is decoded before the one after it comes.
                        left.store(2, Relaxed);
                        begin();
                    }
                    Some(gst::PadProbeData::Buffer(_)) => {
                        left.store(left.load(Relaxed).saturating_sub(1), Relaxed);
                    }
                    _ => {}
                }
                gst::PadProbeReturn::Ok
            });
            Probe { pad: pad.downgrade(), id }
        });
        let last = mem::replace(&mut *lock(&self.probe), probe);
        drop(last);
    }
}

/// The input of the decoder that sends a pad its frames on the same thread.
fn input_of_decoder(sink: &gst::Pad) -> Option<gst::Pad> {
    let mut pad = sink.clone();
    for _ in 0..MAX_ELEMENTS {
        let element = element_before(&pad)?;
        let [input] = &element.sink_pads()[..] else { return None };
        if element.is::<gst_video::VideoDecoder>() {
            return Some(input.clone());
        }
        pad = input.clone();
    }
    None
}

/// The element that sends to a pad, across the borders of bins.
fn element_before(pad: &gst::Pad) -> Option<gst::Element> {
    let mut peer = pad.peer()?;
    for _ in 0..MAX_ELEMENTS {
        if let Some(ghost) = peer.downcast_ref::<gst::GhostPad>() {
            peer = ghost.target()?;
        } else if let Some(element) = peer.parent_element() {
            return Some(element);
        } else {
            // The inner side of a ghost pad.
            let outer = peer.downcast_ref::<gst::ProxyPad>()?.internal()?;
            peer = outer.upcast::<gst::Pad>().peer()?;
        }
    }
    None
}
