// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals of `framesharesink`.

use super::FrameshareSink;
use glib::subclass::Signal;
use gst::{prelude::*, subclass::prelude::*};
use std::sync::LazyLock;

/// The reason that a disconnected reader gets if the application names none.
const ASKED: &str = "the application of the exporter has disconnected it";

/// Returns the signals: notifications, and the action `disconnect-reader`.
pub(super) fn signals() -> &'static [Signal] {
    static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
        let reader = gst::Structure::static_type();
        let disconnect = Signal::builder("disconnect-reader")
            .param_types([u64::static_type(), String::static_type()])
            .return_type::<bool>()
            .action()
            .class_handler(|values| {
                let sink = values.first().and_then(|value| value.get::<FrameshareSink>().ok());
                let id = values.get(1).and_then(|value| value.get::<u64>().ok());
                let why = values.get(2).and_then(|value| value.get::<Option<String>>().ok()).flatten();
                let done = sink.zip(id).is_some_and(|(sink, id)| disconnect(&sink, id, why.as_deref()));
                Some(done.to_value())
            });
        vec![
            Signal::builder("reader-added").param_types([reader]).build(),
            Signal::builder("reader-removed").param_types([reader, String::static_type()]).build(),
            disconnect.build(),
        ]
    });
    &SIGNALS
}

fn disconnect(sink: &FrameshareSink, id: u64, why: Option<&str>) -> bool {
    let stream = sink.imp().stream();
    stream.is_some_and(|stream| stream.exporter.disconnect(id, why.unwrap_or(ASKED)))
}
