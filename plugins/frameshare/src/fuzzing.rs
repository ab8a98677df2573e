// SPDX-License-Identifier: MIT OR Apache-2.0

//! Entry points of the fuzz targets (tests/fuzz), and tests with the inputs of their corpus.
//!
//! Each function takes any bytes and returns, or finds a bug. Not a part of the plugin.

pub use crate::src::fuzzing::layouts;

use crate::{
    events,
    meta::{
        self,
        budget::Budget,
        wire::{self, VideoValues as _},
    },
};

/// Limit on metadata of one input.
const BUDGET: u64 = 16 << 20;

/// Starts GStreamer. Its criticals are findings, and abort; so are warnings, except those about
/// this machine.
fn init() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        gst::init().expect("GStreamer starts");
        meta::register();
        glib::log_set_always_fatal(
            glib::LogLevels::LEVEL_ERROR | glib::LogLevels::LEVEL_CRITICAL | glib::LogLevels::LEVEL_WARNING,
        );
    });
}

/// Fuzzes the metas of a frame.
pub fn metas(bytes: &[u8]) {
    init();
    let budget = Budget::new(BUDGET);
    let Ok(metas) = wire::parse(bytes, &budget) else { return };
    let _ = (metas.crop(), metas.video().map(|video| (video.format(), video.flags(), video.alignment())));
    let mut buffer = gst::Buffer::with_size(64).expect("memory");
    let content = buffer.get_mut().expect("it is new");
    // Code of plugins is not this project's.
    let dropped = wire::Dropped::default();
    let _ = metas.add_to(content, true, false, &dropped);
    // The metas on the buffer can be serialized and parsed again, copied and printed.
    wire::parse(&wire::serialize(content, None, false, &dropped), &Budget::new(u64::MAX))
        .expect("our own form");
    let _ = format!("{:?}", buffer.copy());
}

/// Fuzzes an event of any kind.
pub fn events(bytes: &[u8]) {
    init();
    let Some((kind, payload)) = bytes.split_first_chunk::<4>() else { return };
    let event =
        frameshare::Event { kind: u32::from_le_bytes(*kind), sticky: false, payload: payload.to_vec() };
    let decoded = events::decode(&event, &Budget::new(BUDGET));
    if let Ok(Some(events::Incoming::Event(event))) = decoded {
        // GStreamer prints the event, and encoding it again yields the same event.
        let _ = format!("{event:?}");
        if let Ok(Some(again)) = events::encode(&event) {
            events::decode(&again, &Budget::new(u64::MAX)).expect("our own form");
        }
    }
}

/// Fuzzes the text of a stream's caps.
pub fn caps(bytes: &[u8]) {
    init();
    let parse = |text: &str| meta::parse_caps(text, &Budget::new(u64::MAX)).ok();
    let Some(caps) = std::str::from_utf8(bytes).ok().and_then(parse) else { return };
    // GStreamer prints them so that they can be parsed again.
    let text = caps.to_string();
    assert_eq!(parse(&text).as_ref(), Some(&caps), "{text}");
    crate::src::fuzzing::shape(&caps);
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// The inputs in tests/fuzz/corpus.
    #[test]
    fn inputs_that_were_kept_find_nothing() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
        type Target = fn(&[u8]);
        let targets = [
            ("metas", super::metas as Target),
            ("events", super::events),
            ("caps", super::caps),
            ("layouts", super::layouts),
        ];
        for (name, target) in targets {
            let folder = corpus.join(name);
            let inputs =
                fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut count = 0;
            for input in inputs {
                let path = input.expect("an entry").path();
                println!("{}", path.display()); // the last one that is shown is the one that failed
                target(&fs::read(path).expect("an input can be read"));
                count += 1;
            }
            assert!(count > 0, "{} is empty", folder.display());
        }
    }
}
