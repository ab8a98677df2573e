// SPDX-License-Identifier: MIT OR Apache-2.0

//! Compares the output of a `queue` with a connection of `framesharesrc`. The table of
//! docs/elements.md, "The same as a queue", has all that may differ; the rest is reported.

use crate::{
    make::{CUSTOM_META, ms},
    program::Media,
    run::{Connection, Item, Outcome},
};
use frameshare_tests::content::checksum;
use gst::ClockTime;
use gstframeshare::FrameshareMeta;
use std::collections::{BTreeMap, HashMap};

/// Rounding of a time that was scaled by a rate and back, in ns.
const ROUNDING: i128 = 2;

type Segment = gst::FormattedSegment<ClockTime>;

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    /// A sticky event: its place among the sticky events, and its content.
    Sticky(String, String),
    Passing(String),
    Gap(Times),
    /// The next buffer follows a flush.
    Flush,
    Unit(Box<Unit>),
}

impl Entry {
    fn is_segment(&self) -> bool {
        matches!(self, Self::Sticky(kind, _) if kind == "segment")
    }
}

/// The events up to a unit, and the unit with its position. The last group has none.
#[derive(Default)]
struct Group {
    events: Vec<Entry>,
    is_flushed: bool,
    unit: Option<(usize, Box<Unit>)>,
}

impl Group {
    /// Takes the next group out of entries with their positions.
    fn next(entries: &mut impl Iterator<Item = (usize, Entry)>) -> Self {
        let mut group = Self::default();
        for (position, entry) in entries {
            match entry {
                Entry::Unit(unit) => {
                    group.unit = Some((position, unit));
                    break;
                }
                Entry::Flush => group.is_flushed = true,
                entry => group.events.push(entry),
            }
        }
        group
    }

    /// Joins the next group: the unit of this one is lost.
    fn join(&mut self, next: Self) {
        self.events.extend(next.events);
        self.is_flushed |= next.is_flushed;
        self.unit = next.unit;
    }
}

/// Times as they were sent, and as running times.
#[derive(Clone, Debug, PartialEq)]
struct Times {
    pts: Option<u64>,
    dts: Option<u64>,
    duration: Option<u64>,
    running: Option<i128>,
    running_dts: Option<i128>,
    running_duration: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Unit {
    times: Times,
    /// Size in bytes and checksum.
    content: (usize, String),
    offsets: (u64, u64),
    flags: gst::BufferFlags,
    metas: Vec<String>,
    /// The number of its exporter, its own number there, and the number of lost ones before it.
    exporter: usize,
    sequence: u64,
    lost_before: u64,
}

/// Turns the items of a pad into entries.
#[derive(Default)]
struct Reading {
    segment: Segment,
    /// Width of a row of raw video in bytes.
    width: Option<usize>,
    sticky: BTreeMap<String, String>,
    /// The numbers of exporters, by their sessions.
    sessions: HashMap<u64, usize>,
    exporter: usize,
    sequence: u64,
}

impl Reading {
    fn entry(&mut self, item: &Item) -> Option<Entry> {
        match item {
            Item::Buffer(buffer) => {
                self.sequence += 1;
                Some(Entry::Unit(Box::new(self.unit(buffer))))
            }
            Item::Event(event) => self.event(event),
        }
    }

    fn event(&mut self, event: &gst::Event) -> Option<Entry> {
        match event.view() {
            gst::EventView::StreamStart(start) => {
                // The id of a source has the source's name behind that of its exporter.
                let id = start.stream_id().split('/').next().unwrap_or_default();
                self.sticky("stream-start", format!("{id} {:?}", start.stream_flags()))
            }
            gst::EventView::Caps(caps) => {
                let mut caps = caps.caps_owned();
                let structure = caps.structure(0)?;
                let width = structure.get::<i32>("width").ok().filter(|_| structure.name() == "video/x-raw");
                self.width = width.map(|width| width as usize);
                caps.make_mut().set_features_simple(None);
                // In an order that does not depend on the way of the caps.
                let mut fields = caps.to_string().split(", ").map(str::to_owned).collect::<Vec<_>>();
                fields.sort();
                self.sticky("caps", fields.join(", "))
            }
            gst::EventView::Segment(event) => {
                self.segment = event.segment().downcast_ref::<ClockTime>()?.clone();
                let segment = &self.segment;
                self.sticky(
                    "segment",
                    format!(
                        "{} {} {:?} {:?} {:?}",
                        segment.rate(),
                        segment.applied_rate(),
                        segment.start(),
                        segment.stop(),
                        segment.time()
                    ),
                )
            }
            gst::EventView::Tag(tag) => {
                let list = tag.tag();
                self.sticky(&format!("{:?} tags", list.scope()), list.to_string())
            }
            gst::EventView::CustomDownstreamSticky(event) => {
                self.sticky("custom", event.structure()?.to_string())
            }
            gst::EventView::CustomDownstream(event) => Some(Entry::Passing(event.structure()?.to_string())),
            gst::EventView::Gap(gap) => {
                let (pts, duration) = gap.get();
                Some(Entry::Gap(self.times(Some(pts), None, duration)))
            }
            gst::EventView::FlushStop(_) => Some(Entry::Flush),
            gst::EventView::FlushStart(_) => None,
            gst::EventView::Eos(_) => Some(Entry::Passing("eos".into())),
            _ => Some(Entry::Passing(format!("{:?}", event.type_()))),
        }
    }

    /// Sticky events that change nothing are as good as none.
    fn sticky(&mut self, kind: &str, content: String) -> Option<Entry> {
        let before = self.sticky.insert(kind.into(), content.clone());
        (before.as_ref() != Some(&content)).then(|| Entry::Sticky(kind.into(), content))
    }

    fn times(&self, pts: Option<ClockTime>, dts: Option<ClockTime>, duration: Option<ClockTime>) -> Times {
        let running = |time: Option<ClockTime>| match self.segment.to_running_time_full(time?)? {
            gst::Signed::Positive(time) => Some(i128::from(time.nseconds())),
            gst::Signed::Negative(time) => Some(-i128::from(time.nseconds())),
        };
        let rate = self.segment.rate().abs();
        let ns = |time: Option<ClockTime>| time.map(ClockTime::nseconds);
        Times {
            pts: ns(pts),
            dts: ns(dts),
            duration: ns(duration),
            running: running(pts),
            running_dts: running(dts),
            running_duration: ns(duration).map(|duration| (duration as f64 / rate) as u64),
        }
    }

    /// The bytes without those behind the end of a row.
    fn visible(&self, content: Vec<u8>) -> Vec<u8> {
        match self.width {
            Some(width) => {
                let rows = content.chunks(width.next_multiple_of(4));
                rows.flat_map(|row| &row[..width.min(row.len())]).copied().collect()
            }
            None => content,
        }
    }

    fn unit(&self, buffer: &gst::Buffer) -> Unit {
        let mut metas = Vec::new();
        buffer.foreach_meta(|meta| {
            if let Some(region) = meta.downcast_ref::<gst_video::VideoRegionOfInterestMeta>() {
                let params = region.params().map(|params| params.to_string()).collect::<Vec<_>>();
                metas.push(format!("{} {:?} {params:?}", region.roi_type(), region.rect()));
            } else if let Some(time) = meta.downcast_ref::<gst::ReferenceTimestampMeta>() {
                metas.push(format!("{} {:?}", time.reference(), time.timestamp()));
            }
            std::ops::ControlFlow::Continue(())
        });
        if let Ok(custom) = gst::meta::CustomMeta::from_buffer(buffer, CUSTOM_META) {
            metas.push(custom.structure().to_string());
        }
        let meta = buffer.meta::<FrameshareMeta>();
        let content = self.visible(buffer.map_readable().unwrap().to_vec());
        Unit {
            times: self.times(buffer.pts(), buffer.dts(), buffer.duration()),
            content: (content.len(), checksum(&content)),
            offsets: (buffer.offset(), buffer.offset_end()),
            flags: buffer.flags() - gst::BufferFlags::TAG_MEMORY,
            metas,
            exporter: meta.as_ref().map_or(self.exporter, |meta| self.sessions[&meta.session()]),
            sequence: meta.as_ref().map_or(self.sequence, |meta| meta.sequence()),
            lost_before: meta.as_ref().map_or(0, |meta| meta.lost_before()),
        }
    }
}

/// Returns what differs in an outcome and should not.
pub fn differences(media: Media, outcome: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    for (index, connection) in outcome.connections.iter().enumerate() {
        let report = Comparison::new(media, outcome, connection).compare();
        found.extend(report.into_iter().map(|what| format!("connection {index}: {what}")));
    }
    found
}

struct Comparison<'a> {
    media: Media,
    connection: &'a Connection,
    /// The queue's output, each entry with its position among the queue's items.
    expected: Vec<(usize, Entry)>,
    /// The units that were kept for the reader are of a segment before the present one.
    is_kept_old: bool,
    got: Vec<Entry>,
    /// The present segment of each side. It comes with the first unit or gap that it is for.
    segments: [Option<Entry>; 2],
    constant: Constant,
    /// No unit has been compared yet, except one that is shown on joining.
    is_first: bool,
    /// The stream opens, with the newest caps, tags and sticky events in front.
    opens: bool,
    /// Position of the last unit.
    last: Option<usize>,
    found: Vec<String>,
}

/// Returns whether times differ by more than their rounding.
fn differ<const COUNT: usize>(wanted: [Option<u64>; COUNT], got: [Option<u64>; COUNT]) -> bool {
    wanted.into_iter().zip(got).any(|pair| match pair {
        (Some(wanted), Some(got)) => i128::from(wanted.abs_diff(got)) > ROUNDING,
        (wanted, got) => wanted != got,
    })
}

/// Takes the segments out of events. Returns the last one.
fn take_segment(events: &mut Vec<Entry>) -> Option<Entry> {
    let last = events.iter().rfind(|entry| entry.is_segment()).cloned();
    events.retain(|entry| !entry.is_segment());
    last
}

/// Returns how many of these places are behind the last unit, up to a position.
fn between(places: &[usize], last: Option<usize>, position: usize) -> usize {
    let is_between = |place: &&usize| **place <= position && last.is_none_or(|last| last < **place);
    places.iter().filter(is_between).count()
}

/// Takes the times of gaps, which are events without times then.
fn take_gaps(events: &mut [Entry]) -> Vec<Times> {
    let mut gaps = Vec::new();
    for event in events {
        if let Entry::Gap(times) = event {
            gaps.push(times.clone());
            *event = Entry::Passing("gap".into());
        }
    }
    gaps
}

/// Time of the reader's frames after that of the queue's.
#[derive(Default)]
struct Constant {
    lag: Option<i128>,
    last: Option<i128>,
    /// Number of changes that are allowed yet: one for the first unit, for each next exporter, and,
    /// beside another source, for each pause, which may have found one unit on its way.
    moves: usize,
    /// Number of units since the last of them began.
    since: usize,
    /// As `moves`, for the pauses of a viewer, from whichever unit on: those on their way move too.
    pauses: usize,
    /// The last unit that had a time was followed by one with DISCONT.
    is_marked: bool,
}

impl Constant {
    fn allow(&mut self, moves: usize) {
        self.moves += moves;
        if moves > 0 {
            self.since = 0;
        }
    }

    fn may_move(&self) -> bool {
        self.moves + self.pauses > 0
    }

    fn has_moved(&mut self) {
        match self.moves {
            0 => self.pauses = self.pauses.saturating_sub(1),
            _ => self.moves -= 1,
        }
    }
}

impl<'a> Comparison<'a> {
    fn new(media: Media, outcome: &Outcome, connection: &'a Connection) -> Self {
        let mut reading = Reading::default();
        let mut expected = Vec::new();
        let (mut kept, mut is_kept_old) = (Vec::new(), false);
        // Nothing can be decoded before the first key unit.
        let mut lacks_key = media == Media::H264;
        for position in 0..=connection.until {
            if position == connection.from {
                // The sticky events of the present stream, then what the sink keeps for readers.
                let sticky = reading.sticky.clone().into_iter();
                expected.extend(sticky.map(|(kind, content)| (position, Entry::Sticky(kind, content))));
                if connection.skips_pauses() && media == Media::H264 {
                    kept.clear(); // they can be neither moved nor shown
                }
                lacks_key = media == Media::H264 && kept.is_empty();
                expected.append(&mut kept);
            }
            if position == connection.until {
                break;
            }
            let item = &outcome.of_queue[position];
            let restarts = outcome.restarts.iter().filter(|at| **at == position).count();
            if restarts > 0 {
                (reading.exporter, reading.sequence) = (reading.exporter + restarts, 0);
                kept.clear();
                lacks_key = media == Media::H264;
                // The next exporter knows nothing of them.
                if position < connection.from {
                    reading.sticky.retain(|kind, _| !kind.ends_with("tags") && kind != "custom");
                }
            }
            // One with another base changes the place of those that were kept.
            let is_segment = matches!(item, Item::Event(event) if event.type_() == gst::EventType::Segment);
            is_kept_old |= is_segment && !kept.is_empty();
            let Some(entry) = reading.entry(item) else { continue };
            match &entry {
                Entry::Sticky(kind, _) if kind == "caps" => kept.clear(),
                Entry::Flush if !kept.is_empty() => kept.push((position, Entry::Flush)),
                _ => {}
            }
            let is_delta = match &entry {
                Entry::Unit(unit) => unit.flags.contains(gst::BufferFlags::DELTA_UNIT),
                _ => false,
            };
            let is_unit = matches!(entry, Entry::Unit(_));
            lacks_key &= !is_unit || is_delta;
            if is_unit && lacks_key {
                continue;
            }
            if position >= connection.from {
                expected.push((position, entry));
            } else if is_unit {
                match media {
                    // Units that follow a key unit are kept with it only.
                    Media::H264 if is_delta && kept.is_empty() => {}
                    Media::H264 if is_delta => kept.push((position, entry)),
                    Media::H264 | Media::Images | Media::Gray => {
                        (kept, is_kept_old) = (vec![(position, entry)], false);
                    }
                    Media::Sound | Media::Bytes => {}
                }
            }
        }
        let mut reading = Reading { sessions: outcome.sessions.clone(), ..Reading::default() };
        let got = connection.got.iter().filter_map(|item| reading.entry(item)).collect();
        let pauses = if connection.moves_at_pauses() { connection.pauses.len() } else { 0 };
        Self {
            media,
            connection,
            expected,
            is_kept_old,
            got,
            segments: [None, None],
            constant: Constant { pauses, ..Constant::default() },
            is_first: true,
            opens: true,
            last: None,
            found: Vec::new(),
        }
    }

    fn compare(mut self) -> Vec<String> {
        let mut expected = std::mem::take(&mut self.expected).into_iter();
        let mut got = std::mem::take(&mut self.got).into_iter().enumerate();
        while self.compare_next(Group::next(&mut got), &mut expected) {}
        self.found
    }

    /// Compares the reader's next unit and what is in front of it. Returns whether others may
    /// follow.
    fn compare_next(&mut self, got: Group, rest: &mut impl Iterator<Item = (usize, Entry)>) -> bool {
        let mut wanted = Group::next(rest);
        if got.is_flushed {
            self.found.push("the reader flushes".into());
        }
        let Some((_, unit)) = got.unit else {
            self.end(wanted, got.events);
            return false;
        };
        let is_other = |(_, wanted): &(usize, Box<Unit>)| {
            (wanted.exporter, wanted.sequence) != (unit.exporter, unit.sequence)
        };
        let mut lost = 0;
        while wanted.unit.as_ref().is_some_and(is_other) {
            lost += 1;
            wanted.join(Group::next(rest));
        }
        let Some((position, wanted_unit)) = wanted.unit else {
            self.found.push(format!("unit {} is none of the queue's: {unit:?}", unit.sequence));
            return false;
        };
        let since = self.last.replace(position);
        let restarts = between(&self.connection.restarts, since, position);
        let pauses = match self.connection.skips_pauses() {
            true => between(&self.connection.pauses, since, position),
            false => 0,
        };
        self.constant.allow(usize::from(self.is_first) + restarts + pauses);
        self.opens = self.is_first || restarts > 0;
        self.events(wanted.events, got.events);
        let skips = self.constant.may_move() && self.connection.skips_pauses();
        let may_lose = self.is_first || skips || !self.connection.is_lossless;
        if lost > 0 && !may_lose {
            self.found.push(format!("{lost} units are missing before unit {}", unit.sequence));
        }
        // Frames that a stopped exporter has not handed over are counted in `stats` alone.
        let is_marked = unit.lost_before == lost && unit.flags.contains(gst::BufferFlags::DISCONT);
        if lost > 0 && !self.is_first && restarts == 0 && !is_marked {
            let (counted, flags) = (unit.lost_before, unit.flags);
            let number = unit.sequence;
            self.found
                .push(format!("unit {number} follows {lost} lost ones, says {counted}, and has {flags:?}"));
        }
        let breaks = self.constant.may_move() || lost > 0 || wanted.is_flushed;
        self.constant.is_marked |= unit.flags.contains(gst::BufferFlags::DISCONT);
        self.unit(&wanted_unit, &unit, breaks);
        let is_kept = position < self.connection.from;
        let is_shown_now = match self.media {
            Media::Gray => is_kept && self.connection.is_live,
            Media::Images => is_kept && self.connection.skips_pauses(),
            _ => false,
        };
        // Units of a segment before the present one come in the present one.
        let is_old = is_kept && self.is_kept_old && !self.connection.is_live;
        let is_exact = !self.connection.is_live && !is_old;
        if is_exact && self.segments[0] != self.segments[1] {
            let [wanted, got] = &self.segments;
            self.found.push(format!("unit {}: {got:?} instead of {wanted:?}", unit.sequence));
        }
        if !is_shown_now && !is_old {
            self.times(&wanted_unit, &unit, is_kept, is_exact);
        }
        self.is_first = is_shown_now;
        true
    }

    /// Compares the rest behind the reader's last unit.
    fn end(&mut self, wanted: Group, got: Vec<Entry>) {
        let until = self.connection.until;
        let pauses = between(&self.connection.pauses, self.last, until);
        let Some((position, unit)) = wanted.unit else {
            let restarts = between(&self.connection.restarts, self.last, until);
            self.opens = self.is_first || restarts > 0;
            self.constant.moves += restarts + pauses;
            return self.last_events(wanted.events, got);
        };
        // No key unit has come since the last loss, or the reader stood still for so long that
        // messages wait for it, and no further frame is offered.
        let may_lack_units = !self.connection.is_lossless;
        let may_skip = self.connection.skips_pauses() && (self.constant.may_move() || pauses > 0);
        // The stream ended before the last picture was of use.
        let was_too_late = self.media == Media::Gray && position < self.connection.from;
        if !may_lack_units && !may_skip && !was_too_late {
            self.found.push(format!("a unit is missing: {unit:?}, and all behind it"));
        }
    }

    /// The events behind the last unit. A segment comes with its first unit only, and a reader that
    /// leaves may not have got the others.
    fn last_events(&mut self, mut wanted: Vec<Entry>, mut got: Vec<Entry>) {
        let is_eos = |entry: &Entry| *entry == Entry::Passing("eos".into());
        take_segment(&mut wanted);
        take_segment(&mut got);
        match wanted.last().is_some_and(is_eos) {
            true => self.events(wanted, got),
            false if got.iter().any(is_eos) => self.found.push("EOS, and the stream goes on".into()),
            false => {}
        }
    }

    fn events(&mut self, mut wanted: Vec<Entry>, mut got: Vec<Entry>) {
        let count = |events: &[Entry]| events.iter().filter(|event| event.is_segment()).count();
        let segments = count(&got);
        // A live source opens its stream with the caps, and places it with the first unit.
        let is_live = self.connection.is_live;
        if !is_live && segments > count(&wanted).max(1) {
            self.found.push(format!("{segments} segments before one unit"));
        }
        for (present, events) in self.segments.iter_mut().zip([&mut wanted, &mut got]) {
            *present = take_segment(events).or(present.take());
        }
        if self.connection.is_live && (self.constant.lag.is_none() || self.constant.may_move()) {
            // They may lie before the pipeline began, or in the pause.
            wanted.retain(|event| !matches!(event, Entry::Gap(_)));
            got.retain(|event| !matches!(event, Entry::Gap(_)));
        }
        let gaps = [take_gaps(&mut wanted), take_gaps(&mut got)];
        for (wanted, got) in gaps[0].iter().zip(&gaps[1]) {
            self.gap(wanted, got);
        }
        // Only the last sticky event of a kind counts.
        let last = |entries: &mut Vec<Entry>| {
            let all = entries.clone();
            let mut index = 0;
            entries.retain(|entry| {
                index += 1;
                match entry {
                    Entry::Sticky(kind, _) => !all[index..]
                        .iter()
                        .any(|later| matches!(later, Entry::Sticky(other, _) if other == kind)),
                    _ => true,
                }
            });
        };
        if self.opens {
            last(&mut wanted);
            last(&mut got);
            let key = |entry: &Entry| format!("{entry:?}");
            wanted.sort_by_key(key);
            got.sort_by_key(key);
        }
        if wanted != got {
            self.found.push(format!("events:\n      queue      {wanted:?}\n      framesharesrc {got:?}"));
        }
    }

    fn gap(&mut self, wanted: &Times, got: &Times) {
        let is_wrong = match self.connection.is_live {
            true => differ([wanted.running_duration], [got.duration]),
            false => differ([wanted.pts, wanted.duration], [got.pts, got.duration]),
        };
        let lag = got.running.zip(wanted.running).map(|(got, wanted)| got - wanted);
        let is_moved = lag.zip(self.constant.lag).is_some_and(|(lag, known)| (lag - known).abs() > ROUNDING);
        if is_wrong || (is_moved && !self.constant.may_move()) {
            self.found.push(format!("a gap {got:?} instead of {wanted:?}"));
        }
    }

    fn unit(&mut self, wanted: &Unit, got: &Unit, breaks: bool) {
        let number = got.sequence;
        let mut say = |what: &str, wanted: String, got: String| {
            self.found.push(format!("unit {number}: {what} {got} instead of {wanted}"));
        };
        if wanted.content != got.content {
            say("content", format!("{:?}", wanted.content), format!("{:?}", got.content));
        }
        if wanted.offsets != got.offsets {
            say("offsets", format!("{:?}", wanted.offsets), format!("{:?}", got.offsets));
        }
        let discont = gst::BufferFlags::DISCONT;
        let (mut flags, mut found) = (wanted.flags, got.flags);
        if breaks {
            flags -= discont;
            found -= discont;
        }
        if flags != found {
            say("flags", format!("{flags:?}"), format!("{found:?}"));
        }
        let (mut metas, mut found) = (wanted.metas.clone(), got.metas.clone());
        metas.sort();
        found.sort();
        if metas != found {
            say("metas", format!("{metas:?}"), format!("{found:?}"));
        }
    }

    fn times(&mut self, wanted: &Unit, got: &Unit, is_kept: bool, is_exact: bool) {
        let constant = &mut self.constant;
        let number = got.sequence;
        let (times, own) = (&wanted.times, &got.times);
        if is_exact && differ([times.pts, times.dts, times.duration], [own.pts, own.dts, own.duration]) {
            self.found.push(format!("unit {number}: times {own:?} instead of {times:?}"));
        }
        // The last kept unit is on display until the segment begins.
        let may_last = self.connection.moves_at_pauses() && is_kept && times.duration.is_none();
        if self.connection.is_live && !may_last && differ([times.running_duration], [own.duration]) {
            let (found, sent) = (own.duration, times.running_duration);
            self.found.push(format!("unit {number}: duration {found:?} instead of {sent:?}"));
        }
        let mut has_moved = false;
        let pairs = [("PTS", times.running, own.running), ("DTS", times.running_dts, own.running_dts)];
        for (name, sent, found) in pairs {
            match (sent, found) {
                (Some(sent), Some(found)) => {
                    let lag = found - sent;
                    let moved = constant.lag.map_or(0, |known| lag - known);
                    let may_move = constant.may_move();
                    if moved.abs() > ROUNDING {
                        constant.has_moved();
                    }
                    if moved.abs() > ROUNDING && !may_move {
                        self.found.push(format!("unit {number}: {name} is moved by {}", ms(moved)));
                    } else {
                        constant.lag = Some(lag);
                        has_moved |= moved.abs() > ROUNDING;
                    }
                }
                (None, None) => {}
                (sent, found) => {
                    self.found.push(format!("unit {number}: {name} {found:?} instead of {sent:?}"));
                }
            }
        }
        constant.since += usize::from(own.running.or(own.running_dts).is_some());
        if constant.since > 2 {
            constant.moves = 0;
        }
        // Decoding times, or presentation times without them, do not go back at a pause.
        let time = own.running_dts.or(own.running);
        if let (Some(last), Some(time)) = (constant.last, time)
            && has_moved
            && time < last
            && !constant.is_marked
        {
            self.found.push(format!("unit {number}: the time falls by {} without DISCONT", ms(last - time)));
        }
        constant.last = time.or(constant.last);
        constant.is_marked &= time.is_none();
    }
}
