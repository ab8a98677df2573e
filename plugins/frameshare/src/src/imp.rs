// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of `framesharesrc`.
//!
//! # Locks
//!
//! `settings`, `interrupt`, `negotiated` and `running` are leaf locks: each is held for a copy or a
//! swap, never while another lock is taken, and never during a post, a push, a query or a wait.
//! `create` takes the streaming state out of `running` and puts it back.

use super::{
    copies::Copies,
    cuda::{self, Cuda, Takes},
    errors,
    frames::{self, Context, Downstream, FrameError, Shape, Way},
    opening::{Opened, Opening},
    pause::Pause,
    settings::{self, Settings},
    stats::Figures,
    timing::RunningTime,
};
use crate::{
    meta::{self, budget::Budget},
    time::PipelineClock,
};
use frameshare::{
    Endpoint, Format, Interrupt,
    memory::Address,
    reader::{self, ConnectError, Frame, Item, ReadError, Reader},
};
use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{
    prelude::*,
    subclass::{base_src::CreateSuccess, prelude::*},
};
use gst_cuda::context::ElementContext;
use std::sync::{
    LazyLock, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "framesharesrc",
        gst::DebugColorFlags::empty(),
        Some("Reader of frames shared between processes"),
    )
});

/// See the [module](self).
#[derive(Default)]
pub struct FrameshareSrc {
    settings: Mutex<Settings>,
    clock: PipelineClock,
    /// Interrupts the waits of `running`; set from `start` to `stop`.
    interrupt: Mutex<Option<Interrupt>>,
    negotiated: Mutex<Negotiated>,
    running: Mutex<Option<Running>>,
    pub(super) opened: Opened,
    /// The pipeline's shared CUDA context, once it is needed.
    cuda: ElementContext,
    pause: Pause,
    figures: Figures,
    /// Negative control of the copy rule: lets downstream hold all frames.
    #[cfg(test)]
    pub(super) holds_everything: std::sync::atomic::AtomicBool,
    /// Negative control: releases frames before all their readers are done.
    #[cfg(test)]
    pub(super) releases_in_order: std::sync::atomic::AtomicBool,
}

/// Negotiated format and the downstream element's allocation answer.
#[derive(Default)]
struct Negotiated {
    caps: Option<gst::Caps>,
    /// Duration of one frame, if the caps name a rate.
    frame_duration: Option<gst::ClockTime>,
    downstream: Downstream,
    /// The CUDA stream that downstream proposes.
    cuda_stream: Option<gst_cuda::Stream>,
}

/// State from `start` to `stop`, owned by the streaming thread.
pub(super) struct Running {
    pub(super) endpoint: Endpoint,
    settings: Settings,
    reader: Option<Reader>,
    shape: Option<Shape>,
    copies: Copies,
    /// CUDA context and stream for frames in GPU memory.
    cuda: Option<Cuda>,
    /// The next buffer starts a discontinuity.
    is_seam: bool,
    has_ended: bool,
    pub(super) opening: Opening,
    /// Limit for the memory of the exporter's metadata.
    pub(super) budget: Budget,
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareSrc {
    const NAME: &'static str = "GstFrameshareSrc";
    type Type = super::FrameshareSrc;
    type ParentType = gst_base::PushSrc;
}

impl ObjectImpl for FrameshareSrc {
    fn properties() -> &'static [glib::ParamSpec] {
        settings::properties()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, property: &glib::ParamSpec) {
        if !crate::mutability::may_set(self.obj().upcast_ref(), *CAT, property) {
            return;
        }
        let name = property.name();
        lock(&self.settings).set(name, value);
        if name == settings::LATENCY {
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
        self.watch_own_events();
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
        if transition == gst::StateChange::PlayingToPaused {
            self.pause.change(|| self.parent_change_state(transition))
        } else {
            self.parent_change_state(transition)
        }
    }
}

impl BaseSrcImpl for FrameshareSrc {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let endpoint = settings.endpoint().map_err(|text| {
            gst::error_msg!(gst::ResourceError::Settings, ("Cannot read a stream: {text}"))
        })?;
        let interrupt = Interrupt::new().map_err(|error| {
            gst::error_msg!(
                gst::ResourceError::Failed,
                ("Cannot create the interrupt file descriptor: {error}")
            )
        })?;
        self.figures.reset();
        self.opened.reset();
        *lock(&self.negotiated) = Negotiated::default();
        *lock(&self.interrupt) = Some(interrupt);
        let budget = Budget::new(settings.max_metadata_bytes);
        *lock(&self.running) = Some(Running {
            endpoint,
            settings,
            reader: None,
            shape: None,
            copies: Copies::default(),
            cuda: None,
            is_seam: false,
            has_ended: false,
            opening: Opening::default(),
            budget,
        });
        self.hold_back_allocation_queries();
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // Take the state out first: the close message is sent with no lock held. Frames held
        // downstream stay valid.
        let running = lock(&self.running).take();
        let had_gpu = running.as_ref().is_some_and(|running| running.cuda.is_some());
        drop(running);
        *lock(&self.interrupt) = None;
        *lock(&self.negotiated) = Negotiated::default();
        self.cuda.clear();
        if had_gpu {
            crate::gpu::settle();
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
            interrupt.clear();
        }
        Ok(())
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Latency(query) = query.view_mut() {
            let (latency, frame) = (lock(&self.settings).latency, lock(&self.negotiated).frame_duration);
            // Up to credit - 1 frames may queue for downstream.
            let waiting = u64::from(self.figures.credit.load(Relaxed).saturating_sub(1));
            let longest = frame.filter(|_| waiting > 0).and_then(|frame| frame.checked_mul(waiting));
            let longest = longest.map(|longest| longest.max(latency));
            query.set(true, latency, longest);
            return true;
        }
        if query.type_() == gst::QueryType::Context && self.cuda.query(&*self.obj(), query) {
            return true;
        }
        BaseSrcImplExt::parent_query(self, query)
    }

    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let caps = lock(&self.negotiated).caps.clone();
        let caps = caps.unwrap_or_else(|| self.obj().src_pad().pad_template_caps());
        Some(match filter {
            Some(filter) => filter.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
            None => caps,
        })
    }

    fn negotiate(&self) -> Result<(), gst::LoggableError> {
        let caps = lock(&self.negotiated).caps.clone();
        // The caps are unknown until the connection is made.
        let Some(caps) = caps else { return Ok(()) };
        // Query first: refused caps events surface only with the next buffer, without a reason.
        let element = self.obj();
        if element.src_pad().peer_query_caps(Some(&caps)).is_empty() {
            return Err(gst::loggable_error!(CAT, "downstream refuses {caps}"));
        }
        element.set_caps(&caps).map_err(|_| gst::loggable_error!(CAT, "downstream refuses {caps}"))
    }

    fn decide_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        let downstream = Downstream {
            video_meta: query.find_allocation_meta::<gst_video::VideoMeta>().is_some(),
            crop_meta: query.find_allocation_meta::<gst_video::VideoCropMeta>().is_some(),
            keeps: query.allocation_pools().map(|(_, _, minimum, _)| minimum).max().unwrap_or(0),
        };
        let pools = query.allocation_pools();
        let cuda_stream = pools.filter_map(|(pool, ..)| gst_cuda::pool::stream(&pool?.config())).next();
        // Frames are in the exporter's memory; a downstream pool would be allocated for nothing.
        while query.allocation_pools().next().is_some() {
            query.remove_nth_allocation_pool(0);
        }
        gst::debug!(CAT, imp = self, "Downstream: {downstream:?}");
        let mut negotiated = lock(&self.negotiated);
        negotiated.downstream = downstream;
        negotiated.cuda_stream = cuda_stream;
        Ok(())
    }
}

impl PushSrcImpl for FrameshareSrc {
    fn create(&self, _buffer: Option<&mut gst::BufferRef>) -> Result<CreateSuccess, gst::FlowError> {
        let interrupt = lock(&self.interrupt).clone().ok_or(gst::FlowError::Flushing)?;
        let mut running = lock(&self.running).take().ok_or(gst::FlowError::Flushing)?;
        self.pause.begin();
        let result = loop {
            match self.next_buffer(&mut running, &interrupt) {
                Err(gst::FlowError::Flushing) if self.pause.wait_for_end(&*self.obj(), &interrupt) => {}
                result => break result,
            }
        };
        if result.is_err() {
            // GstBaseSrc pushes EOS next, and a stream-start must precede it.
            self.push_stream_start(&mut running);
        }
        *lock(&self.running) = Some(running);
        result.map(CreateSuccess::NewBuffer)
    }
}

impl FrameshareSrc {
    /// Waits for the next frame and handles formats and events in front of it.
    fn next_buffer(
        &self,
        running: &mut Running,
        interrupt: &Interrupt,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if running.has_ended {
            return Err(gst::FlowError::Eos);
        }
        loop {
            let item = match &mut running.reader {
                Some(reader) => reader.next(None, interrupt),
                None => {
                    running.reader = Some(self.connect(running, interrupt)?);
                    continue;
                }
            };
            match item {
                Ok(Some(Item::Frame(frame))) => {
                    self.open(running);
                    return self.take_frame(running, frame);
                }
                Ok(Some(Item::Format(format))) => self.take_format(running, &format)?,
                Ok(Some(Item::Event(event))) => {
                    self.take_event(running, &event).map_err(|error| {
                        running.reader = None;
                        self.post_error_message(errors::of_budget(error, &running.endpoint));
                        gst::FlowError::Error
                    })?;
                }
                Ok(Some(Item::Reconnected)) => {
                    gst::info!(CAT, imp = self, "Reconnected to {}", running.endpoint);
                    Figures::count(&self.figures.reconnections);
                    running.is_seam = true;
                    self.note_connection(running);
                    self.note_losses(running);
                }
                Ok(Some(Item::EndOfStream)) => {
                    gst::info!(CAT, imp = self, "The stream has ended");
                    self.open(running);
                    self.note_losses(running);
                    // Disconnect now: a connected reader that takes no frames would block the
                    // exporter.
                    running.reader = None;
                    running.has_ended = true;
                    return Err(gst::FlowError::Eos);
                }
                Ok(None) => {}
                Err(ReadError::Interrupted) => return Err(gst::FlowError::Flushing),
                Err(error) => {
                    self.note_losses(running);
                    running.reader = None;
                    self.post_error_message(errors::of_read(&error, &running.endpoint));
                    return Err(gst::FlowError::Error);
                }
            }
        }
    }

    /// Drops allocation queries without caps, which GstBaseSrc sends before the first buffer and
    /// some sinks handle badly. The probe removes itself at the first query with caps.
    fn hold_back_allocation_queries(&self) {
        self.obj().src_pad().add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
            match info.query().map(|query| query.view()) {
                Some(gst::QueryView::Allocation(query)) if query.caps().is_none() => {
                    gst::PadProbeReturn::Drop
                }
                Some(gst::QueryView::Allocation(_)) => gst::PadProbeReturn::Remove,
                _ => gst::PadProbeReturn::Ok,
            }
        });
    }

    fn connect(&self, running: &mut Running, interrupt: &Interrupt) -> Result<Reader, gst::FlowError> {
        let caps = self.obj().src_pad().peer_query_caps(None);
        let takes = Takes::of(&caps);
        let opened = cuda::open(&self.obj(), &self.cuda, takes, running.settings.device());
        running.cuda = opened.map_err(|error| {
            self.post_error_message(errors::of_cuda(&error, &running.endpoint));
            gst::FlowError::Error
        })?;
        let mut connected = self.connect_with(running, takes, interrupt);
        if running.settings.device().is_none()
            && let Some(exporters) =
                running.cuda.as_ref().and_then(|cuda| cuda.device_of_exporter(&connected))
        {
            gst::info!(CAT, imp = self, "Reading on GPU {exporters}, which holds the exporter's frames");
            if let Some(cuda) = cuda::open_on(&self.cuda, exporters) {
                drop(connected);
                running.cuda = Some(cuda);
                connected = self.connect_with(running, takes, interrupt);
            }
        }
        let reader = connected.map_err(|error| match errors::of_connect(&error, &running.endpoint) {
            Some(message) => {
                self.post_error_message(message);
                gst::FlowError::Error
            }
            None => gst::FlowError::Flushing,
        })?;
        self.note(&reader);
        Ok(reader)
    }

    /// Connects with the current CUDA context, if there is one.
    fn connect_with(
        &self,
        running: &Running,
        takes: Takes,
        interrupt: &Interrupt,
    ) -> Result<Reader, ConnectError> {
        let Running { endpoint, settings, cuda, .. } = running;
        let keeps = lock(&self.negotiated).downstream.keeps;
        // Two more than downstream keeps: one on its way downstream and one on its way back.
        let max_held =
            if keeps == 0 { settings.max_held } else { settings.max_held.max(keeps.saturating_add(2)) };
        let config = reader::Config::default()
            .name(format!("framesharesrc {}", self.obj().name()))
            .policy(settings.policy.into())
            .max_held(max_held.min(frameshare::MAX_CREDIT))
            .busy_poll(settings.busy_poll())
            .connection_timeout(settings.connection_timeout())
            .reconnect(settings.reconnect)
            .exporter_uid(settings.exporter_uid())
            .gpu(cuda.as_ref().map(|cuda| cuda.engine().clone()))
            .host_fallback(takes == Takes::Both)
            .fence(settings.fence.kind())
            .gpu_wait(settings.gpu_wait.wanted())
            .fence_timeout(settings.fence_timeout())
            .max_metadata_bytes(settings.max_metadata_bytes);
        gst::debug!(CAT, imp = self, "Connecting to {endpoint}");
        Reader::connect(endpoint, config, interrupt)
    }

    pub(super) fn has_caps(&self) -> bool {
        lock(&self.negotiated).caps.is_some()
    }

    pub(super) fn current_caps(&self) -> Option<gst::Caps> {
        lock(&self.negotiated).caps.clone()
    }

    #[cfg(test)]
    pub(super) fn context(&self) -> Option<gst_cuda::Context> {
        self.cuda.get()
    }

    /// Returns the exporter's process ID.
    pub(super) fn exporter(&self) -> u32 {
        self.figures.exporter.load(Relaxed)
    }

    fn note_connection(&self, running: &Running) {
        running.reader.iter().for_each(|reader| self.note(reader));
    }

    fn note(&self, reader: &Reader) {
        let stats = reader.stats();
        gst::info!(CAT, imp = self, "Session {:x} of process {}", stats.session, stats.exporter_pid);
        self.figures.session.store(stats.session, Relaxed);
        self.figures.exporter.store(stats.exporter_pid, Relaxed);
        self.figures.credit.store(stats.credit, Relaxed);
    }

    /// Updates the loss counter: frames are lost in front of delivered frames and when an exporter
    /// dies.
    fn note_losses(&self, running: &Running) {
        if let Some(reader) = &running.reader {
            self.figures.lost.store(reader.stats().lost, Relaxed);
        }
    }

    /// Handles a format change of the stream.
    fn take_format(&self, running: &mut Running, format: &Format) -> Result<(), gst::FlowError> {
        let caps = meta::parse_caps(&format.caps, &running.budget).map_err(|error| {
            self.post_error_message(errors::of_caps(error, &format.caps, &running.endpoint));
            gst::FlowError::Error
        })?;
        let on_gpu = running.reader.as_ref().is_some_and(Reader::is_on_gpu);
        self.announce(running, &caps, on_gpu)
    }

    /// Announces `caps` downstream, with the feature of the memory that the following frames are
    /// in.
    fn announce(&self, running: &mut Running, caps: &gst::Caps, on_gpu: bool) -> Result<(), gst::FlowError> {
        let caps = cuda::caps_in(caps, on_gpu);
        gst::info!(CAT, imp = self, "Frames are {caps}");
        self.figures.on_gpu.store(on_gpu, Relaxed);
        let shape = Shape::of(&caps);
        let frame_duration = shape.frame_duration();
        running.shape = Some(shape);
        let is_new_stream = self.push_stream_start(running);
        if is_new_stream && self.current_caps().as_ref() == Some(&caps) {
            // GstBaseSrc pushes only caps that differ from those of the stream before.
            self.push_now(gst::event::Caps::new(&caps));
        }
        let before = {
            let mut negotiated = lock(&self.negotiated);
            negotiated.caps = Some(caps.clone());
            std::mem::replace(&mut negotiated.frame_duration, frame_duration)
        };
        if self.obj().negotiate() {
            if is_new_stream {
                self.push_segment();
            }
            self.push_held(running);
            if before != frame_duration {
                self.post_latency();
            }
            return Ok(());
        }
        if self.obj().src_pad().pad_flags().contains(gst::PadFlags::FLUSHING) {
            return Err(gst::FlowError::Flushing);
        }
        let takes = Takes::of(&self.obj().src_pad().peer_query_caps(None));
        self.post_error_message(errors::of_negotiation(&caps, on_gpu, takes));
        Err(gst::FlowError::NotNegotiated)
    }

    fn take_frame(&self, running: &mut Running, frame: Frame) -> Result<gst::Buffer, gst::FlowError> {
        // The caps must name the memory of this frame, even if other memory was announced.
        let on_gpu = matches!(frame.address(), Address::Device(_));
        if on_gpu != self.figures.on_gpu.load(Relaxed) {
            let caps = lock(&self.negotiated).caps.clone();
            caps.map_or(Ok(()), |caps| self.announce(running, &caps, on_gpu))?;
        }
        let lost = frame.lost_before();
        let is_last_credit = running.reader.as_ref().is_some_and(|reader| reader.held() >= reader.credit());
        #[cfg(test)]
        let is_last_credit = is_last_credit && !self.holds_everything.load(Relaxed);
        let (downstream, cuda_stream) = {
            let negotiated = lock(&self.negotiated);
            (negotiated.downstream, negotiated.cuda_stream.clone())
        };
        if let Some(cuda) = &mut running.cuda {
            cuda.adopt(cuda_stream.as_ref());
            #[cfg(test)]
            {
                cuda.releases_in_order = self.releases_in_order.load(Relaxed);
            }
        }
        // A stream without caps carries untyped bytes.
        let shape = running.shape.get_or_insert_default();
        let context = Context {
            shape,
            downstream,
            time: self.running_time(),
            is_last_credit,
            held: &self.figures.held,
            copies: &mut running.copies,
            cuda: running.cuda.as_mut(),
            budget: &running.budget,
        };
        let (mut buffer, way) = frames::to_buffer(frame, context).map_err(|error| {
            if let FrameError::OverBudget(error) = error {
                self.post_error_message(errors::of_budget(error, &running.endpoint));
                return gst::FlowError::Error;
            }
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                ("Cannot use a frame of {}: {error}", running.endpoint)
            );
            gst::FlowError::Error
        })?;
        Figures::count(&self.figures.received);
        match way {
            Way::InPlace => {}
            Way::CopiedForCredit => Figures::count(&self.figures.copied_for_credit),
            Way::CopiedForLayout => Figures::count(&self.figures.copied_for_layout),
        }
        if std::mem::take(&mut running.is_seam) || lost > 0 {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        if lost > 0 {
            self.note_losses(running);
            self.post_loss(&buffer);
        }
        Ok(buffer)
    }

    /// Returns the current conversion from the exporter's time to running time.
    pub(super) fn running_time(&self) -> RunningTime {
        let element = self.obj();
        RunningTime::new(self.clock.difference().unwrap_or_default(), element.base_time().unwrap_or_default())
    }

    /// Makes the pipeline query the latency again.
    fn post_latency(&self) {
        let element = self.obj();
        let _ = element.post_message(gst::message::Latency::builder().src(&*element).build());
    }

    /// Posts a QoS message for frames lost before `buffer`.
    fn post_loss(&self, buffer: &gst::BufferRef) {
        let element = self.obj();
        // The counts come from the exporter and may be any number; GStreamer reserves u64::MAX for
        // "none".
        let count = |figure: &AtomicU64| figure.load(Relaxed).min(u64::MAX - 1);
        let (received, lost) = (count(&self.figures.received), count(&self.figures.lost));
        gst::debug!(CAT, imp = self, "{lost} frames lost so far, {received} received");
        let message = gst::message::Qos::builder(true)
            .running_time(buffer.pts())
            .stream_time(buffer.pts())
            .timestamp(buffer.pts())
            .duration(buffer.duration())
            .stats(gst::format::Buffers::from_u64(received), gst::format::Buffers::from_u64(lost))
            .src(&*element)
            .build();
        let _ = element.post_message(message);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is safe to use: the guarded data is consistent at all times.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
