// SPDX-License-Identifier: MIT OR Apache-2.0

//! Log messages of the engine, which uses the crate `log`, in the debug category `frameshare`.

use gst::log::DebugLogger;
use std::sync::LazyLock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "frameshare",
        gst::DebugColorFlags::empty(),
        Some("Engine that shares frames between processes"),
    )
});

struct Forwarder;

/// Forwards the engine's messages from now on. An application that links the plugin and has a
/// logger of its own keeps that one.
pub(crate) fn install() {
    LazyLock::force(&CAT);
    if log::set_logger(&Forwarder).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
}

fn level_of(level: log::Level) -> gst::DebugLevel {
    match level {
        log::Level::Error => gst::DebugLevel::Error,
        log::Level::Warn => gst::DebugLevel::Warning,
        log::Level::Info => gst::DebugLevel::Info,
        log::Level::Debug => gst::DebugLevel::Debug,
        log::Level::Trace => gst::DebugLevel::Trace,
    }
}

impl log::Log for Forwarder {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        CAT.above_threshold(level_of(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        let file = glib::GString::from(record.file().unwrap_or(record.target()));
        let line = record.line().unwrap_or(0);
        let level = level_of(record.level());
        CAT.log(None::<&gst::Object>, level, file.as_gstr(), record.target(), line, *record.args());
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn engine_messages_reach_the_debug_category() {
        gst::init().unwrap();
        crate::plugin_register_static().unwrap();
        CAT.set_threshold(gst::DebugLevel::Info);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = seen.clone();
        let function = gst::log::add_log_function(move |category, level, _, _, _, _, message| {
            if category == *CAT {
                note.lock().unwrap().push((level, message.get().map(|text| text.to_string())));
            }
        });
        log::warn!("cannot release a CUDA object: {}", 700);
        log::debug!("below the threshold");
        gst::log::remove_log_function(function);
        let expected = (gst::DebugLevel::Warning, Some("cannot release a CUDA object: 700".to_owned()));
        assert!(seen.lock().unwrap().contains(&expected), "{:?}", seen.lock().unwrap());
        assert_eq!(
            seen.lock().unwrap().iter().filter(|(level, _)| *level == gst::DebugLevel::Debug).count(),
            0
        );
    }
}
