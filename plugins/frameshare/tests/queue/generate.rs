// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs from seeds. A seed always gives the same program.

use crate::program::{Buffer, Consumer, MS, Media, Meta, Program, RATES, SIZES, Segment, Step};
use frameshare_tests::random::Random;

/// Time of a source that counts from 1970, in ms.
const SINCE_1970: u64 = 1_760_000_000_000;
/// Length of a segment that ends, in ms: behind all of its buffers.
const LENGTH: u64 = 100 * 3_600_000;
/// Frames that a reader may leave untaken: more would stop the exporter, which waits for it.
const UNTAKEN: u64 = 8;

/// Decoding and presentation times of encoded video.
#[derive(Clone, Copy)]
enum Order {
    Intra,
    /// Two B-frames between the others.
    Reordered,
    DecodingOnly,
    PresentationOnly,
    None,
}

struct Source {
    random: Random,
    media: Media,
    order: Order,
    caps: u8,
    period: u64,
    segment: Segment,
    /// Position of the next buffer in the segment, and its number.
    position: u64,
    number: u64,
    streams: u8,
}

/// Returns the program of a seed.
pub fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let media = pick(&mut random, &[Media::Gray, Media::Sound, Media::H264, Media::Images, Media::Bytes]);
    let order = pick(
        &mut random,
        &[Order::Intra, Order::Reordered, Order::DecodingOnly, Order::PresentationOnly, Order::None],
    );
    let period = pick(&mut random, &[20 * MS, 33_366_667, 40 * MS, 60_000 * MS]);
    let mut source = Source {
        random,
        media,
        order,
        caps: 0,
        period,
        segment: Segment { rate: 1.0, applied_rate: 1.0, ..Segment::default() },
        position: 0,
        number: 0,
        streams: 0,
    };
    let steps = source.steps();
    Program { media, steps }
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

impl Source {
    fn one_in(&mut self, chances: u64) -> bool {
        self.random.below(chances) == 0
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = vec![Step::Stream(0)];
        self.streams = 1;
        if self.one_in(3) {
            self.segment = self.any_segment();
        }
        let segment = Step::Segment(self.segment);
        if self.one_in(2) {
            steps.extend([self.caps(), segment]);
        } else {
            steps.extend([self.caps(), Step::Tags { is_global: self.one_in(2), title: 0 }, segment]);
        }
        let is_live = self.one_in(2);
        let is_lossless = !self.one_in(4);
        let consumer = pick(&mut self.random, &[Consumer::Recorder, Consumer::Viewer, Consumer::Other]);
        let join = Step::Join { is_live, is_lossless, consumer };
        if self.one_in(3) {
            for _ in 0..1 + self.random.below(6) {
                let step = self.step();
                steps.push(step);
            }
        }
        steps.push(join.clone());
        for _ in 0..5 + self.random.below(25) {
            match self.random.below(40) {
                0 => steps.extend([Step::Leave, join.clone()]),
                1 | 2 => {
                    steps.push(Step::Pause);
                    self.some_buffers(&mut steps);
                    steps.push(Step::Play(self.random.below(60)));
                }
                3 => {
                    let is_begin =
                        |step: &Step| matches!(step, Step::Join { .. } | Step::Restart | Step::Switch);
                    let mut since = steps.iter().rev().take_while(|step| !is_begin(step));
                    let has_units = since.any(|step| matches!(step, Step::Buffer(buffer) if buffer.is_key()));
                    let next = if has_units && self.one_in(2) { Step::Switch } else { Step::Restart };
                    steps.extend([next, Step::Stream(0), Step::Caps(self.caps)]);
                    steps.push(Step::Segment(self.segment));
                }
                4 => {
                    steps.push(Step::Sleep(20 + self.random.below(60)));
                    self.some_buffers(&mut steps);
                }
                _ => {
                    let step = self.step();
                    steps.push(step);
                }
            }
        }
        steps.push(Step::Eos);
        steps
    }

    fn some_buffers(&mut self, steps: &mut Vec<Step>) {
        for _ in 0..self.random.below(UNTAKEN) {
            steps.push(Step::Buffer(self.buffer()));
        }
    }

    fn step(&mut self) -> Step {
        match self.random.below(30) {
            0 => self.caps(),
            1 => Step::Segment(self.next_segment()),
            2 => {
                self.number += 1;
                let pts = self.pts(self.position);
                let duration = (!self.one_in(4)).then_some(self.period);
                self.position += self.period;
                Step::Gap { pts, duration }
            }
            3 => Step::Tags { is_global: self.one_in(2), title: self.random.below(4) as u8 },
            4 => Step::Custom { is_sticky: self.one_in(2), number: self.random.below(4) as u8 },
            5 => Step::Flush(self.next_segment()),
            _ => Step::Buffer(self.buffer()),
        }
    }

    fn caps(&mut self) -> Step {
        self.caps = self.random.below(3) as u8;
        Step::Caps(self.caps)
    }

    /// Its running time begins behind that of the present one.
    fn next_segment(&mut self) -> Segment {
        self.segment.base += ((self.position + 20 * self.period) as f64 / self.segment.rate) as u64;
        self.segment = self.any_segment();
        self.position = 0;
        self.segment
    }

    fn any_segment(&mut self) -> Segment {
        let start = pick(&mut self.random, &[0, 5, 3_600_000, SINCE_1970]) * MS;
        Segment {
            rate: pick(&mut self.random, &[1.0, 1.0, 2.0, 0.5]),
            applied_rate: pick(&mut self.random, &[1.0, 1.0, 2.0]),
            start,
            stop: self.one_in(3).then_some(start + LENGTH * MS),
            time: pick(&mut self.random, &[0, start, 7000 * MS]),
            base: self.segment.base,
            offset: pick(&mut self.random, &[0, 0, 0, 10 * MS]),
        }
    }

    fn pts(&self, position: u64) -> u64 {
        self.segment.start + self.segment.offset + position
    }

    fn buffer(&mut self) -> Buffer {
        let number = self.number;
        self.number += 1;
        let position = self.position;
        self.position += if self.one_in(12) { 9 * self.period } else { self.period };
        let at = self.pts(position);
        let is_video = self.media == Media::H264;
        let key = number.is_multiple_of(7) || matches!(self.order, Order::Intra);
        let is_timeless = self.one_in(9);
        let (pts, dts) = match self.order {
            _ if !is_video && is_timeless => (None, None),
            _ if !is_video => (Some(at), None),
            Order::Intra => (Some(at), Some(at)),
            Order::Reordered => (Some(at + [0, 3, 0][number as usize % 3] * self.period), Some(at)),
            Order::DecodingOnly => (None, Some(at)),
            Order::PresentationOnly => (Some(at), None),
            Order::None => (None, None),
        };
        let size = match self.media {
            Media::Gray => {
                let (width, height) = SIZES[self.caps as usize];
                (width.next_multiple_of(4) * height) as usize
            }
            Media::Sound => 4 * (RATES[self.caps as usize] as usize / 50),
            _ => [1 + self.random.below(3000), 1, 70_000][self.random.below(3) as usize] as usize,
        };
        let mut flags = [0, 0, 0, DISCONT, MARKER, DROPPABLE, GAP, CORRUPTED][self.random.below(8) as usize];
        if is_video && !key {
            flags |= DELTA;
        }
        Buffer {
            content: self.random.word(),
            size,
            parts: 1 + self.random.below(3) as u8,
            pts,
            dts,
            duration: (!self.one_in(4)).then_some(self.period),
            offset: (!self.one_in(3)).then_some(number),
            flags,
            metas: self.metas(),
        }
    }

    fn metas(&mut self) -> Vec<Meta> {
        let count = [0, 0, 1, 3][self.random.below(4) as usize];
        let number = self.random.below(1000);
        let metas = [Meta::Region(number as u32), Meta::Reference(number), Meta::Custom(number as u32)];
        let mut picked: Vec<_> = (0..count).map(|_| pick(&mut self.random, &metas)).collect();
        // Copies of a buffer have one timestamp of a reference (GStreamer 1.26).
        let mut has_reference = false;
        picked.retain(|meta| {
            !matches!(meta, Meta::Reference(_)) || !std::mem::replace(&mut has_reference, true)
        });
        picked
    }
}

const DISCONT: u32 = gst::ffi::GST_BUFFER_FLAG_DISCONT;
const MARKER: u32 = gst::ffi::GST_BUFFER_FLAG_MARKER;
const DROPPABLE: u32 = gst::ffi::GST_BUFFER_FLAG_DROPPABLE;
const GAP: u32 = gst::ffi::GST_BUFFER_FLAG_GAP;
const CORRUPTED: u32 = gst::ffi::GST_BUFFER_FLAG_CORRUPTED;
const DELTA: u32 = gst::ffi::GST_BUFFER_FLAG_DELTA_UNIT;
