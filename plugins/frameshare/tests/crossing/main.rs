// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of a stream from `framesharesink` to `framesharesrc` in one process: everything besides
//! the pixels.

mod arrival;
mod autoplug;
mod both_ends;
mod camera;
mod events;
mod file;
mod gop;
mod layout;
mod media;
mod memory;
mod metas;
mod numbers;
mod order;
mod peers;
mod plugin_meta;
mod refusal;
mod resend;
mod seek;
mod slow;
mod switch;
mod time;
mod uri;
mod waiting;

use frameshare_tests::{content::bytes as noise, process::wait_until};
use gst::prelude::*;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Once, mpsc},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);
const GRAY: &str =
    "video/x-raw, format=(string)GRAY8, width=(int)16, height=(int)8, framerate=(fraction)25/1";
const GRAY_SIZE: usize = 16 * 8;

fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
    });
}

/// `framesharesink` fed by the test.
struct Exporter {
    harness: gst_check::Harness,
    path: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl Exporter {
    fn new(caps: &str) -> Self {
        Self::with(caps, "")
    }

    /// Creates an exporter with more properties, in the syntax of `gst-launch-1.0`.
    fn with(caps: &str, properties: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut exporter = Self::at(&folder.path().join("s"), properties);
        exporter._folder = Some(folder);
        exporter.harness.set_src_caps(caps.parse().unwrap());
        exporter
    }

    fn without_caps(properties: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut exporter = Self::at(&folder.path().join("s"), properties);
        exporter._folder = Some(folder);
        exporter
    }

    /// Creates an exporter at a path of the caller, without caps.
    fn at(path: &Path, properties: &str) -> Self {
        init();
        let sink = gst::parse::launch(&format!(
            "framesharesink socket-path={} sync=false wait-for-connection=true {properties}",
            path.display()
        ))
        .unwrap();
        let mut harness = gst_check::Harness::with_element(&sink, Some("sink"), None);
        harness.use_systemclock();
        // As a pipeline does at the start of PLAYING.
        sink.set_base_time(gst::SystemClock::obtain().time());
        harness.play();
        Self { harness, path: path.to_owned(), _folder: None }
    }

    fn push(&mut self, buffer: gst::Buffer) {
        self.harness.push(buffer).unwrap();
    }

    /// Pushes a frame of [`GRAY`] filled with `value`.
    fn push_value(&mut self, value: u8) {
        self.push(gst::Buffer::from_slice([value; GRAY_SIZE]));
    }

    fn event(&mut self, event: gst::Event) {
        assert!(self.harness.push_event(event));
    }

    fn wait_for_readers(&self, count: u32) {
        let begin = Instant::now();
        while self.harness.element().unwrap().property::<u32>("num-clients") != count {
            assert!(begin.elapsed() < PATIENCE, "expected {count} readers");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Output of `framesharesrc`.
#[derive(Debug)]
enum Arrival {
    Buffer(gst::Buffer, Option<gst::Caps>),
    Event(gst::Event),
}

/// `framesharesrc policy=lossless ! fakesink`.
struct Reader {
    pipeline: gst::Pipeline,
    arrivals: mpsc::Receiver<Arrival>,
    order: Arc<Mutex<order::Order>>,
}

impl Reader {
    fn new(path: &Path) -> Self {
        Self::knowing(path, &[])
    }

    /// Creates a reader whose downstream supports these metas.
    fn knowing(path: &Path, metas: &'static [fn(&mut gst::query::Allocation)]) -> Self {
        init();
        let pipeline = gst::parse::launch(&format!(
            "framesharesrc name=source socket-path={} policy=lossless connection-timeout=20000000000 ! \
             fakesink name=end sync=false enable-last-sample=false",
            path.display()
        ));
        Self::watching(pipeline.unwrap().downcast().unwrap(), metas)
    }

    /// Creates a reader of a pipeline with a sink named `end`.
    fn watch(pipeline: gst::Pipeline) -> Self {
        Self::watching(pipeline, &[])
    }

    fn watching(pipeline: gst::Pipeline, metas: &'static [fn(&mut gst::query::Allocation)]) -> Self {
        let end = pipeline.by_name("end").unwrap();
        Self::at(pipeline, &end, metas)
    }

    /// Creates a reader that watches a sink, which may enter the pipeline later.
    fn at(
        pipeline: gst::Pipeline,
        end: &gst::Element,
        metas: &'static [fn(&mut gst::query::Allocation)],
    ) -> Self {
        let pad = end.static_pad("sink").unwrap();
        let (sender, arrivals) = mpsc::channel();
        let sender = Mutex::new(sender);
        let order = Arc::<Mutex<order::Order>>::default();
        let watched = order.clone();
        let kinds = gst::PadProbeType::BUFFER
            | gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::EVENT_FLUSH
            | gst::PadProbeType::QUERY_DOWNSTREAM;
        pad.add_probe(kinds, move |pad, info| {
            let arrival = match &mut info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    Arrival::Buffer(buffer.clone(), pad.current_caps())
                }
                Some(gst::PadProbeData::Event(event)) => Arrival::Event(event.clone()),
                Some(gst::PadProbeData::Query(query)) => {
                    return match query.view_mut() {
                        gst::QueryViewMut::Allocation(query) if !metas.is_empty() => {
                            metas.iter().for_each(|add| add(query));
                            gst::PadProbeReturn::Handled
                        }
                        _ => gst::PadProbeReturn::Ok,
                    };
                }
                _ => return gst::PadProbeReturn::Ok,
            };
            watched.lock().unwrap().note(&arrival);
            let _ = sender.lock().unwrap().send(arrival);
            gst::PadProbeReturn::Ok
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, arrivals, order }
    }

    fn next(&self) -> Arrival {
        self.arrivals.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let error = self.pipeline.bus().unwrap().pop_filtered(&[gst::MessageType::Error]);
            panic!("nothing received: {error:?}")
        })
    }

    /// Returns the next buffer, its caps, and the events before it.
    fn next_buffer(&self) -> (gst::Buffer, Option<gst::Caps>, Vec<gst::Event>) {
        let mut events = Vec::new();
        loop {
            match self.next() {
                Arrival::Buffer(buffer, caps) => return (buffer, caps, events),
                Arrival::Event(event) => events.push(event),
            }
        }
    }

    fn buffer(&self) -> gst::Buffer {
        self.next_buffer().0
    }

    /// Returns the next event of a type; skips everything before it.
    fn next_event(&self, kind: gst::EventType) -> gst::Event {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "no {kind:?} received");
            match self.next() {
                Arrival::Event(event) if event.type_() == kind => return event,
                _ => {}
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
        if !std::thread::panicking() {
            assert_eq!(self.order.lock().unwrap().violations, Vec::<String>::new());
        }
    }
}

fn launch(description: &str) -> gst::Pipeline {
    init();
    gst::parse::launch(description).unwrap().downcast().unwrap()
}

fn bytes(buffer: &gst::BufferRef) -> Vec<u8> {
    buffer.map_readable().unwrap().to_vec()
}
