// SPDX-License-Identifier: MIT OR Apache-2.0

//! Units of a camera's encoded stream, for one page. Each page has a reader of its own: it starts
//! at the key unit of the kept GOP.

use super::{
    h264,
    identity::Identity,
    source::{Client, Source, Subscription, reading},
};
use axum::body::Bytes;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::sync::mpsc;

/// Units that wait for a page; beyond them, it gets the next key unit next.
const WAITING: usize = 64;

/// A unit, or what the page must know before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// The format from here on. Without a codec string, browsers cannot decode it.
    Format { media: String, codec: Option<String>, width: i32, height: i32 },
    /// An access unit of H.264 as a byte stream. Key units contain their parameter sets.
    Data { identity: Identity, is_key: bool, bytes: Bytes },
    /// There are no units for this reason.
    Failed(String),
}

/// The units of one stream for one page.
pub struct Units {
    pub receiver: mpsc::Receiver<Unit>,
    _source: Source,
    _subscription: Subscription,
}

impl Units {
    pub fn open(stream: &str) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let client = Reading { sender, stream: Mutex::default(), needs_key: AtomicBool::new(true) };
        let source = reading("max-held=4 max-queued=4");
        let pipeline = format!("{source} ! appsink name=sink sync=false");
        let source = Source::new("units", stream, pipeline, Arc::new(client));
        Self { receiver, _subscription: source.subscribe(), _source: source }
    }
}

struct Reading {
    sender: mpsc::Sender<Unit>,
    stream: Mutex<Stream>,
    needs_key: AtomicBool,
}

/// The format that the page knows, and the converter for it.
#[derive(Default)]
struct Stream {
    caps: Option<gst::Caps>,
    converter: Option<h264::Converter>,
    codec: Option<String>,
}

impl Reading {
    /// Sends the key units, and the delta units behind one that was sent.
    fn send(&self, stream: &mut Stream, sample: &gst::Sample, buffer: &gst::BufferRef) -> Option<()> {
        let is_key = !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
        if !is_key && self.needs_key.load(Relaxed) {
            return None;
        }
        let caps = sample.caps()?.to_owned();
        if stream.caps.as_ref() != Some(&caps) {
            stream.converter = h264::Converter::of(&caps);
            (stream.codec, stream.caps) = (None, Some(caps.clone()));
            if stream.converter.is_none() {
                self.sender.try_send(format_of(&caps, None)).ok()?;
            }
        }
        let converter = stream.converter.as_mut()?;
        let bytes = Bytes::from(converter.convert(buffer.map_readable().ok()?.as_slice(), is_key)?);
        let codec = h264::codec_of(&bytes);
        if is_key && codec.is_some() && codec != stream.codec {
            self.sender.try_send(format_of(&caps, codec.clone())).ok()?;
            stream.codec = codec;
        }
        self.sender.try_send(Unit::Data { identity: Identity::of(buffer), is_key, bytes }).ok()
    }
}

impl Client for Reading {
    fn sample(&self, sample: &gst::Sample) {
        let Some(buffer) = sample.buffer() else { return };
        if buffer.flags().contains(gst::BufferFlags::DISCONT) {
            self.needs_key.store(true, Relaxed);
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sent = self.send(&mut stream, sample, buffer).is_some();
        self.needs_key.store(!is_sent, Relaxed);
    }

    fn failed(&self, why: &str) {
        // A page that is this late will see the next one.
        let _ = self.sender.try_send(Unit::Failed(why.to_owned()));
    }
}

fn format_of(caps: &gst::Caps, codec: Option<String>) -> Unit {
    let structure = caps.structure(0);
    let number = |name| structure.and_then(|caps| caps.get::<i32>(name).ok()).unwrap_or(0);
    let media = structure.map_or_else(String::new, |caps| caps.name().to_string());
    Unit::Format { media, codec, width: number("width"), height: number("height") }
}
