//! Metas of GStreamer on their way from the exporter's buffers to its readers'.
//!
//! The form is our own, the same on every GStreamer: a version byte and a list of items in
//! [postcard](https://postcard.jamesmunns.com/wire-format) encoding. A buffer with nothing to say has no bytes.
//! What comes in was written by a process that nobody trusts: [`parse`] checks every value that GStreamer would
//! take without looking, and an item that is wrong costs the frame its metas, never the reader its life.
//!
//! # What crosses
//!
//! 1. `GstVideoMeta`, where it says more than the caps: format, size, flags and alignment; where the planes lie is the
//!    descriptor's.
//! 2. `GstVideoCropMeta`, `GstVideoRegionOfInterestMeta` with its parameters, `GstVideoTimeCodeMeta`,
//!    `GstReferenceTimestampMeta`, closed captions, active format descriptions, bars, `GstAudioMeta` and
//!    `GstAudioClippingMeta` in samples.
//! 3. Custom metas, as their structure's text; the reader registers a name that it does not know, unless it is one
//!    of GStreamer's or GLib's own or too many have been registered.
//! 4. Every other meta that GStreamer can write down itself, which it does from 1.24 on: in its own words, for readers
//!    that run the very same version.
//!
//! Not sent are metas that speak of a buffer's memory or parent, and [`FrameshareMeta`](super::FrameshareMeta),
//! which belongs to one stream.

use super::{audio::Audio, is_harmless, newer, parse_caps, parse_structure, raw::FromRaw};
use glib::translate::IntoGlib;
use serde::{Deserialize, Serialize};
use std::{
    ops::ControlFlow,
    sync::{Mutex, PoisonError},
};

const VERSION: u8 = 1;
/// Most padding, and most bytes that rows are aligned to; GStreamer's arithmetic with them is 32 bits wide.
const MAX_PADDING: u32 = 1 << 16;
/// 0 for a progressive picture or the first field, 1 for the second.
const MAX_FIELD: u8 = 1;
/// Most names of custom metas that are registered here for others.
const MAX_CUSTOM: usize = 256;
/// Most tags of a custom meta that is registered, and most bytes of one: GStreamer keeps them for ever.
const MAX_TAGS: usize = 16;
const MAX_TAG: usize = 128;

/// What is wrong with the bytes of a frame's metas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetaError {
    #[error("the frame's metas are in version {0} of their form, and this side knows version {VERSION}")]
    Version(u8),
    #[error("the frame's metas are cut short or damaged")]
    Malformed,
    #[error("the frame carries an impossible {0}")]
    Impossible(&'static str),
}

/// The metas of one frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Metas(Vec<Item>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Item {
    Video(Video),
    Crop([u32; 4]),
    RegionOfInterest { kind: String, id: i32, parent: i32, rect: [u32; 4], params: Vec<String> },
    TimeCode(TimeCode),
    ReferenceTimestamp { reference: String, timestamp: u64, duration: Option<u64> },
    Custom { name: String, tags: Vec<String>, structure: String },
    Caption { kind: i32, data: Vec<u8> },
    ActiveFormat { field: u8, spec: i32, value: i32 },
    Bar { field: u8, is_letterbox: bool, first: u32, second: u32 },
    Other { version: newer::Version, data: Vec<u8> },
    Audio(Audio),
}

/// A frame's `GstVideoMeta`, but for where its planes lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Video {
    format: i32,
    /// Pixels a row of what is in memory; a crop meta says which of it to show.
    pub width: u32,
    /// Rows of what is in memory.
    pub height: u32,
    flags: u32,
    alignment: Option<Alignment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Alignment {
    top: u32,
    bottom: u32,
    left: u32,
    right: u32,
    /// One less than the power of two that each plane's rows are aligned to.
    masks: [u32; 4],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TimeCode {
    fps: (i32, i32),
    flags: u32,
    time: [u32; 3],
    frames: u32,
    field_count: u32,
    /// ISO 8601.
    daily_jam: Option<String>,
}

impl Video {
    pub fn format(&self) -> gst_video::VideoFormat {
        gst_video::VideoFormat::from_raw(self.format)
    }

    pub fn flags(&self) -> gst_video::VideoFrameFlags {
        gst_video::VideoFrameFlags::from_bits_truncate(self.flags)
    }

    /// What alignment the meta names, where it names one.
    pub fn alignment(&self) -> Option<gst_video::VideoAlignment> {
        let alignment = self.alignment.as_ref()?;
        let Alignment { top, bottom, left, right, masks } = alignment;
        Some(gst_video::VideoAlignment::new(*top, *bottom, *left, *right, masks))
    }
}

/// The bytes that stand for a buffer's metas; none where there are none that cross. `info` is what the caps say.
///
/// A frame that was `moved` to another layout on its way has none of the alignment that its meta names.
pub(crate) fn serialize(
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
    moved: bool,
) -> Vec<u8> {
    let mut items = Vec::new();
    buffer.foreach_meta(|meta| {
        // Nearly every frame has this one and no other.
        if let Some(video) = meta.downcast_ref::<gst_video::VideoMeta>() {
            let mut video = Video::of(video);
            if moved {
                video.alignment = None;
            }
            if info.is_none_or(|info| video.says_more_than(info)) {
                items.push(Item::Video(video));
            }
        } else {
            items.extend(item(&meta));
        }
        ControlFlow::Continue(())
    });
    if items.is_empty() {
        return Vec::new();
    }
    // Plain data into a growing buffer: there is no way to fail.
    postcard::to_extend(&items, vec![VERSION]).unwrap_or_default()
}

/// The metas that bytes stand for, checked as far as they can be without their buffer.
pub(crate) fn parse(bytes: &[u8]) -> Result<Metas, MetaError> {
    let Some((version, body)) = bytes.split_first() else { return Ok(Metas::default()) };
    if *version != VERSION {
        return Err(MetaError::Version(*version));
    }
    let Ok((items, [])) = postcard::take_from_bytes::<Vec<Item>>(body) else {
        return Err(MetaError::Malformed);
    };
    items.iter().try_for_each(check)?;
    Ok(Metas(items))
}

impl Metas {
    /// The frame's `GstVideoMeta`, which [`Metas::add_to`] leaves to the one who knows where the planes lie.
    pub fn video(&self) -> Option<&Video> {
        self.0.iter().find_map(|item| if let Item::Video(video) = item { Some(video) } else { None })
    }

    /// Where what the frame shows starts in what is in memory.
    pub fn crop(&self) -> Option<(u32, u32)> {
        self.0.iter().find_map(|item| if let Item::Crop([x, y, ..]) = item { Some((*x, *y)) } else { None })
    }

    /// Puts all metas but the `GstVideoMeta` on a buffer, the crop meta only if asked to.
    ///
    /// # Errors
    ///
    /// Says what was wrong with the first one that could not be added; the others are on the buffer all the same.
    pub fn add_to(&self, buffer: &mut gst::BufferRef, with_crop: bool) -> Result<(), MetaError> {
        let wanted = |item: &&Item| with_crop || !matches!(item, Item::Crop(_));
        self.0.iter().filter(wanted).map(|item| add(item, buffer)).fold(Ok(()), Result::and)
    }
}

/// What crosses of a meta other than a `GstVideoMeta`; nothing where it does not.
fn item(meta: &gst::MetaRef<'_, gst::Meta>) -> Option<Item> {
    if let Some(custom) = meta.try_as_custom_meta() {
        return Some(Item::Custom {
            name: custom.structure().name().to_string(),
            tags: meta.tags().iter().map(|tag| tag.to_string()).collect(),
            structure: custom.structure().to_string(),
        });
    }
    if let Some(crop) = meta.downcast_ref::<gst_video::VideoCropMeta>() {
        return Some(Item::Crop(crop.rect().into()));
    }
    if let Some(region) = meta.downcast_ref::<gst_video::VideoRegionOfInterestMeta>() {
        return Some(Item::RegionOfInterest {
            kind: region.roi_type().to_owned(),
            id: region.id(),
            parent: region.parent_id(),
            rect: region.rect().into(),
            params: region.params().map(|param| param.to_string()).collect(),
        });
    }
    if let Some(time_code) = meta.downcast_ref::<gst_video::VideoTimeCodeMeta>() {
        return TimeCode::of(&time_code.tc()).map(Item::TimeCode);
    }
    if let Some(reference) = meta.downcast_ref::<gst::ReferenceTimestampMeta>() {
        return Some(Item::ReferenceTimestamp {
            reference: reference.reference().to_string(),
            timestamp: reference.timestamp().nseconds(),
            duration: reference.duration().map(gst::ClockTime::nseconds),
        });
    }
    if let Some(caption) = meta.downcast_ref::<gst_video::VideoCaptionMeta>() {
        return Some(Item::Caption {
            kind: caption.caption_type().into_glib(),
            data: caption.data().to_vec(),
        });
    }
    if let Some(afd) = meta.downcast_ref::<gst_video::VideoAFDMeta>() {
        let (spec, value) = (afd.spec().into_glib(), afd.afd().into_glib());
        return Some(Item::ActiveFormat { field: afd.field(), spec, value });
    }
    if let Some(bar) = meta.downcast_ref::<gst_video::VideoBarMeta>() {
        let (first, second) = (bar.bar_data1(), bar.bar_data2());
        return Some(Item::Bar { field: bar.field(), is_letterbox: bar.is_letterbox(), first, second });
    }
    if let Some(audio) = Audio::of(meta) {
        return Some(Item::Audio(audio));
    }
    newer::write(meta).map(|data| Item::Other { version: newer::version(), data })
}

impl Video {
    fn of(meta: &gst_video::VideoMeta) -> Self {
        let alignment = meta.alignment();
        let alignment = Alignment {
            top: alignment.padding_top(),
            bottom: alignment.padding_bottom(),
            left: alignment.padding_left(),
            right: alignment.padding_right(),
            masks: *alignment.stride_align(),
        };
        let none = Alignment { top: 0, bottom: 0, left: 0, right: 0, masks: [0; 4] };
        Self {
            format: meta.format().into_glib(),
            width: meta.width(),
            height: meta.height(),
            flags: meta.video_frame_flags().bits(),
            alignment: (alignment != none).then_some(alignment),
        }
    }

    /// Whether a reader that has the caps would miss it.
    fn says_more_than(&self, info: &gst_video::VideoInfo) -> bool {
        let of_caps = Self {
            format: info.format().into_glib(),
            width: info.width(),
            height: info.height(),
            flags: 0,
            alignment: None,
        };
        *self != of_caps
    }
}

impl TimeCode {
    /// Nothing where the time code's date cannot be written.
    fn of(time_code: &gst_video::ValidVideoTimeCode) -> Option<Self> {
        let daily_jam =
            time_code.latest_daily_jam().map(|jam| jam.format("%Y-%m-%dT%H:%M:%S.%f%:z")).transpose().ok()?;
        Some(Self {
            fps: (time_code.fps().numer(), time_code.fps().denom()),
            flags: time_code.flags().bits(),
            time: [time_code.hours(), time_code.minutes(), time_code.seconds()],
            frames: time_code.frames(),
            field_count: time_code.field_count(),
            daily_jam: daily_jam.map(Into::into),
        })
    }

    fn time_code(&self) -> Option<gst_video::ValidVideoTimeCode> {
        let (numerator, denominator) = self.fps;
        if numerator <= 0 || denominator <= 0 {
            return None;
        }
        let jam = match &self.daily_jam {
            Some(text) => Some(glib::DateTime::from_iso8601(text, None).ok()?),
            None => None,
        };
        let [hours, minutes, seconds] = self.time;
        gst_video::ValidVideoTimeCode::new(
            gst::Fraction::new(numerator, denominator),
            jam.as_ref(),
            gst_video::VideoTimeCodeFlags::from_bits_truncate(self.flags),
            hours,
            minutes,
            seconds,
            self.frames,
            self.field_count,
        )
        .ok()
    }
}

/// Refuses what GStreamer would take and break on.
fn check(item: &Item) -> Result<(), MetaError> {
    let fine = match item {
        Item::Video(video) => {
            let named = !matches!(
                video.format(),
                gst_video::VideoFormat::Unknown
                    | gst_video::VideoFormat::Encoded
                    | gst_video::VideoFormat::__Unknown(_)
            );
            let aligned = video.alignment.as_ref().is_none_or(|alignment| {
                let Alignment { top, bottom, left, right, masks } = alignment;
                [top, bottom, left, right].into_iter().chain(masks).all(|value| *value < MAX_PADDING)
                    && masks.iter().all(|mask| (mask + 1).is_power_of_two())
            });
            let sizes = 1..=i32::MAX as u32;
            named && aligned && sizes.contains(&video.width) && sizes.contains(&video.height)
        }
        Item::RegionOfInterest { kind, params, .. } => {
            is_harmless(kind) && params.iter().all(|param| is_harmless(param))
        }
        Item::TimeCode(time_code) => time_code.daily_jam.as_deref().is_none_or(is_harmless),
        Item::ReferenceTimestamp { reference, timestamp, .. } => {
            is_harmless(reference) && *timestamp != u64::MAX
        }
        Item::Custom { name, tags, structure } => {
            let fine = |tag: &String| tag.len() <= MAX_TAG && !tag.contains('\0');
            is_type_name(name) && is_harmless(structure) && tags.len() <= MAX_TAGS && tags.iter().all(fine)
        }
        Item::Caption { kind, data } => is_caption(*kind) && !data.is_empty(),
        Item::Other { data, .. } => newer::is_sound(data),
        Item::ActiveFormat { field, spec, value } => *field <= MAX_FIELD && is_active_format(*spec, *value),
        Item::Bar { field, .. } => *field <= MAX_FIELD,
        Item::Crop(_) => true,
        Item::Audio(audio) => audio.is_sound(),
    };
    if fine { Ok(()) } else { Err(MetaError::Impossible(item.what())) }
}

impl Item {
    fn what(&self) -> &'static str {
        match self {
            Self::Video(_) => "video meta",
            Self::Crop(_) => "crop meta",
            Self::RegionOfInterest { .. } => "region of interest",
            Self::TimeCode(_) => "time code",
            Self::ReferenceTimestamp { .. } => "reference timestamp",
            Self::Custom { .. } => "custom meta",
            Self::Caption { .. } => "closed caption",
            Self::ActiveFormat { .. } => "active format description",
            Self::Bar { .. } => "bar meta",
            Self::Other { .. } => "meta of GStreamer's own form",
            Self::Audio(_) => "audio meta",
        }
    }
}

/// Whether GStreamer knows this kind of closed caption; there is no meta for another one.
fn is_caption(kind: i32) -> bool {
    use gst_video::VideoCaptionType as Kind;
    let kind = Kind::from_raw(kind);
    matches!(kind, Kind::Cea608Raw | Kind::Cea608S3341a | Kind::Cea708Raw | Kind::Cea708Cdp)
}

/// Whether a specification of active formats has this value: there is no meta for another one.
fn is_active_format(spec: i32, value: i32) -> bool {
    use gst_video::VideoAFDSpec as Spec;
    match FromRaw::from_raw(spec) {
        Spec::DvbEtsi => matches!(value, 2..=4 | 8..=11 | 13..=15),
        Spec::AtscA53 | Spec::SmpteSt20161 => matches!(value, 0 | 2..=4 | 8..=11 | 13..=15),
        _ => false,
    }
}

/// Whether GObject takes this text as the name of a type.
fn is_type_name(name: &str) -> bool {
    (3..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_+".contains(&c))
}

fn add(item: &Item, buffer: &mut gst::BufferRef) -> Result<(), MetaError> {
    let impossible = || MetaError::Impossible(item.what());
    let structure = |text: &String| parse_structure(text).ok_or_else(impossible);
    match item {
        Item::Video(_) => {}
        Item::Crop([x, y, width, height]) => {
            gst_video::VideoCropMeta::add(buffer, (*x, *y, *width, *height));
        }
        Item::RegionOfInterest { kind, id, parent, rect: [x, y, width, height], params } => {
            let params = params.iter().map(structure).collect::<Result<Vec<_>, _>>()?;
            let mut region =
                gst_video::VideoRegionOfInterestMeta::add(buffer, kind, (*x, *y, *width, *height));
            region.set_id(*id);
            region.set_parent_id(*parent);
            params.into_iter().for_each(|param| region.add_param(param));
        }
        Item::TimeCode(time_code) => {
            let time_code = time_code.time_code().ok_or_else(impossible)?;
            gst_video::VideoTimeCodeMeta::add(buffer, &time_code);
        }
        Item::ReferenceTimestamp { reference, timestamp, duration } => {
            let reference = parse_caps(reference).ok_or_else(impossible)?;
            let duration = duration.filter(|duration| *duration != u64::MAX);
            gst::ReferenceTimestampMeta::add(
                buffer,
                &reference,
                gst::ClockTime::from_nseconds(*timestamp),
                duration.map(gst::ClockTime::from_nseconds),
            );
        }
        Item::Custom { name, tags, structure: text } => {
            let content = structure(text)?;
            if content.name() != name.as_str() {
                return Err(impossible());
            }
            register_custom(name, tags);
            let mut meta = gst::meta::CustomMeta::add(buffer, name).map_err(|_| impossible())?;
            let fields = meta.mut_structure();
            content.iter().for_each(|(field, value)| fields.set_value(field, value.clone()));
        }
        Item::Caption { kind, data } => {
            gst_video::VideoCaptionMeta::add(buffer, FromRaw::from_raw(*kind), data);
        }
        Item::ActiveFormat { field, spec, value } => {
            gst_video::VideoAFDMeta::add(buffer, *field, FromRaw::from_raw(*spec), FromRaw::from_raw(*value));
        }
        Item::Audio(audio) => return if audio.add(buffer) { Ok(()) } else { Err(impossible()) },
        Item::Bar { field, is_letterbox, first, second } => {
            gst_video::VideoBarMeta::add(buffer, *field, *is_letterbox, *first, *second);
        }
        Item::Other { version, .. } if *version != newer::version() => {
            let here = newer::version();
            gst::debug!(super::CAT, "A meta that GStreamer {version:?} wrote is left out here, in {here:?}");
        }
        Item::Other { data, .. } => {
            if !newer::add(data, buffer) {
                // Perhaps of a plugin that only the exporter has loaded.
                gst::debug!(super::CAT, "A meta of {} bytes means nothing to this process", data.len());
            }
        }
    }
    Ok(())
}

/// Makes a custom meta's name known here as its sender knows it, if it may be.
fn register_custom(name: &str, tags: &[String]) {
    // A type stays for as long as the process lives.
    static REGISTERED: Mutex<usize> = Mutex::new(0);
    let is_taken = |name: &str| glib::Type::from_name(name).is_some();
    if is_reserved(name) || gst::meta::CustomMeta::is_registered(name) {
        return;
    }
    // Held until it is registered: two frames may bring the same name at once.
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if *registered >= MAX_CUSTOM || is_taken(name) || is_taken(&format!("{name}-api")) {
        return;
    }
    *registered += 1;
    let tags = tags.iter().map(String::as_str).collect::<Vec<_>>();
    gst::meta::CustomMeta::register(name, &tags);
}

/// Whether a library registers types of such names itself, often only when it first needs them: once another has such
/// a name, whoever needs the library's waits for ever.
fn is_reserved(name: &str) -> bool {
    name.strip_prefix('G').is_some_and(|rest| {
        rest.starts_with("st")
            || rest.starts_with("Obj")
            || rest.starts_with(|c: char| c.is_ascii_uppercase())
    })
}

#[cfg(test)]
mod tests;
