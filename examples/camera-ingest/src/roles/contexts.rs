// SPDX-License-Identifier: MIT OR Apache-2.0

//! Contexts of devices, such as that of CUDA, which all pipelines of the process share.
//!
//! A context of CUDA costs some hundred MB of GPU memory, and one decoder cannot write to memory
//! that was allocated for another one's context.

use gst::{MessageView, prelude::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first context of each type.
static SHARED: Mutex<Vec<gst::Context>> = Mutex::new(Vec::new());

/// Held while an element opens its device: of several that start at once, the first one makes the
/// context.
static OPENING: Mutex<()> = Mutex::new(());

/// Gives the elements of a pipeline the contexts that there are, and keeps those that they make.
pub fn share(pipeline: &gst::Pipeline) {
    let known = shared().clone();
    for context in known {
        pipeline.set_context(&context);
    }
    let Some(bus) = pipeline.bus() else { return };
    bus.set_sync_handler(|_, message| {
        match message.view() {
            MessageView::HaveContext(have) => keep(have.context()),
            MessageView::NeedContext(need) => offer(need),
            _ => {}
        }
        gst::BusSyncReply::Pass
    });
}

/// Sets an element of a shared pipeline to READY, where it opens its device.
pub fn open(element: &gst::Element) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    element.set_state(gst::State::Ready)
}

fn shared() -> MutexGuard<'static, Vec<gst::Context>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(context: gst::Context) {
    let mut shared = shared();
    if !shared.iter().any(|other| other.context_type() == context.context_type()) {
        shared.push(context);
    }
}

fn offer(need: &gst::message::NeedContext) {
    let context = shared().iter().find(|context| context.context_type() == need.context_type()).cloned();
    let element = need.src().and_then(|source| source.downcast_ref::<gst::Element>());
    if let (Some(context), Some(element)) = (context, element) {
        element.set_context(&context);
    }
}
