//! What the fuzzer calls (tests/fuzz), and the tests again with the inputs that it kept.
//!
//! Each function takes any bytes and returns, or finds a bug. Not a part of the plugin.

pub use crate::src::hostile::layouts;

use crate::{events, meta::wire};

/// Starts GStreamer. What its parsers say of a text that is none is no finding, and takes more time than to parse it.
fn init() {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        gst::init().expect("GStreamer starts");
        #[cfg(fuzzing)]
        glib::log_set_default_handler(|_, _, _| ());
    });
}

/// The metas of a frame, as an exporter that nobody trusts sends them.
pub fn metas(bytes: &[u8]) {
    init();
    let Ok(metas) = wire::parse(bytes) else { return };
    let mut buffer = gst::Buffer::with_size(64).expect("memory");
    let content = buffer.get_mut().expect("it is new");
    let _ = metas.add_to(content, true);
    // What was put on the buffer can be written and read again.
    wire::parse(&wire::serialize(content, None, false)).expect("our own form");
    let _ = (metas.crop(), metas.video().map(|video| (video.format(), video.flags(), video.alignment())));
}

/// An event, of any kind.
pub fn events(bytes: &[u8]) {
    init();
    let Some((kind, payload)) = bytes.split_first_chunk::<4>() else { return };
    let event =
        frameshare::Event { kind: u32::from_le_bytes(*kind), sticky: false, payload: payload.to_vec() };
    if let Ok(Some(events::Incoming::Event(event))) = events::decode(&event) {
        let _ = events::encode(&event);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// What is in tests/fuzz/corpus, once more.
    #[test]
    fn inputs_that_were_kept_find_nothing() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
        type Target = fn(&[u8]);
        let targets =
            [("metas", super::metas as Target), ("events", super::events), ("layouts", super::layouts)];
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
