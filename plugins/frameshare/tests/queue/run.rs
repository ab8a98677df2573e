// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs a program through a `queue`, and through `framesharesink` and `framesharesrc`.

use crate::{
    make,
    program::{Consumer, Media, Program, Step},
};
use gst::prelude::*;
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which what was published arrives.
const ARRIVAL: Duration = Duration::from_millis(150);

/// A buffer or an event that a pad got.
#[derive(Clone, Debug)]
pub enum Item {
    Buffer(gst::Buffer),
    Event(gst::Event),
}

/// The items that a pad got, in order.
#[derive(Clone, Default)]
pub struct Record(Arc<(Mutex<Vec<Item>>, Condvar)>);

impl Record {
    fn push(&self, item: Item) {
        self.0.0.lock().unwrap().push(item);
        self.0.1.notify_all();
    }

    pub fn items(&self) -> Vec<Item> {
        self.0.0.lock().unwrap().clone()
    }

    fn wait(&self, what: &str, is_done: impl Fn(&[Item]) -> bool) -> Result<(), String> {
        let items = self.0.0.lock().unwrap();
        let waited = self.0.1.wait_timeout_while(items, PATIENCE, |items| !is_done(items)).unwrap();
        if waited.1.timed_out() { Err(format!("{what}: not within {PATIENCE:?}")) } else { Ok(()) }
    }
}

/// Polls until something holds.
fn poll(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{what}: not within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A connection of the reader, from its join to its end.
pub struct Connection {
    pub is_live: bool,
    pub is_lossless: bool,
    pub consumer: Consumer,
    /// Number of items that the queue had given out before.
    pub from: usize,
    pub until: usize,
    /// As `from`, where the reader paused, or the exporter was another one.
    pub pauses: Vec<usize>,
    pub restarts: Vec<usize>,
    pub got: Vec<Item>,
}

impl Connection {
    /// Nothing that was published in a pause can be moved to the time behind it.
    pub fn skips_pauses(&self) -> bool {
        self.is_live && self.consumer == Consumer::Other
    }

    /// Units of a pause come, and are not shown: the time stood still.
    pub fn moves_at_pauses(&self) -> bool {
        self.is_live && self.consumer == Consumer::Viewer
    }
}

pub struct Outcome {
    pub of_queue: Vec<Item>,
    /// Positions in it where the exporter was another one.
    pub restarts: Vec<usize>,
    /// Sessions of the exporters that readers were connected to, with their numbers.
    pub sessions: HashMap<u64, usize>,
    pub connections: Vec<Connection>,
}

/// `queue`, fed by the program.
struct Queue {
    pad: gst::Pad,
    element: gst::Element,
    sink: gst::Pad,
    record: Record,
    fed: usize,
}

impl Queue {
    fn new() -> Self {
        let queue = gst::ElementFactory::make("queue")
            .property("max-size-buffers", 0_u32)
            .property("max-size-bytes", 0_u32)
            .property("max-size-time", 0_u64)
            .build()
            .unwrap();
        let record = Record::default();
        let (buffers, events) = (record.clone(), record.clone());
        // A pad without a template accepts no change of caps.
        let any = gst::PadTemplate::new(
            "sink",
            gst::PadDirection::Sink,
            gst::PadPresence::Always,
            &gst::Caps::new_any(),
        );
        let sink = gst::Pad::builder_from_template(&any.unwrap())
            .chain_function(move |_, _, buffer| {
                buffers.push(Item::Buffer(buffer));
                Ok(gst::FlowSuccess::Ok)
            })
            .event_function(move |_, _, event| {
                events.push(Item::Event(event));
                true
            })
            .build();
        let pad = gst::Pad::builder(gst::PadDirection::Src).build();
        pad.link(&queue.static_pad("sink").unwrap()).unwrap();
        queue.static_pad("src").unwrap().link(&sink).unwrap();
        sink.set_active(true).unwrap();
        queue.set_state(gst::State::Playing).unwrap();
        pad.set_active(true).unwrap();
        Self { pad, element: queue, sink, record, fed: 0 }
    }

    fn feed(&mut self, item: Item) -> Result<(), String> {
        let is_same = {
            let item = item.clone();
            move |got: &Item| match (got, &item) {
                (Item::Buffer(got), Item::Buffer(item)) => got.as_ptr() == item.as_ptr(),
                (Item::Event(got), Item::Event(item)) => got.as_ptr() == item.as_ptr(),
                _ => false,
            }
        };
        match item {
            Item::Buffer(buffer) => drop(self.pad.push(buffer)),
            Item::Event(event) => drop(self.pad.push_event(event)),
        }
        // Others may precede it: sticky events are sent again behind a flush.
        let fed = self.fed;
        self.record.wait("queue", |items| items[fed..].iter().any(&is_same))?;
        self.fed = self.record.items().len();
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.element.set_state(gst::State::Null);
        let _ = self.sink.set_active(false);
        let _ = self.pad.set_active(false);
    }
}

/// `framesharesink`, fed by the program.
struct Exporter {
    harness: gst_check::Harness,
}

impl Exporter {
    fn new(path: &str) -> Self {
        let sink = gst::parse::launch(&format!(
            "framesharesink socket-path={} sync=false any-caps=true slow-readers=wait max-lateness=-1",
            path
        ));
        let sink = sink.unwrap();
        let mut harness = gst_check::Harness::with_element(&sink, Some("sink"), None);
        harness.use_systemclock();
        sink.set_base_time(gst::SystemClock::obtain().time());
        harness.play();
        Self { harness }
    }

    fn readers(&self) -> u32 {
        self.harness.element().unwrap().property("num-clients")
    }
}

/// `framesharesrc ! fakesink`.
struct Reader {
    pipeline: gst::Pipeline,
    record: Record,
    /// The streaming thread stops before its next buffer.
    gate: Arc<Mutex<()>>,
    connection: Connection,
}

impl Reader {
    fn new(path: &str, connection: Connection) -> Self {
        let pipeline = gst::parse::launch(&format!(
            "framesharesrc name=source socket-path={} policy={} is-live={} max-held=16 on-disconnect=wait \
             connection-timeout=20000000000 ! fakesink name=end sync=false async=false enable-last-sample=false {}",
            path,
            if connection.is_lossless { "lossless" } else { "latest" },
            connection.is_live,
            match connection.consumer {
                Consumer::Recorder => "",
                Consumer::Viewer => "jpegdec fakesink sync=true async=false",
                Consumer::Other => "videotestsrc is-live=true ! fakesink sync=false async=false",
            },
        ));
        let pipeline = pipeline.unwrap().downcast::<gst::Pipeline>().unwrap();
        let record = Record::default();
        let (pushed, gate) = (record.clone(), Arc::<Mutex<()>>::default());
        let waits = gate.clone();
        let kinds =
            gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::EVENT_FLUSH;
        let end = pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
        end.add_probe(kinds, move |_, info| {
            match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    drop(waits.lock().unwrap());
                    // The frame itself is one of those that the reader may hold.
                    pushed.push(Item::Buffer(buffer.copy_deep().unwrap()));
                }
                Some(gst::PadProbeData::Event(event)) => pushed.push(Item::Event(event.clone())),
                _ => {}
            }
            gst::PadProbeReturn::Ok
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, record, gate, connection }
    }

    fn source(&self) -> gst::Element {
        self.pipeline.by_name("source").unwrap()
    }

    /// The run of the exporter that it is connected to.
    fn session(&self) -> u64 {
        self.source().property::<gst::Structure>("stats").get("session").unwrap()
    }

    fn error(&self) -> Option<String> {
        let bus = self.pipeline.bus()?;
        let message = bus.pop_filtered(&[gst::MessageType::Error])?;
        match message.view() {
            gst::MessageView::Error(error) => Some(format!("{} {:?}", error.error(), error.debug())),
            _ => None,
        }
    }

    fn end(mut self, until: usize) -> Connection {
        self.pipeline.set_state(gst::State::Null).unwrap();
        self.connection.until = until;
        self.connection.got = self.record.items();
        self.connection
    }
}

struct Run {
    media: Media,
    path: String,
    queue: Queue,
    exporter: Option<Exporter>,
    reader: Option<Reader>,
    done: Vec<Connection>,
    restarts: Vec<usize>,
    sessions: HashMap<u64, usize>,
}

/// Runs a program; fails if something of it does not end.
pub fn run(program: &Program) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s").display().to_string();
    let mut run = Run {
        media: program.media,
        exporter: Some(Exporter::new(&path)),
        path,
        queue: Queue::new(),
        reader: None,
        done: Vec::new(),
        restarts: Vec::new(),
        sessions: HashMap::new(),
    };
    for step in &program.steps {
        run.step(step).map_err(|why| format!("{step:?}: {why}"))?;
    }
    run.leave()?;
    let of_queue = run.queue.record.items();
    Ok(Outcome { of_queue, restarts: run.restarts, sessions: run.sessions, connections: run.done })
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Join { is_live, is_lossless, consumer } => self.join(*is_live, *is_lossless, *consumer),
            Step::Leave => self.leave(),
            Step::Pause => self.pause(),
            Step::Play(ms) => self.play(*ms),
            Step::Restart => self.next_exporter(false),
            Step::Switch => self.next_exporter(true),
            Step::Sleep(ms) => self.sleep(*ms),
            Step::Buffer(buffer) => {
                let buffer = make::buffer(buffer);
                self.queue.feed(Item::Buffer(buffer.clone()))?;
                let exporter = self.exporter.as_mut().ok_or("no exporter")?;
                exporter.harness.push(buffer).map_err(|error| format!("the sink says {error:?}"))?;
                Ok(())
            }
            _ => {
                for event in make::events(self.media, step) {
                    self.queue.feed(Item::Event(event.clone()))?;
                    let exporter = self.exporter.as_mut().ok_or("no exporter")?;
                    exporter.harness.push_event(event);
                }
                if let (Step::Eos, Some(reader)) = (step, &self.reader) {
                    let ended = reader.record.wait("EOS", |items| items.iter().any(is_eos));
                    ended.map_err(|why| format!("{why} {:?}", reader.error()))?;
                }
                Ok(())
            }
        }
    }

    fn join(&mut self, is_live: bool, is_lossless: bool, consumer: Consumer) -> Result<(), String> {
        let from = self.queue.fed;
        let connection = Connection {
            is_live,
            is_lossless,
            consumer,
            from,
            until: 0,
            pauses: vec![],
            restarts: vec![],
            got: vec![],
        };
        self.reader = Some(Reader::new(&self.path, connection));
        self.wait_for_reader(0)
    }

    /// Waits until the reader is connected: one that is paused before joins behind the pause.
    fn wait_for_reader(&mut self, session_before: u64) -> Result<(), String> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let connected = poll("a connection", || {
            self.exporter.as_ref().is_none_or(|exporter| exporter.readers() > 0)
                && reader.session() != session_before
        });
        connected.map_err(|why| format!("{why}: {:?}", reader.error()))?;
        self.sessions.insert(reader.session(), self.restarts.len());
        Ok(())
    }

    fn leave(&mut self) -> Result<(), String> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        let until = self.queue.fed;
        if !reader.record.items().iter().any(is_eos) {
            drop(reader.gate.lock().unwrap());
            std::thread::sleep(ARRIVAL);
        }
        if let Some(error) = reader.error() {
            return Err(error);
        }
        self.done.push(reader.end(until));
        poll("the reader's end", || self.exporter.as_ref().is_none_or(|exporter| exporter.readers() == 0))
    }

    fn pause(&mut self) -> Result<(), String> {
        let fed = self.queue.fed;
        let Some(reader) = &mut self.reader else { return Ok(()) };
        reader.connection.pauses.push(fed);
        reader.pipeline.set_state(gst::State::Paused).map(drop).map_err(|_| "no pause".to_owned())
    }

    fn play(&mut self, ms: u64) -> Result<(), String> {
        std::thread::sleep(Duration::from_millis(ms));
        let Some(reader) = &self.reader else { return Ok(()) };
        reader.pipeline.set_state(gst::State::Playing).map(drop).map_err(|_| "does not play".to_owned())
    }

    fn next_exporter(&mut self, is_switch: bool) -> Result<(), String> {
        let fed = self.queue.fed;
        self.restarts.push(fed);
        if let Some(reader) = &mut self.reader {
            // An exporter that stops without an end of stream drops what it has not handed over.
            drop(reader.gate.lock().unwrap());
            std::thread::sleep(ARRIVAL);
            reader.connection.restarts.push(fed);
        }
        let session = self.reader.as_ref().map_or(0, Reader::session);
        let mut last = self.exporter.take();
        if is_switch {
            self.path.push_str("-next");
            if let Some(reader) = &self.reader {
                reader.source().set_property("socket-path", &self.path);
            }
        } else {
            last = None;
        }
        self.exporter = Some(Exporter::new(&self.path));
        self.wait_for_reader(session)?;
        drop(last);
        Ok(())
    }

    fn sleep(&mut self, ms: u64) -> Result<(), String> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let gate = reader.gate.clone();
        let (begun, begins) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _closed = gate.lock().unwrap();
            let _ = begun.send(());
            std::thread::sleep(Duration::from_millis(ms));
        });
        begins.recv().map_err(|error| error.to_string())
    }
}

fn is_eos(item: &Item) -> bool {
    matches!(item, Item::Event(event) if event.type_() == gst::EventType::Eos)
}
