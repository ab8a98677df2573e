// SPDX-License-Identifier: MIT OR Apache-2.0

//! JPEG pictures of a stream of frames, newest only.

use super::{
    identity::Identity,
    source::{Client, Source, Subscription, reading},
};
use axum::body::Bytes;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Size and rate of pictures.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Name of the reader.
    pub name: &'static str,
    pub width: u32,
    pub quality: u32,
    /// Maximum number of pictures in a second.
    pub rate: u32,
}

impl Size {
    /// A picture among others.
    pub const TILE: Self = Self { name: "tiles", width: 384, quality: 72, rate: 5 };
    /// The only picture.
    pub const FOCUS: Self = Self { name: "pictures", width: 1280, quality: 80, rate: 10 };
}

/// A picture of one frame.
#[derive(Clone, Debug)]
pub struct Picture {
    pub identity: Identity,
    pub jpeg: Bytes,
}

/// The pictures of one stream. Several pages see the same ones.
pub struct Pictures {
    source: Source,
    made: Arc<Made>,
}

/// Receives the reason why there are no pictures; `None` after each picture.
type Report = dyn Fn(Option<&str>) + Send + Sync;

struct Made {
    newest: watch::Sender<Option<Picture>>,
    /// A page has drawn the last picture that it got.
    is_wanted: AtomicBool,
    /// Earliest time of the next picture.
    next: Mutex<Instant>,
    interval: Duration,
    report: Box<Report>,
}

impl Pictures {
    /// Makes pictures of a stream while there are subscribers. `report` receives the reason why
    /// there are none, and `None` after each picture.
    pub fn new(stream: &str, size: Size, report: impl Fn(Option<&str>) + Send + Sync + 'static) -> Self {
        let Size { name, width, quality, rate } = size;
        let source = reading("max-held=4 max-queued=2");
        let pipeline = format!(
            "{source} ! videoconvertscale n-threads=1 ! video/x-raw,width={width},pixel-aspect-ratio=1/1 \
             ! jpegenc quality={quality} ! appsink name=sink sync=false max-buffers=1 drop=true"
        );
        let made = Arc::new(Made {
            newest: watch::Sender::new(None),
            is_wanted: AtomicBool::new(false),
            next: Mutex::new(Instant::now()),
            interval: Duration::from_secs(1) / rate,
            report: Box::new(report),
        });
        Self { source: Source::new(name, stream, pipeline, Arc::clone(&made) as Arc<dyn Client>), made }
    }

    pub fn subscribe(&self) -> (Subscription, watch::Receiver<Option<Picture>>) {
        let subscription = self.source.subscribe();
        self.want();
        (subscription, self.made.newest.subscribe())
    }

    /// Asks for the next picture: without this, none is made.
    pub fn want(&self) {
        self.made.is_wanted.store(true, Relaxed);
    }
}

impl Client for Made {
    fn wants(&self, _: &gst::BufferRef) -> bool {
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        // A frame a little early is taken: its successor would be late by most of a period.
        if now + self.interval / 4 < *next || !self.is_wanted.swap(false, Relaxed) {
            return false;
        }
        // In step with the interval, unless a picture was not wanted for a while.
        *next = (*next + self.interval).max(now);
        true
    }

    fn sample(&self, sample: &gst::Sample) {
        let Some(buffer) = sample.buffer() else { return };
        let Ok(bytes) = buffer.map_readable() else { return };
        let picture =
            Picture { identity: Identity::of(buffer), jpeg: Bytes::copy_from_slice(bytes.as_slice()) };
        self.newest.send_replace(Some(picture));
        (self.report)(None);
    }

    fn failed(&self, why: &str) {
        self.is_wanted.store(true, Relaxed);
        (self.report)(Some(why));
    }
}
