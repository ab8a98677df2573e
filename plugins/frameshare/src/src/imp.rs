// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of `framesharesrc`.
//!
//! # State and locks
//!
//! | state | whose | in |
//! | --- | --- | --- |
//! | the way of a frame | the streaming thread's | `running`, which `create` takes out and puts back: two locks a frame, and a third in the probe that sees the frame pushed |
//! | properties | any thread's | `settings`; a run has the copy of its start or of its last switch |
//! | caps, downstream's answers | any thread's | `negotiated`, of which the streaming thread has a copy that it renews after a change |
//! | interrupts | any thread's | `interrupt` and `pause`; a frame takes their locks after a pause or a request only |
//! | requests for key units | any thread's | `key_unit_requests` |
//! | answers for any thread | atomics | `figures`, `played` |
//!
//! Each lock is a leaf: held for a copy or a swap, never while another lock is taken, and never
//! during a post, a push, a query or a wait.

use super::{
    latency,
    log::CAT,
    opening_state::Opened,
    pause::Pause,
    running::{Negotiated, Running},
    settings::{self, Settings},
    signals,
    stats::Figures,
    unpushed,
};
use crate::{
    pipeline, program,
    sync::{Exclusive, Versioned, lock},
    times::{self, PipelineClock},
    uri,
};
use frameshare::{Interrupt, reader::KeyUnitRequests};
use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{
    prelude::*,
    subclass::{base_src::CreateSuccess, prelude::*},
};
use gst_cuda::context::ElementContext;
use std::sync::{
    Arc, LazyLock, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// See the [module](self).
#[derive(Default)]
pub struct FrameshareSrc {
    pub(super) settings: Mutex<Settings>,
    pub(super) clock: PipelineClock,
    /// Interrupts the waits of `running`; set from `start` to `stop`.
    pub(super) interrupt: Mutex<Option<Interrupt>>,
    pub(super) negotiated: Versioned<Negotiated>,
    pub(super) running: Arc<Exclusive<Running>>,
    /// Sends requests of downstream over the present connection.
    pub(super) key_unit_requests: Mutex<KeyUnitRequests>,
    pub(super) opened: Opened,
    /// The pipeline's shared CUDA context, once it is needed.
    pub(super) cuda: ElementContext,
    pub(super) pause: Pause,
    /// Time of the last change to PLAYING, in ns of `CLOCK_MONOTONIC`.
    pub(super) played: AtomicU64,
    pub(super) figures: Figures,
    /// Negative control of the copy rule: lets downstream hold all frames.
    #[cfg(test)]
    pub(super) holds_everything: std::sync::atomic::AtomicBool,
    /// Negative control: releases frames before all their readers are done.
    #[cfg(test)]
    pub(super) releases_in_order: std::sync::atomic::AtomicBool,
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareSrc {
    const NAME: &'static str = "GstFrameshareSrc";
    type Type = super::FrameshareSrc;
    type ParentType = gst_base::PushSrc;
    type Interfaces = (gst::URIHandler,);
}

impl ObjectImpl for FrameshareSrc {
    fn properties() -> &'static [glib::ParamSpec] {
        settings::properties()
    }

    fn signals() -> &'static [glib::subclass::Signal] {
        signals::signals()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, property: &glib::ParamSpec) {
        if !crate::mutability::may_set(self.obj().upcast_ref(), *CAT, property) {
            return;
        }
        let name = property.name();
        let names_another_stream = {
            let mut settings = lock(&self.settings);
            let before = settings.endpoint();
            settings.set(name, value);
            matches!(name, "stream" | "socket-path") && settings.endpoint() != before
        };
        if names_another_stream {
            self.request_switch();
        }
        if name == "is-live" {
            let is_live = lock(&self.settings).is_live;
            self.obj().set_live(is_live);
        }
        if name == "latency" {
            self.post_latency();
        }
    }

    fn property(&self, _id: usize, property: &glib::ParamSpec) -> glib::Value {
        let settings = lock(&self.settings).clone();
        settings.get(property.name()).unwrap_or_else(|| {
            let policy = frameshare::Policy::from(settings.policy).to_string();
            self.figures.structure(&policy).to_value()
        })
    }

    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.set_live(true);
        element.set_format(gst::Format::Time);
        element.set_do_timestamp(false);
        // The exporter's segment may end before its stream.
        element.set_automatic_eos(false);
        self.watch_own_events();
        let running = self.running.clone();
        unpushed::watch(element.upcast_ref(), move || {
            running.edit(|running| running.unpushed.take()).flatten()
        });
    }
}

impl GstObjectImpl for FrameshareSrc {}

impl ElementImpl for FrameshareSrc {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Shared frame source",
                "Source/Generic",
                "Reads frames shared by a framesharesink in another process, without copying them",
                env!("CARGO_PKG_AUTHORS"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let any = gst::Caps::new_any();
            gst::PadTemplate::new("src", gst::PadDirection::Src, gst::PadPresence::Always, &any)
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
        let device = lock(&self.settings).device();
        self.cuda.set_context(&*self.obj(), context, device);
        self.parent_set_context(context);
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::PausedToPlaying {
            self.played.store(frameshare::monotonic_ns(), Relaxed);
        }
        if transition == gst::StateChange::PlayingToPaused {
            self.pause.change(|| self.parent_change_state(transition))
        } else {
            self.parent_change_state(transition)
        }
    }
}

impl URIHandlerImpl for FrameshareSrc {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

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

impl BaseSrcImpl for FrameshareSrc {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let interrupt = Interrupt::new().map_err(|error| {
            gst::error_msg!(
                gst::ResourceError::Failed,
                ("Cannot create the interrupt file descriptor: {error}")
            )
        })?;
        self.pause.reset();
        *lock(&self.interrupt) = Some(interrupt.clone());
        // From here on a change of the stream is a request to switch.
        let settings = lock(&self.settings).clone();
        let endpoint = settings.endpoint().map_err(|text| {
            gst::error_msg!(gst::ResourceError::Settings, ("Cannot read a stream: {text}"))
        })?;
        self.figures.reset();
        self.opened.reset();
        self.forget_negotiated();
        self.running.set(Running::new(interrupt, endpoint, settings));
        self.hold_back_allocation_queries();
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // Take the state out first: the close message is sent with no lock held. Frames held
        // downstream stay valid.
        let running = self.running.clear();
        let had_gpu = running.as_ref().is_some_and(|running| running.cuda.is_some());
        drop(running);
        *lock(&self.interrupt) = None;
        *lock(&self.key_unit_requests) = KeyUnitRequests::default();
        self.forget_negotiated();
        self.cuda.clear();
        if had_gpu {
            crate::cuda::settle();
        }
        Ok(())
    }

    fn is_seekable(&self) -> bool {
        false
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        let interrupt = lock(&self.interrupt).clone();
        if let Some(interrupt) = interrupt {
            self.pause.unlock(&interrupt);
        }
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        if let Some(interrupt) = &*lock(&self.interrupt) {
            self.pause.unlock_stop(interrupt);
        }
        Ok(())
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Latency(query) = query.view_mut() {
            let settings = lock(&self.settings).clone();
            if !settings.is_live {
                query.set(false, gst::ClockTime::ZERO, gst::ClockTime::NONE);
                return true;
            }
            let frame = self.negotiated.read().frame_duration;
            let credit = self.figures.credit.load(Relaxed);
            let exporters = gst::ClockTime::from_nseconds(self.figures.latency.load(Relaxed));
            let longest = latency::longest(&settings, credit, frame);
            let with_exporters = |latency| times::sum(latency, exporters);
            query.set(true, with_exporters(settings.latency), longest.map(with_exporters));
            return true;
        }
        if query.type_() == gst::QueryType::Context && self.cuda.query(&*self.obj(), query) {
            return true;
        }
        BaseSrcImplExt::parent_query(self, query)
    }

    fn event(&self, event: &gst::Event) -> bool {
        if gst_video::UpstreamForceKeyUnitEvent::parse(event).is_ok() {
            let requests = lock(&self.key_unit_requests).clone();
            requests.send();
            return true;
        }
        self.parent_event(event)
    }

    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let caps = self.negotiated.read().caps.clone();
        let caps = caps.unwrap_or_else(|| self.obj().src_pad().pad_template_caps());
        Some(match filter {
            Some(filter) => filter.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
            None => caps,
        })
    }

    fn negotiate(&self) -> Result<(), gst::LoggableError> {
        self.offer_caps()
    }

    fn decide_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        self.note_downstream(query)
    }
}

impl PushSrcImpl for FrameshareSrc {
    fn create(&self, _buffer: Option<&mut gst::BufferRef>) -> Result<CreateSuccess, gst::FlowError> {
        let created = self.running.with(|running| self.create_buffer(running));
        created.unwrap_or(Err(gst::FlowError::Flushing)).map(CreateSuccess::NewBuffer)
    }
}

impl FrameshareSrc {
    /// Returns whether the caps of the stream are known.
    pub(super) fn has_caps(&self, running: &mut Running) -> bool {
        running.negotiated.refresh(&self.negotiated).caps.is_some()
    }

    fn forget_negotiated(&self) {
        let last = self.negotiated.change(std::mem::take);
        drop(last);
    }

    #[cfg(test)]
    pub(super) fn context(&self) -> Option<gst_cuda::Context> {
        self.cuda.get()
    }

    /// Returns the stream that the properties name.
    pub(super) fn endpoint(&self) -> Option<frameshare::Endpoint> {
        lock(&self.settings).endpoint().ok()
    }

    /// Returns the name of the reader for the exporter: program, pipeline and element.
    pub(super) fn reader_name(&self) -> String {
        let element = self.obj().clone().upcast::<gst::Object>();
        let top = pipeline::top(&element);
        let name = element.name();
        let path = if top == element { name.to_string() } else { format!("{}/{name}", top.name()) };
        format!("{} {path}", program::name())
    }

    /// Returns the exporter's process ID.
    pub(super) fn exporter(&self) -> u32 {
        self.figures.exporter.load(Relaxed)
    }
}
