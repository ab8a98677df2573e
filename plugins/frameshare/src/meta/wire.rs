// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metas of GStreamer on their way from the exporter's buffers to its readers'.
//!
//! The [form](frameshare::event::form::meta) is frameshare's own, the same for every version of
//! GStreamer. Structures and caps inside items are in the typed [`form`]. Received bytes come from
//! an untrusted process: [`parse`] checks every value that GStreamer would accept unchecked, and an
//! invalid item costs the frame its metas, never the reader its process.
//!
//! # Forwarded metas
//!
//! 1. `GstVideoMeta`, if it says more than the caps: format, size, flags and alignment; the
//!    descriptor has the layout of the planes.
//! 2. `GstVideoCropMeta`, `GstVideoRegionOfInterestMeta` with its parameters,
//!    `GstVideoTimeCodeMeta`, `GstReferenceTimestampMeta`, closed captions, active format
//!    descriptions, bars, `GstAudioMeta` and `GstAudioClippingMeta` in samples.
//! 3. Custom metas whose structure has a [`form`]; the reader registers an unknown name, unless it
//!    is one of GStreamer's or GLib's own or too many have been registered.
//!
//! 4. Other metas in GStreamer's own form, if it has one for them (1.24). What reads it is code of
//!    the library or plugin that has registered the type, which parses text and checks little: so
//!    only a reader whose exporter is trusted adds them.
//!
//! Those that stay behind on either side are counted, and named once.

use super::{
    FrameshareMeta,
    audio::Audio,
    budget::{Budget, Charge, OverBudget},
    form::{Invalid, Reader, Unwritable, Writer, is_field_name, is_type_name},
};
use crate::{
    ffi::{raw_enum::FromRaw, serialized_meta},
    sync::lock,
};
use frameshare::event::form::meta::{Alignment, Item, MAX_PARAMS, TimeCode, VERSION, Video};
use glib::translate::IntoGlib;
use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Maximum padding, and maximum alignment of rows in bytes; GStreamer's arithmetic with them is 32
/// bits wide.
const MAX_PADDING: u32 = 1 << 16;
/// 0 for a progressive frame or the first field, 1 for the second.
const MAX_FIELD: u8 = 1;
/// Maximum number of names of custom metas that peers can register.
const MAX_CUSTOM: usize = 256;
/// Maximum number of tags of a registered custom meta, and maximum length of one in bytes:
/// GStreamer keeps them for the life of the process.
const MAX_TAGS: u32 = 16;
const MAX_TAG: usize = 128;
/// Maximum length of a date in ISO 8601.
const MAX_DATE: usize = 64;
/// Maximum length of an audio meta's form: 64 channels with an offset of ten bytes each, and some
/// more.
const MAX_AUDIO: usize = 1024;
/// Maximum length of a meta in GStreamer's own form.
const MAX_SERIALIZED: usize = 1 << 20;
/// Maximum number of types that are named when their metas stay behind.
const MAX_NAMED: usize = 64;
/// Names of metas in errors.
const CUSTOM: &str = "custom meta";
const AUDIO: &str = "audio meta";

/// The reason why the bytes of a frame's metas are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetaError {
    #[error("the frame's metas are in version {0} of their form, and this side knows version {VERSION}")]
    Version(u8),
    #[error("the frame's metas are cut short or damaged")]
    Malformed,
    #[error("the frame carries an impossible {0}")]
    Impossible(&'static str),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

/// Metas that stay behind.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    count: AtomicU64,
    named: Mutex<BTreeSet<String>>,
}

impl Dropped {
    /// Number of metas that stayed behind.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn note(&self, name: &str, why: &str) {
        self.count.fetch_add(1, Relaxed);
        let mut named = lock(&self.named);
        // A peer may send any name.
        if named.len() < MAX_NAMED && named.insert(name.into()) {
            gst::warning!(super::CAT, "Metas of the type {name} stay behind: {why}");
        }
    }
}

/// The metas of one frame, and their charge.
#[derive(Debug, Default)]
pub(crate) struct Metas {
    metas: Vec<Meta>,
    charge: Option<Charge>,
}

#[derive(Debug)]
enum Meta {
    Video(Video),
    Crop([u32; 4]),
    RegionOfInterest { kind: String, id: i32, parent: i32, rect: [u32; 4], params: Vec<gst::Structure> },
    TimeCode(gst_video::ValidVideoTimeCode),
    ReferenceTimestamp { reference: gst::Caps, timestamp: u64, duration: Option<u64> },
    Custom { tags: Vec<String>, structure: gst::Structure },
    Caption { kind: i32, data: Vec<u8> },
    ActiveFormat { field: u8, spec: i32, value: i32 },
    Bar { field: u8, is_letterbox: bool, first: u32, second: u32 },
    Audio(Audio),
    Serialized { name: String, data: Vec<u8> },
}

/// The values of a video meta's form as GStreamer's types.
pub(crate) trait VideoValues {
    fn format(&self) -> gst_video::VideoFormat;

    fn flags(&self) -> gst_video::VideoFrameFlags;

    /// The alignment of the meta, if it names one.
    fn alignment(&self) -> Option<gst_video::VideoAlignment>;
}

impl VideoValues for Video {
    fn format(&self) -> gst_video::VideoFormat {
        gst_video::VideoFormat::from_raw(self.format)
    }

    fn flags(&self) -> gst_video::VideoFrameFlags {
        gst_video::VideoFrameFlags::from_bits_truncate(self.flags)
    }

    fn alignment(&self) -> Option<gst_video::VideoAlignment> {
        let alignment = self.alignment.as_ref()?;
        let Alignment { top, bottom, left, right, masks } = alignment;
        Some(gst_video::VideoAlignment::new(*top, *bottom, *left, *right, masks))
    }
}

/// Returns the bytes of a buffer's metas; none if there are none that cross. `info` is the format
/// of the caps.
///
/// A frame that was `moved` to another layout on its way has none of the alignment that its meta
/// names.
pub(crate) fn serialize(
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
    moved: bool,
    dropped: &Dropped,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    buffer.foreach_meta(|meta| {
        let mut writer = Writer::default();
        // Nearly every frame has a video meta and no other.
        let written = if let Some(video) = meta.downcast_ref::<gst_video::VideoMeta>() {
            let mut video = named(video_of(video), info);
            if moved {
                video.alignment = None;
            }
            if info.is_none_or(|info| says_more_than(&video, info)) {
                writer.plain(&Item::Video(video));
            }
            Ok(())
        } else {
            write(&meta, &mut writer, dropped)
        };
        match written {
            Ok(()) if bytes.is_empty() && !writer.0.is_empty() => {
                bytes = vec![VERSION];
                bytes.append(&mut writer.0);
            }
            Ok(()) => bytes.append(&mut writer.0),
            Err(error) => dropped.note(meta.type_().name(), &error.to_string()),
        }
        ControlFlow::Continue(())
    });
    bytes
}

/// Returns the metas of serialized bytes, each charged to the budget before it is built.
pub(crate) fn parse(bytes: &[u8], budget: &Budget) -> Result<Metas, MetaError> {
    let Some((version, body)) = bytes.split_first() else { return Ok(Metas::default()) };
    if *version != VERSION {
        return Err(MetaError::Version(*version));
    }
    let mut charge = budget.charge();
    let mut reader = Reader::new(body, &mut charge);
    let mut metas = Vec::new();
    while !reader.is_at_end() {
        let item = reader.plain::<Item<'_>>().map_err(|error| of_invalid(error, "meta"))?;
        metas.push(read(item, &mut reader).map_err(|error| of_invalid(error, name_of(&item)))?);
    }
    Ok(Metas { metas, charge: Some(charge) })
}

fn of_invalid(error: Invalid, what: &'static str) -> MetaError {
    match error {
        Invalid::Malformed => MetaError::Malformed,
        Invalid::Impossible(_) => MetaError::Impossible(what),
        Invalid::OverBudget(error) => MetaError::OverBudget(error),
    }
}

impl Metas {
    /// The frame's `GstVideoMeta`, which [`Metas::add_to`] does not add, since the caller knows the
    /// layout of the planes.
    pub fn video(&self) -> Option<&Video> {
        self.metas.iter().find_map(|meta| if let Meta::Video(video) = meta { Some(video) } else { None })
    }

    /// Start of the visible area in memory, in pixels and rows.
    pub fn crop(&self) -> Option<(u32, u32)> {
        self.metas
            .iter()
            .find_map(|meta| if let Meta::Crop([x, y, ..]) = meta { Some((*x, *y)) } else { None })
    }

    /// Adds all metas but the `GstVideoMeta` to a buffer, the crop meta only if asked to, and those
    /// in GStreamer's own form only of an exporter that is trusted. The charge ends with the
    /// buffer.
    ///
    /// # Errors
    ///
    /// The error of the last meta that could not be added; the others are added nevertheless.
    pub fn add_to(
        self,
        buffer: &mut gst::BufferRef,
        with_crop: bool,
        is_trusted: bool,
        dropped: &Dropped,
    ) -> Result<(), MetaError> {
        if let Some(charge) = self.charge {
            charge.attach(buffer.upcast_mut());
        }
        let wanted = |meta: &Meta| with_crop || !matches!(meta, Meta::Crop(_));
        let add = |result, meta| Result::and(result, add(meta, buffer, is_trusted, dropped));
        self.metas.into_iter().filter(wanted).fold(Ok(()), add)
    }
}

/// Writes the forwarded part of a meta other than a `GstVideoMeta`: nothing if it does not cross.
fn write(
    meta: &gst::MetaRef<'_, gst::Meta>,
    writer: &mut Writer,
    dropped: &Dropped,
) -> Result<(), Unwritable> {
    if let Some(custom) = meta.try_as_custom_meta() {
        let tags = meta.tags();
        writer.plain(&Item::Custom { tags: tags.len() as u32 });
        tags.iter().for_each(|tag| writer.plain(&tag.as_str()));
        writer.structure(custom.structure())?;
    } else if let Some(crop) = meta.downcast_ref::<gst_video::VideoCropMeta>() {
        writer.plain(&Item::Crop(crop.rect().into()));
    } else if let Some(region) = meta.downcast_ref::<gst_video::VideoRegionOfInterestMeta>() {
        writer.plain(&Item::RegionOfInterest {
            kind: region.roi_type(),
            id: region.id(),
            parent: region.parent_id(),
            rect: region.rect().into(),
            params: region.params().count() as u32,
        });
        region.params().try_for_each(|param| writer.structure(param))?;
    } else if let Some(time_code) = meta.downcast_ref::<gst_video::VideoTimeCodeMeta>() {
        let time_code = time_code.tc();
        // Not %Y, which writes the year 112 in three digits.
        let daily_jam = time_code.latest_daily_jam().map(|jam| jam.format("%C%y-%m-%dT%H:%M:%S.%f%:z"));
        let daily_jam = daily_jam.transpose().map_err(|_| Unwritable("a daily jam".into()))?;
        writer.plain(&Item::TimeCode(form_of(&time_code, daily_jam.as_deref())));
    } else if let Some(reference) = meta.downcast_ref::<gst::ReferenceTimestampMeta>() {
        writer.plain(&Item::ReferenceTimestamp {
            timestamp: reference.timestamp().nseconds(),
            duration: reference.duration().map(gst::ClockTime::nseconds),
        });
        writer.caps(reference.reference())?;
    } else if let Some(caption) = meta.downcast_ref::<gst_video::VideoCaptionMeta>() {
        let kind = caption.caption_type().into_glib();
        writer.plain(&Item::Caption { kind, data: caption.data() });
    } else if let Some(afd) = meta.downcast_ref::<gst_video::VideoAFDMeta>() {
        let (spec, value) = (afd.spec().into_glib(), afd.afd().into_glib());
        writer.plain(&Item::ActiveFormat { field: afd.field(), spec, value });
    } else if let Some(bar) = meta.downcast_ref::<gst_video::VideoBarMeta>() {
        let (first, second) = (bar.bar_data1(), bar.bar_data2());
        writer.plain(&Item::Bar { field: bar.field(), is_letterbox: bar.is_letterbox(), first, second });
    } else if let Some(audio) = Audio::of(meta) {
        let mut form = Writer::default();
        form.plain(&audio);
        writer.plain(&Item::Audio(&form.0));
    } else if meta.downcast_ref::<FrameshareMeta>().is_none() {
        let name = meta.type_().name();
        match serialized_meta::serialize(meta).filter(|data| data.len() <= MAX_SERIALIZED) {
            Some(data) => writer.plain(&Item::Serialized { name, data: &data }),
            None => dropped.note(name, "neither frameshare nor GStreamer has a form for them"),
        }
    }
    Ok(())
}

/// Returns whether GStreamer can have the values.
fn is_possible(video: &Video) -> bool {
    let is_named = !matches!(
        video.format(),
        gst_video::VideoFormat::Unknown
            | gst_video::VideoFormat::Encoded
            | gst_video::VideoFormat::__Unknown(_)
    );
    let is_aligned = video.alignment.as_ref().is_none_or(|alignment| {
        let Alignment { top, bottom, left, right, masks } = alignment;
        [top, bottom, left, right].into_iter().chain(masks).all(|value| *value < MAX_PADDING)
            && masks.iter().all(|mask| (mask + 1).is_power_of_two())
    });
    let sizes = 1..=i32::MAX as u32;
    is_named && is_aligned && sizes.contains(&video.width) && sizes.contains(&video.height)
}

fn video_of(meta: &gst_video::VideoMeta) -> Video {
    let alignment = meta.alignment();
    let alignment = Alignment {
        top: alignment.padding_top(),
        bottom: alignment.padding_bottom(),
        left: alignment.padding_left(),
        right: alignment.padding_right(),
        masks: *alignment.stride_align(),
    };
    let none = Alignment { top: 0, bottom: 0, left: 0, right: 0, masks: [0; 4] };
    Video {
        format: meta.format().into_glib(),
        width: meta.width(),
        height: meta.height(),
        flags: meta.video_frame_flags().bits(),
        alignment: (alignment != none).then_some(alignment),
    }
}

/// Names the format of the caps for one that GStreamer 1.22 does not know: in dma-bufs the meta may
/// have `DMA_DRM`.
fn named(video: Video, info: Option<&gst_video::VideoInfo>) -> Video {
    match (video.format(), info) {
        (gst_video::VideoFormat::__Unknown(_), Some(info)) => {
            Video { format: info.format().into_glib(), ..video }
        }
        _ => video,
    }
}

/// Returns whether a reader that has the caps needs the meta.
fn says_more_than(video: &Video, info: &gst_video::VideoInfo) -> bool {
    let of_caps = Video {
        format: info.format().into_glib(),
        width: info.width(),
        height: info.height(),
        flags: 0,
        alignment: None,
    };
    *video != of_caps
}

fn form_of<'a>(time_code: &gst_video::ValidVideoTimeCode, daily_jam: Option<&'a str>) -> TimeCode<'a> {
    TimeCode {
        fps: (time_code.fps().numer(), time_code.fps().denom()),
        flags: time_code.flags().bits(),
        time: [time_code.hours(), time_code.minutes(), time_code.seconds()],
        frames: time_code.frames(),
        field_count: time_code.field_count(),
        daily_jam,
    }
}

fn time_code_of(form: TimeCode<'_>) -> Option<gst_video::ValidVideoTimeCode> {
    let (numerator, denominator) = form.fps;
    if numerator <= 0 || denominator <= 0 {
        return None;
    }
    let jam = match form.daily_jam {
        Some(text) if text.len() > MAX_DATE || text.contains('\0') => return None,
        Some(text) => Some(glib::DateTime::from_iso8601(text, None).ok()?),
        None => None,
    };
    let [hours, minutes, seconds] = form.time;
    gst_video::ValidVideoTimeCode::new(
        gst::Fraction::new(numerator, denominator),
        jam.as_ref(),
        gst_video::VideoTimeCodeFlags::from_bits_truncate(form.flags),
        hours,
        minutes,
        seconds,
        form.frames,
        form.field_count,
    )
    .ok()
}

/// Reads the meta that starts with an item, and checks all values that GStreamer would accept and
/// fail on.
fn read(item: Item<'_>, reader: &mut Reader<'_, '_>) -> Result<Meta, Invalid> {
    let impossible = || Invalid::Impossible(name_of(&item));
    reader.item(0)?;
    let (is_possible, meta) = match item {
        Item::Video(video) => (is_possible(&video), Meta::Video(video)),
        Item::Crop(rect) => (true, Meta::Crop(rect)),
        Item::RegionOfInterest { kind, id, parent, rect, params } => {
            if !is_field_name(kind) || params > MAX_PARAMS {
                return Err(impossible());
            }
            reader.intern(kind)?;
            let params = (0..params).map(|_| reader.structure()).collect::<Result<_, _>>()?;
            (true, Meta::RegionOfInterest { kind: kind.into(), id, parent, rect, params })
        }
        Item::TimeCode(time_code) => (true, Meta::TimeCode(time_code_of(time_code).ok_or_else(impossible)?)),
        Item::ReferenceTimestamp { timestamp, duration } => {
            let reference = reader.caps()?;
            let is_possible = reference.is_fixed() && timestamp != u64::MAX;
            (is_possible, Meta::ReferenceTimestamp { reference, timestamp, duration })
        }
        Item::Custom { tags } => {
            if tags > MAX_TAGS {
                return Err(impossible());
            }
            let tags = (0..tags).map(|_| reader.plain::<&str>().map(str::to_owned));
            let tags = tags.collect::<Result<Vec<_>, _>>()?;
            let structure = reader.structure()?;
            let fine = |tag: &String| tag.len() <= MAX_TAG && !tag.contains('\0');
            let is_possible = is_type_name(structure.name()) && tags.iter().all(fine);
            (is_possible, Meta::Custom { tags, structure })
        }
        Item::Caption { kind, data } => {
            reader.item(data.len())?;
            (is_caption(kind) && !data.is_empty(), Meta::Caption { kind, data: data.into() })
        }
        Item::ActiveFormat { field, spec, value } => {
            (field <= MAX_FIELD && is_active_format(spec, value), Meta::ActiveFormat { field, spec, value })
        }
        Item::Bar { field, is_letterbox, first, second } => {
            (field <= MAX_FIELD, Meta::Bar { field, is_letterbox, first, second })
        }
        Item::Audio(form) => {
            reader.item(MAX_AUDIO)?;
            let audio = (form.len() <= MAX_AUDIO).then(|| postcard::from_bytes::<Audio>(form).ok()).flatten();
            let audio = audio.ok_or_else(impossible)?;
            (audio.is_sound(), Meta::Audio(audio))
        }
        Item::Serialized { name, data } => {
            reader.item(name.len() + data.len())?;
            let is_possible = is_type_name(name) && !data.is_empty() && data.len() <= MAX_SERIALIZED;
            (is_possible, Meta::Serialized { name: name.into(), data: data.into() })
        }
    };
    is_possible.then_some(meta).ok_or_else(impossible)
}

/// Returns the name of an item in errors.
fn name_of(item: &Item<'_>) -> &'static str {
    match item {
        Item::Video(_) => "video meta",
        Item::Crop(_) => "crop meta",
        Item::RegionOfInterest { .. } => "region of interest",
        Item::TimeCode(_) => "time code",
        Item::ReferenceTimestamp { .. } => "reference timestamp",
        Item::Custom { .. } => CUSTOM,
        Item::Caption { .. } => "closed caption",
        Item::ActiveFormat { .. } => "active format description",
        Item::Bar { .. } => "bar meta",
        Item::Audio(_) => AUDIO,
        Item::Serialized { .. } => "serialized meta",
    }
}

/// Returns whether GStreamer knows this kind of closed caption; there is no meta for another one.
fn is_caption(kind: i32) -> bool {
    use gst_video::VideoCaptionType as Kind;
    let kind = Kind::from_raw(kind);
    matches!(kind, Kind::Cea608Raw | Kind::Cea608S3341a | Kind::Cea708Raw | Kind::Cea708Cdp)
}

/// Returns whether a specification of active formats has this value: there is no meta for another
/// one.
fn is_active_format(spec: i32, value: i32) -> bool {
    use gst_video::VideoAFDSpec as Spec;
    match FromRaw::from_raw(spec) {
        Spec::DvbEtsi => matches!(value, 2..=4 | 8..=11 | 13..=15),
        Spec::AtscA53 | Spec::SmpteSt20161 => matches!(value, 0 | 2..=4 | 8..=11 | 13..=15),
        _ => false,
    }
}

fn add(
    meta: Meta,
    buffer: &mut gst::BufferRef,
    is_trusted: bool,
    dropped: &Dropped,
) -> Result<(), MetaError> {
    match meta {
        Meta::Video(_) => {}
        Meta::Serialized { name, .. } if !is_trusted => {
            dropped.note(&name, "the exporter runs as another user, and a plugin would read them");
        }
        Meta::Serialized { name, data } => {
            if !serialized_meta::add(buffer, &data) {
                dropped.note(&name, "this GStreamer knows no such type");
            }
        }
        Meta::Crop([x, y, width, height]) => {
            gst_video::VideoCropMeta::add(buffer, (x, y, width, height));
        }
        Meta::RegionOfInterest { kind, id, parent, rect: [x, y, width, height], params } => {
            let mut region = gst_video::VideoRegionOfInterestMeta::add(buffer, &kind, (x, y, width, height));
            region.set_id(id);
            region.set_parent_id(parent);
            params.into_iter().for_each(|param| region.add_param(param));
        }
        Meta::TimeCode(time_code) => {
            gst_video::VideoTimeCodeMeta::add(buffer, &time_code);
        }
        Meta::ReferenceTimestamp { reference, timestamp, duration } => {
            let duration = duration.filter(|duration| *duration != u64::MAX);
            gst::ReferenceTimestampMeta::add(
                buffer,
                &reference,
                gst::ClockTime::from_nseconds(timestamp),
                duration.map(gst::ClockTime::from_nseconds),
            );
        }
        Meta::Custom { tags, structure } => {
            let name = structure.name();
            register_custom(name, &tags);
            let meta = gst::meta::CustomMeta::add(buffer, name);
            let mut meta = meta.map_err(|_| MetaError::Impossible(CUSTOM))?;
            let fields = meta.mut_structure();
            structure.iter().for_each(|(field, value)| fields.set_value(field, value.clone()));
        }
        Meta::Caption { kind, data } => {
            gst_video::VideoCaptionMeta::add(buffer, FromRaw::from_raw(kind), &data);
        }
        Meta::ActiveFormat { field, spec, value } => {
            gst_video::VideoAFDMeta::add(buffer, field, FromRaw::from_raw(spec), FromRaw::from_raw(value));
        }
        Meta::Audio(audio) => return audio.add(buffer).then_some(()).ok_or(MetaError::Impossible(AUDIO)),
        Meta::Bar { field, is_letterbox, first, second } => {
            gst_video::VideoBarMeta::add(buffer, field, is_letterbox, first, second);
        }
    }
    Ok(())
}

/// Registers a custom meta's name with the sender's tags, if allowed.
fn register_custom(name: &str, tags: &[String]) {
    // A type stays as long as the process lives.
    static REGISTERED: Mutex<usize> = Mutex::new(0);
    let is_taken = |name: &str| glib::Type::from_name(name).is_some();
    if is_reserved(name) || gst::meta::CustomMeta::is_registered(name) {
        return;
    }
    // Held until it is registered: two frames may bring the same name at once.
    let mut registered = lock(&REGISTERED);
    if *registered >= MAX_CUSTOM || is_taken(name) || is_taken(&format!("{name}-api")) {
        return;
    }
    *registered += 1;
    let tags = tags.iter().map(String::as_str).collect::<Vec<_>>();
    gst::meta::CustomMeta::register(name, &tags);
}

/// Returns whether a library registers types of such names itself, often on first use: if the name
/// is taken already, that library blocks forever.
fn is_reserved(name: &str) -> bool {
    name.strip_prefix('G').is_some_and(|rest| {
        rest.starts_with("st")
            || rest.starts_with("Obj")
            || rest.starts_with(|c: char| c.is_ascii_uppercase())
    })
}

#[cfg(test)]
mod tests;
