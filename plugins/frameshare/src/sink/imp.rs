// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of `framesharesink`.
//!
//! # State and locks
//!
//! | state | whose | in |
//! | --- | --- | --- |
//! | the way of a frame | the streaming thread's | `input`, which the thread takes out for a buffer, an event or a query, and puts back: two locks in `prepare`, and two in `render` |
//! | properties | any thread's | `settings`, of which the streaming thread has a copy that it renews after a change |
//! | the run: exporter, memory | any thread's | `stream`; the streaming thread has its own reference in `input` |
//! | answers for any thread | atomics | `pacing`, `arrival`, and the counters of `stream` |
//!
//! Each lock is a leaf: held for a lookup, a copy or a swap, and never while anything is posted,
//! pushed, queried, emitted or waited for. `render`, `prepare` and `wait_event` run under
//! `GstBaseSink`'s preroll lock, which each of their waits releases (`ffi/base_sink.rs`), and under
//! the pad's stream lock, as caps, flush-stop and queries in order with buffers do: these find
//! `input` in its place. `unlock` is called without either, from any thread, and `unlock_stop` with
//! the preroll lock.

use super::{
    arrival::Arrival,
    input::Input,
    limit::MessageLimit,
    log::CAT,
    pacing::Pacing,
    settings::{self, Settings},
    signals, stats,
    stream::Stream,
};
use crate::{
    ffi::base_sink::{self, PacedSinkImpl},
    sync::{Exclusive, Versioned, lock},
    times::PipelineClock,
    uri,
};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::prelude::*};
use gst_cuda::context::ElementContext;
use std::sync::{Arc, LazyLock, Mutex, atomic::AtomicBool};

#[derive(Default)]
pub struct FrameshareSink {
    pub(super) settings: Versioned<Settings>,
    pub(super) clock: PipelineClock,
    pub(super) stream: Mutex<Option<Arc<Stream>>>,
    pub(super) input: Exclusive<Input>,
    pub(super) pacing: Pacing,
    pub(super) arrival: Arrival,
    pub(super) context: ElementContext,
    /// A warning about encoded media was posted since the sink was opened.
    pub(super) has_refused_encoded: AtomicBool,
    pub(super) limit: Mutex<MessageLimit>,
    /// The sink does not preroll in this run, and does in others.
    pub(super) is_async_off: AtomicBool,
}

impl FrameshareSink {
    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        lock(&self.stream).clone()
    }
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareSink {
    const NAME: &'static str = "GstFrameshareSink";
    type Type = super::FrameshareSink;
    type ParentType = gst_base::BaseSink;
    type Interfaces = (gst::URIHandler,);

    fn class_init(class: &mut Self::Class) {
        base_sink::override_vfuncs::<Self>(class);
    }
}

impl ObjectImpl for FrameshareSink {
    fn properties() -> &'static [glib::ParamSpec] {
        settings::properties()
    }

    fn signals() -> &'static [glib::subclass::Signal] {
        signals::signals()
    }

    fn constructed(&self) {
        self.parent_constructed();
        // It would hold a slot for a property that is seldom read.
        self.obj().set_enable_last_sample(false);
        if let Some(pad) = self.obj().static_pad("sink") {
            pad.add_probe(gst::PadProbeType::BUFFER, super::caps::keep_timeless);
            self.watch_caps(&pad);
        }
    }

    fn set_property(&self, _id: usize, value: &glib::Value, spec: &glib::ParamSpec) {
        if !crate::mutability::may_set(self.obj().upcast_ref(), *CAT, spec) {
            return;
        }
        let was_set = self.settings.change(|settings| {
            let was_set = settings.set(spec.name(), value);
            self.pacing.set_sync(settings.sync);
            was_set
        });
        if let ("sync", Ok(sync)) = (spec.name(), value.get()) {
            self.obj().set_sync(sync);
        }
        if let Some(stream) = self.stream() {
            stream.waiting.property_changed();
        }
        if !was_set {
            gst::error!(CAT, imp = self, "{} cannot be set to {value:?}", spec.name());
        }
    }

    fn property(&self, _id: usize, spec: &glib::ParamSpec) -> glib::Value {
        match spec.name() {
            "num-clients" => {
                let count = self.stream().map_or(0, |stream| stream.exporter.reader_count());
                u32::try_from(count).unwrap_or(u32::MAX).to_value()
            }
            "stats" => stats::stats(self.stream().as_deref(), self.is_paced()).to_value(),
            name => self.settings.read().get(name).unwrap_or_else(|| spec.default_value().clone()),
        }
    }
}

impl GstObjectImpl for FrameshareSink {}

impl ElementImpl for FrameshareSink {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Frame sharing sink",
                "Sink/Generic",
                "Shares frames with any number of other processes, which read them in place",
                env!("CARGO_PKG_AUTHORS"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            gst::PadTemplate::new(
                "sink",
                gst::PadDirection::Sink,
                gst::PadPresence::Always,
                &super::caps::template(),
            )
            .into_iter()
            .collect()
        });
        &TEMPLATES
    }

    fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
        self.clock.set(clock);
        self.parent_set_clock(clock)
    }

    fn set_context(&self, context: &gst::Context) {
        let device = self.settings.read().device();
        self.context.set_context(&*self.obj(), context, device);
        self.parent_set_context(context);
    }

    fn send_event(&self, event: gst::Event) -> bool {
        // The latency of the pipeline has changed, perhaps because upstream is another one.
        if event.type_() == gst::EventType::Latency && self.stream().is_some() {
            self.find_out_liveness();
        }
        self.parent_send_event(event)
    }

    // GstBaseSink would start in READY, where properties may still change.
    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::ReadyToPaused {
            self.check_upstream().and_then(|()| self.open()).map_err(|message| {
                self.post_error_message(message);
                gst::StateChangeError
            })?;
            self.turn_async_off();
        }
        if matches!(transition, gst::StateChange::PausedToPlaying | gst::StateChange::PlayingToPaused) {
            self.arrival.forget();
        }
        let result = self.parent_change_state(transition);
        let opened_in_vain = transition == gst::StateChange::ReadyToPaused && result.is_err();
        if opened_in_vain || transition == gst::StateChange::PausedToReady {
            self.close();
            self.restore_async();
        }
        result
    }
}

impl URIHandlerImpl for FrameshareSink {
    const URI_TYPE: gst::URIType = gst::URIType::Sink;

    fn protocols() -> &'static [&'static str] {
        uri::PROTOCOLS
    }

    fn uri(&self) -> Option<String> {
        uri::get(self.obj().upcast_ref())
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        uri::set(self.obj().upcast_ref(), uri)
    }
}

impl BaseSinkImpl for FrameshareSink {
    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        self.accepted_caps(filter)
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        self.take_caps(caps)
    }

    fn propose_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        self.propose(query)
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if query.type_() == gst::QueryType::Context && self.context.query(&*self.obj(), query) {
            return true;
        }
        if let gst::QueryViewMut::AcceptCaps(query) = query.view_mut()
            && self.refuses_encoded(query.caps())
        {
            query.set_result(false);
            return true;
        }
        if let gst::QueryView::Drain(_) = query.view() {
            self.forget_prepared();
            if let Some(stream) = self.stream() {
                stream.exporter.reclaim();
            }
        }
        BaseSinkImplExt::parent_query(self, query)
    }

    fn event(&self, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::FlushStop(flush) => {
                let prepared = self.input.edit(|input| input.flush(flush.resets_time()));
                drop(prepared);
                // After a seek back from the end.
                if let Some(stream) = self.stream() {
                    stream.exporter.go_on();
                }
            }
            // The same times are others in it: a file that is played again begins with a key unit.
            gst::EventView::Segment(_) => {
                self.input.edit(|input| input.media.end_unit());
            }
            _ => {}
        }
        self.forward(&event);
        self.parent_event(event)
    }

    fn prepare(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        match self.input.with(|input| self.prepare_frame(input, buffer)) {
            Some(prepared) => prepared,
            // `render` waits for the time of this very buffer, which is placed.
            None if self.input.is_taken() => Ok(gst::FlowSuccess::Ok),
            None => Err(gst::FlowError::Flushing),
        }
    }

    fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let rendered = self.input.with(|input| self.render_frame(input, buffer));
        rendered.unwrap_or(Err(gst::FlowError::Flushing))
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        if let Some(stream) = self.stream() {
            stream.waiting.unlock();
        }
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        if let Some(stream) = self.stream() {
            stream.waiting.unlock_stop();
        }
        Ok(())
    }
}
