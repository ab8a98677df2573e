// SPDX-License-Identifier: MIT OR Apache-2.0

//! A pipeline that reads a stream while it has subscribers.

use crate::roles::pipeline::Pipeline;
use anyhow::{Context, Result, anyhow, bail};
use gst::prelude::*;
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Time before a pipeline that failed is started again.
const RETRY: Duration = Duration::from_secs(1);
/// Interval at which a running pipeline checks for subscribers.
const CHECK: gst::ClockTime = gst::ClockTime::from_mseconds(200);

/// A pipeline with the elements `source` and `sink`, an appsink. Its reader connects with the first
/// subscriber, and leaves after the last one: a decoder without readers can stop.
pub struct Source(Arc<Demand>);

/// The right to the samples of a source.
pub struct Subscription(Arc<Demand>);

/// Callbacks of a source, on the pipeline's threads.
pub trait Client: Send + Sync + 'static {
    /// Receives a sample.
    fn sample(&self, sample: &gst::Sample);

    /// Returns whether a buffer of the stream is wanted, before it is processed.
    fn wants(&self, _buffer: &gst::BufferRef) -> bool {
        true
    }

    /// Receives the reason why there are no samples; the pipeline starts again after it.
    fn failed(&self, _why: &str) {}
}

struct Demand {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    subscribers: usize,
    /// Whether the source exists, so that subscribers can come.
    is_open: bool,
}

impl Source {
    /// Makes a source of a stream, which the pipeline's description does not name. Its thread ends
    /// when it and its last subscriber are dropped. `name` tells people what the reader is for.
    pub fn new(name: &'static str, stream: &str, description: String, client: Arc<dyn Client>) -> Self {
        let demand = Arc::new(Demand { state: Mutex::default(), changed: Condvar::new() });
        demand.state().is_open = true;
        let (source, stream) = (Self(Arc::clone(&demand)), stream.to_owned());
        thread::spawn(move || {
            while demand.wait_for_subscriber() {
                if let Err(error) = play(name, &stream, &description, &client, &demand) {
                    client.failed(&format!("{error:#}"));
                    demand.pause();
                }
            }
        });
        source
    }

    /// Starts the pipeline unless it runs.
    pub fn subscribe(&self) -> Subscription {
        self.0.state().subscribers += 1;
        self.0.changed.notify_all();
        Subscription(Arc::clone(&self.0))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.0.state().is_open = false;
        self.0.changed.notify_all();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.state().subscribers -= 1;
        self.0.changed.notify_all();
    }
}

impl Demand {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_subscribers(&self) -> bool {
        self.state().subscribers > 0
    }

    /// Returns whether there is a subscriber; `false` once there can be none anymore.
    fn wait_for_subscriber(&self) -> bool {
        let is_idle = |state: &mut State| state.subscribers == 0 && state.is_open;
        let state = self.changed.wait_while(self.state(), is_idle).unwrap_or_else(PoisonError::into_inner);
        state.subscribers > 0
    }

    fn pause(&self) {
        let has = |state: &mut State| state.subscribers > 0;
        drop(self.changed.wait_timeout_while(self.state(), RETRY, has));
    }
}

/// Runs the pipeline until the last subscriber has left.
fn play(
    name: &str,
    stream: &str,
    description: &str,
    client: &Arc<dyn Client>,
    demand: &Demand,
) -> Result<()> {
    let bin = gst::parse::launch(description).with_context(|| format!("pipeline '{description}'"))?;
    let pipeline = bin.downcast::<gst::Pipeline>().map_err(|_| anyhow!("'{description}' is no pipeline"))?;
    let Pipeline(pipeline) = &Pipeline(pipeline);
    // Readers are named after it.
    pipeline.set_property("name", format!("wall {name}"));
    let sink = pipeline.by_name("sink").context("the pipeline has no sink")?;
    let sink = sink.downcast::<gst_app::AppSink>().map_err(|_| anyhow!("the sink is no appsink"))?;
    let receiver = Arc::clone(client);
    let callbacks = gst_app::AppSinkCallbacks::builder().new_sample(move |sink| {
        receiver.sample(&sink.pull_sample().map_err(|_| gst::FlowError::Eos)?);
        Ok(gst::FlowSuccess::Ok)
    });
    sink.set_callbacks(callbacks.build());
    let source = pipeline.by_name("source").context("the pipeline has no source")?;
    source.set_property("stream", stream);
    let pad = source.static_pad("src").context("the source has no pad")?;
    let gate = Arc::clone(client);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| match info.buffer() {
        Some(buffer) if !gate.wants(buffer) => gst::PadProbeReturn::Drop,
        _ => gst::PadProbeReturn::Ok,
    });
    let started = pipeline.set_state(gst::State::Playing);
    let bus = pipeline.bus().context("the pipeline has no bus")?;
    while demand.has_subscribers() {
        match bus.timed_pop_filtered(CHECK, &[gst::MessageType::Error, gst::MessageType::Eos]) {
            Some(message) => match message.view() {
                gst::MessageView::Error(error) => bail!("{}", error.error()),
                // The exporter's own end: the stream may come back.
                _ => bail!("the stream has ended"),
            },
            None if started.is_err() => bail!("the pipeline did not start"),
            None => {}
        }
    }
    Ok(())
}

/// Returns the element that reads a stream through all restarts of its exporter.
pub fn reading(options: &str) -> String {
    format!("framesharesrc name=source on-disconnect=wait connection-timeout=-1 {options}")
}
