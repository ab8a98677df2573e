// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pipeline in the process of a test.

use frameshare_tests::process::PATIENCE;
use gst::prelude::*;
use std::sync::Once;

/// Initializes GStreamer, with the elements that were built with this test.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().expect("GStreamer starts");
        gstframeshare::plugin_register_static().expect("the plugin registers");
    });
}

/// A pipeline that is stopped when it is dropped.
#[derive(Debug)]
pub struct Pipeline(gst::Pipeline);

impl Pipeline {
    /// Creates a pipeline from a description in the syntax of `gst-launch-1.0`.
    pub fn new(description: &str) -> Self {
        init();
        let pipeline =
            gst::parse::launch(description).unwrap_or_else(|error| panic!("{description}: {error}"));
        Self(pipeline.downcast().expect("several elements make a pipeline"))
    }

    /// Sets the pipeline to `PLAYING`.
    pub fn play(&self) {
        self.set(gst::State::Playing);
    }

    /// Sets the pipeline to `PAUSED`.
    pub fn pause(&self) {
        self.set(gst::State::Paused);
    }

    /// Sets the pipeline to `NULL`.
    pub fn stop(&self) {
        self.set(gst::State::Null);
    }

    fn set(&self, state: gst::State) {
        if self.0.set_state(state).is_err() {
            panic!("{state:?} refused: {:?}", self.error());
        }
    }

    /// Waits for the error or the end of the stream.
    pub fn end_message(&self) -> gst::Message {
        let bus = self.0.bus().expect("a pipeline has a bus");
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let message = bus.timed_pop_filtered(gst::ClockTime::try_from(PATIENCE).ok(), &kinds);
        message.expect("an error or the end of the stream in time")
    }

    /// Waits until all its sinks have received the end of the stream.
    pub fn wait_for_end(&self) {
        let message = self.end_message();
        assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
    }

    /// Returns the element of this name.
    pub fn element(&self, name: &str) -> gst::Element {
        self.0.by_name(name).unwrap_or_else(|| panic!("there is an element {name}"))
    }

    /// Returns the appsink of this name.
    pub fn appsink(&self, name: &str) -> gst_app::AppSink {
        self.element(name).downcast().expect("an appsink")
    }

    /// Returns the pipeline's error, if there is one.
    pub fn error(&self) -> Option<String> {
        let message = self.0.bus()?.pop_filtered(&[gst::MessageType::Error])?;
        let gst::MessageView::Error(error) = message.view() else { return None };
        Some(format!("{}\n{:?}", error.error(), error.debug()))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}
