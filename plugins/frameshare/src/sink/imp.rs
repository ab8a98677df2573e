// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of `framesharesink`.
//!
//! # Locks
//!
//! `settings`, `stream` and `input` are taken one at a time, for a lookup or an update, and never
//! while anything is posted, pushed, queried, emitted or waited for. `render`, `prepare` and
//! `wait_event` run under `GstBaseSink`'s preroll lock, which `wait_preroll` releases; `unlock` is
//! called without it, from any thread.

use super::{
    events::Told,
    kinds::Memory,
    messages,
    placed::{PlaceError, Placed},
    refusal,
    settings::Settings,
    stats,
    stream::{Stream, Times},
    vfuncs,
};
use crate::{
    meta::budget::Budget,
    time::{Difference, PipelineClock},
};
use frameshare::{
    Format, Interrupt, Video,
    exporter::{AcquireError, Exporter, Notice, PublishError},
};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::prelude::*};
use gst_cuda::context::ElementContext;
use std::{
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        super::ELEMENT,
        gst::DebugColorFlags::empty(),
        Some("Shares frames with other processes"),
    )
});

/// State of the input: changed by events and buffers, on the streaming thread and while it is
/// stopped.
#[derive(Default)]
pub(super) struct Input {
    /// Upstream has sent caps.
    has_caps: bool,
    /// The layout of raw video.
    pub(super) info: Option<gst_video::VideoInfo>,
    /// The buffer that was placed in `prepare`, and its frame, or the lack of memory for it.
    prepared: Option<(gst::Buffer, Result<Placed, PlaceError>)>,
    /// Time mapping without a pipeline clock: the first frame is due on arrival.
    pub(super) clockless: Option<Difference>,
    /// Delay of the stream in ns because the sink waited for readers.
    pub(super) delay: i128,
    /// The next frame follows a discontinuity: upstream flushed.
    is_seam: bool,
    /// The last caps from upstream, accepted or not.
    pub(super) offered: Option<gst::Caps>,
    /// An empty buffer was dropped.
    pub(super) has_dropped: bool,
    pub(super) told: Told,
}

#[derive(Default)]
pub struct FrameshareSink {
    pub(super) settings: Mutex<Settings>,
    pub(super) clock: PipelineClock,
    stream: Mutex<Option<Arc<Stream>>>,
    input: Mutex<Input>,
    pub(super) context: ElementContext,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FrameshareSink {
    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        lock(&self.stream).clone()
    }

    pub(super) fn input(&self) -> MutexGuard<'_, Input> {
        lock(&self.input)
    }

    /// Opens the stream for readers.
    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let endpoint = settings.endpoint()?;
        let interrupt = Interrupt::new().map_err(|error| {
            gst::error_msg!(gst::ResourceError::Failed, ("Cannot make an eventfd: {}", error))
        })?;
        let sink = self.obj().downgrade();
        let observer = move |notice| {
            if let Some(sink) = sink.upgrade() {
                sink.imp().notice(notice);
            }
        };
        let gpu = self.find_gpu(&settings)?;
        let context = gpu.as_ref().ok().map(|gpu| gpu.engine.clone());
        let exporter = Exporter::bind(&endpoint, settings.config(context), observer)
            .map_err(|error| crate::errors::bind(&error))?;
        gst::info!(CAT, imp = self, "sharing at {endpoint}");
        match &gpu {
            Ok(_) => gst::info!(CAT, imp = self, "GPU memory: {:?}", exporter.stats().memory),
            Err(why) => gst::debug!(CAT, imp = self, "no GPU memory: {why:?}"),
        }
        *lock(&self.input) = Input::default();
        *lock(&self.stream) = Some(Arc::new(Stream::new(exporter, interrupt, gpu, settings.export)));
        // Readers that connected before are counted.
        self.obj().notify("num-clients");
        Ok(())
    }

    /// Closes the stream. Readers keep the frames that they hold.
    fn close(&self) {
        let input = std::mem::take(&mut *lock(&self.input));
        let stream = lock(&self.stream).take();
        drop(input);
        if let Some(stream) = stream {
            gst::info!(CAT, imp = self, "stopping after {:?}", stats::stats(Some(&stream)));
            stream.home.close();
            stream.surfaces.end_span(&stream.exporter);
            let had_gpu = stream.gpu().is_some();
            drop(stream);
            self.context.clear();
            if had_gpu {
                crate::gpu::settle();
            }
            self.obj().notify("num-clients");
        }
    }

    /// Handles a notice of the exporter; called on its threads.
    fn notice(&self, notice: Notice) {
        let sink = self.obj();
        match notice {
            Notice::ReaderAdded(reader) => {
                gst::info!(CAT, imp = self, "reader added: {reader:?}");
                sink.emit_by_name::<()>("reader-added", &[&stats::reader(&reader)]);
                sink.notify("num-clients");
            }
            Notice::ReaderRemoved { reader, reason, why } => {
                gst::info!(CAT, imp = self, "reader removed: {why}: {reader:?}");
                if let Some(message) = messages::cut_off(&reader, reason, &why) {
                    gst::warning!(CAT, imp = self, "reader cut off: {why}: {reader:?}");
                    self.post(message);
                }
                sink.emit_by_name::<()>("reader-removed", &[&stats::reader(&reader), &why]);
                sink.notify("num-clients");
            }
            Notice::ReaderRefused { pid, uid, why } => {
                gst::warning!(CAT, imp = self, "reader refused: process {pid} of user {uid}: {why}");
            }
            Notice::ReaderBlocking { reader, blocked_for } => {
                gst::warning!(CAT, imp = self, "waiting for {blocked_for:?} for reader {reader:?}");
                self.post(messages::blocking(&reader, blocked_for));
            }
            Notice::SocketLost { why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Close,
                    (
                        "Readers can no longer connect: the socket was removed or replaced ({}); restart this element, or remove what took its place",
                        why
                    )
                );
            }
            Notice::OthersCouldWrite { refused: true, why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Settings,
                    (
                        "Readers of other users are refused: {}; update the kernel, or set allow-udmabuf to let them read and write",
                        why
                    )
                );
            }
            Notice::OthersCouldWrite { refused: false, why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Settings,
                    (
                        "Readers of other users are admitted untested: {}; let this user open the device, or set allow-udmabuf to accept the risk",
                        why
                    )
                );
            }
            Notice::SocketBound => {
                gst::warning!(CAT, imp = self, "the socket was removed, and is bound again");
            }
            other => gst::info!(CAT, imp = self, "{other:?}"),
        }
    }

    /// Posts an element message.
    fn post(&self, structure: gst::Structure) {
        let sink = self.obj();
        let message = gst::message::Element::builder(structure).src(&*sink).build();
        // It fails without a bus.
        let _ = sink.post_message(message);
    }

    /// Converts times of upstream to the clock that all processes share.
    pub(super) fn times(
        &self,
        pts: Option<gst::ClockTime>,
        dts: Option<gst::ClockTime>,
        duration: Option<gst::ClockTime>,
    ) -> Times {
        let sink = self.obj();
        let segment = sink.segment();
        let Some(segment) = segment.downcast_ref::<gst::ClockTime>() else { return Times::default() };
        let running = |time: gst::ClockTime| match segment.to_running_time_full(time)? {
            gst::Signed::Positive(time) => Some(i128::from(time.nseconds())),
            gst::Signed::Negative(time) => Some(-i128::from(time.nseconds())),
        };
        // In reverse playback a frame's presentation starts at its end.
        let shown = match duration {
            Some(duration) if segment.rate() < 0.0 => pts.map(|pts| pts + duration),
            _ => pts,
        };
        let (pts, dts) = (shown.and_then(running), dts.and_then(running));
        let late = i128::from(sink.latency().nseconds()) + i128::from(sink.ts_offset());
        let delay = self.input().delay;
        let (difference, base) = match (self.clock.difference(), sink.base_time()) {
            (Some(difference), Some(base)) => (difference, i128::from(base.nseconds()) + late + delay),
            _ => {
                let now = frameshare::monotonic_ns();
                let first = u64::try_from(pts.or(dts).unwrap_or(0)).unwrap_or(0);
                let first = gst::ClockTime::from_nseconds(first);
                let difference =
                    *lock(&self.input).clockless.get_or_insert_with(|| Difference::between(first, now));
                (difference, delay)
            }
        };
        let rate = segment.rate().abs();
        Times {
            pts: pts.map(|time| difference.to_monotonic(time + base)),
            dts: dts.map(|time| difference.to_monotonic(time + base)),
            duration: duration.map(|duration| (duration.nseconds() as f64 / rate) as u64),
        }
    }

    fn place(&self, stream: &Stream, buffer: &gst::Buffer) -> Result<Placed, PlaceError> {
        let info = lock(&self.input).info.clone();
        stream.place(buffer, info.as_ref())
    }

    /// Returns the frame that `prepare` placed for this buffer, if it did.
    fn prepared(&self, buffer: &gst::Buffer) -> Option<Result<Placed, PlaceError>> {
        let (of, placed) = lock(&self.input).prepared.take()?;
        (of.as_ptr() == buffer.as_ptr()).then_some(placed)
    }

    /// Places a frame that is due, with the result of `place` in `first` if there is one. Without a
    /// free slot, and without memory for another one, waits for one.
    fn place_now(
        &self,
        stream: &Stream,
        first: Option<Result<Placed, PlaceError>>,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        match first.unwrap_or_else(&place) {
            tried @ Err(PlaceError::NoneFree(..)) => {
                stream.home.want_slots(true);
                let placed = self.place_when_free(stream, tried, place);
                stream.home.want_slots(false);
                placed
            }
            tried => tried.map_err(|error| self.post_place_error(error)),
        }
    }

    fn place_when_free(
        &self,
        stream: &Stream,
        mut tried: Result<Placed, PlaceError>,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        while let Err(PlaceError::NoneFree(size, error)) = tried {
            tried = match stream.exporter.wait_for_slot(size, error, &stream.interrupt) {
                Ok(slot) => {
                    // The next attempt finds it.
                    drop(slot);
                    place()
                }
                Err(AcquireError::Interrupted) => {
                    self.obj().wait_preroll()?;
                    place()
                }
                Err(error) => Err(PlaceError::NoSlot(error)),
            };
        }
        tried.map_err(|error| self.post_place_error(error))
    }

    pub(super) fn forget_prepared(&self) {
        let prepared = lock(&self.input).prepared.take();
        drop(prepared);
    }

    fn post_place_error(&self, error: PlaceError) -> gst::FlowError {
        match error {
            PlaceError::NoneFree(_, error) | PlaceError::NoSlot(error) => gst::element_imp_error!(
                self,
                gst::ResourceError::NoSpaceLeft,
                ("There is no slot for the next frame: {}", error)
            ),
            PlaceError::BadBuffer(what) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ("Upstream sent {}", what))
            }
            PlaceError::NotInPlace(reason) => gst::element_imp_error!(
                self,
                gst::ResourceError::Settings,
                (
                    "export=in-place is asked for, and a frame cannot be shared in place ({}): use export=auto",
                    reason.name()
                )
            ),
            PlaceError::Gpu(error) => gst::element_imp_error!(
                self,
                gst::ResourceError::Write,
                ("The frame could not be copied on the GPU: {}", error)
            ),
        }
        self.note_failure();
        gst::FlowError::Error
    }

    /// Handles a gap that is due, or the end of the stream, which is answered when this returns.
    pub(super) fn wait_event(&self, event: &gst::Event) -> Result<(), gst::FlowError> {
        if let gst::EventView::Gap(gap) = event.view() {
            self.forward_gap(gap);
        }
        let (Some(stream), gst::EventView::Eos(_)) = (self.stream(), event.view()) else { return Ok(()) };
        self.end(&stream);
        let timeout = lock(&self.settings).drain_timeout;
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            match stream.exporter.drain(left, &stream.interrupt) {
                Ok(true) => break,
                Ok(false) => {
                    gst::warning!(CAT, imp = self, "lossless readers did not finish within {timeout:?}");
                    break;
                }
                Err(_) => self.obj().wait_preroll()?,
            };
        }
        Ok(())
    }
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareSink {
    const NAME: &'static str = "GstFrameshareSink";
    type Type = super::FrameshareSink;
    type ParentType = gst_base::BaseSink;

    fn class_init(class: &mut Self::Class) {
        vfuncs::install(class);
    }
}

impl ObjectImpl for FrameshareSink {
    fn properties() -> &'static [glib::ParamSpec] {
        Settings::specs()
    }

    fn signals() -> &'static [glib::subclass::Signal] {
        static SIGNALS: LazyLock<Vec<glib::subclass::Signal>> = LazyLock::new(|| {
            let reader = gst::Structure::static_type();
            vec![
                glib::subclass::Signal::builder("reader-added").param_types([reader]).build(),
                glib::subclass::Signal::builder("reader-removed")
                    .param_types([reader, String::static_type()])
                    .build(),
            ]
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        // It would hold a slot for a property that is seldom read.
        self.obj().set_enable_last_sample(false);
        if let Some(pad) = self.obj().static_pad("sink") {
            pad.add_probe(gst::PadProbeType::BUFFER, super::caps::keep_timeless);
            refusal::watch_caps(self, &pad);
        }
    }

    fn set_property(&self, _id: usize, value: &glib::Value, spec: &glib::ParamSpec) {
        if !crate::mutability::may_set(self.obj().upcast_ref(), *CAT, spec) {
            return;
        }
        let was_set = lock(&self.settings).set(spec.name(), value);
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
            "stats" => stats::stats(self.stream().as_deref()).to_value(),
            name => lock(&self.settings).get(name).unwrap_or_else(|| spec.default_value().clone()),
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
        let device = lock(&self.settings).device();
        self.context.set_context(&*self.obj(), context, device);
        self.parent_set_context(context);
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
        }
        let result = self.parent_change_state(transition);
        let opened_in_vain = transition == gst::StateChange::ReadyToPaused && result.is_err();
        if opened_in_vain || transition == gst::StateChange::PausedToReady {
            self.close();
        }
        result
    }
}

impl BaseSinkImpl for FrameshareSink {
    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let (any_caps, memory) = {
            let settings = lock(&self.settings);
            (settings.any_caps, settings.memory)
        };
        let has_gpu = self
            .stream()
            .map_or(memory != Memory::Host, |stream| stream.gpu().is_some() || stream.awaits_gpu());
        let mut caps = match (any_caps, has_gpu) {
            (true, _) => gst::Caps::new_any(),
            (false, true) => super::caps::template(),
            (false, false) => super::caps::host_template(),
        };
        if self.is_being_linked() {
            caps.merge(super::caps::any_memory());
        }
        Some(match filter {
            Some(filter) => filter.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
            None => caps,
        })
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let stream = self.stream();
        // The pad's probe has posted the error.
        if super::caps::check_memory(caps).is_err() {
            return Err(gst::loggable_error!(CAT, "refused {}", caps));
        }
        let cuda = stream.as_ref().filter(|_| super::caps::is_cuda(caps));
        if let Some(why) = cuda.and_then(|stream| self.begin_gpu(stream)) {
            self.post_error_message(super::caps::without_gpu(&why));
            self.note_failure();
            return Err(gst::loggable_error!(CAT, "refused {}", caps));
        }
        let info = crate::pool::video_info(caps);
        let video = info.as_ref().map(|info| Video {
            format: info.format().to_string(),
            width: info.width(),
            height: info.height(),
        });
        self.forget_prepared();
        {
            let mut input = lock(&self.input);
            (input.has_caps, input.info) = (true, info);
        }
        if let Some(stream) = stream {
            let auto = lock(&self.settings).memory == Memory::Auto;
            stream.use_host_memory(auto && !super::caps::is_cuda(caps));
            let text = super::caps::without_cuda(caps).to_string();
            // Readers parse the text themselves and accept known types of fields only.
            if crate::meta::parse_caps(&text, &Budget::new(u64::MAX)).is_err() {
                self.post_error_message(super::caps::unreadable(&text));
                return Err(gst::loggable_error!(CAT, "readers cannot read {}", caps));
            }
            stream.exporter.set_format(Format { caps: text, video });
        }
        Ok(())
    }

    fn propose_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        self.propose(query)
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if query.type_() == gst::QueryType::Context && self.context.query(&*self.obj(), query) {
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
        if let gst::EventView::FlushStop(flush) = event.view() {
            self.forget_prepared();
            self.input().is_seam = true;
            if flush.resets_time() {
                self.input().delay = 0;
            }
            // After a seek back from the end.
            if let Some(stream) = self.stream() {
                stream.exporter.go_on();
            }
        }
        self.forward(&event);
        self.parent_event(event)
    }

    /// Copies a frame now, if it must be copied, while it waits for its time.
    fn prepare(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(stream) = self.stream() else { return Err(gst::FlowError::Flushing) };
        // GstBaseSink prepares the preroll buffer twice.
        let again = |prepared: &(gst::Buffer, _)| prepared.0.as_ptr() == buffer.as_ptr();
        if lock(&self.input).prepared.as_ref().is_some_and(again) {
            return Ok(gst::FlowSuccess::Ok);
        }
        let prepared = match self.place(&stream, buffer) {
            tried @ (Ok(_) | Err(PlaceError::NoneFree(..))) => Some((buffer.clone(), tried)),
            // Other failures are repeated, and reported, when the frame is due.
            Err(_) => None,
        };
        let last = std::mem::replace(&mut lock(&self.input).prepared, prepared);
        drop(last);
        Ok(gst::FlowSuccess::Ok)
    }

    fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(stream) = self.stream() else { return Err(gst::FlowError::Flushing) };
        // GstBaseSink passes buffers without caps; readers cannot interpret them.
        let has_caps = lock(&self.input).has_caps;
        let any_caps = lock(&self.settings).any_caps;
        if self.is_empty_frame(buffer) {
            return Ok(gst::FlowSuccess::Ok);
        }
        if !has_caps && !any_caps {
            gst::element_imp_error!(
                self,
                gst::CoreError::Negotiation,
                ("Upstream did not say what it sends: put a capsfilter or a typefind before framesharesink")
            );
            self.note_failure();
            return Err(gst::FlowError::NotNegotiated);
        }
        self.wait_for_connection(&stream, buffer)?;
        self.wait_for_delay(buffer)?;
        let place = || self.place(&stream, buffer);
        let mut placed = self.place_now(&stream, self.prepared(buffer), place)?;
        loop {
            // Converted again after a pause, which moved the base time.
            let times = self.times(buffer.pts(), buffer.dts(), buffer.duration());
            let (info, is_seam) = {
                let input = self.input();
                (input.info.clone(), input.is_seam)
            };
            match stream.publish(&placed, buffer, info.as_ref(), times, is_seam) {
                Ok(sequence) => {
                    self.input().is_seam = false;
                    gst::trace!(CAT, imp = self, "{buffer:?} is frame {sequence}");
                    return Ok(gst::FlowSuccess::Ok);
                }
                Err(PublishError::Interrupted) => drop(self.obj().wait_preroll()?),
                Err(PublishError::NotForAll(why)) => {
                    gst::debug!(CAT, imp = self, "a frame is copied after all: {why}");
                    let place = || stream.place_for_all(buffer, info.as_ref());
                    placed = self.place_now(&stream, None, place)?;
                }
                Err(error) => {
                    gst::element_imp_error!(
                        self,
                        gst::ResourceError::Write,
                        ("The frame could not be published: {}", error)
                    );
                    self.note_failure();
                    return Err(gst::FlowError::Error);
                }
            }
        }
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
