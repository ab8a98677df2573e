//! Caps and structures that come as text from another process.
//!
//! GStreamer's parsers take any text, but they recurse as deep as it nests and a text with a NUL in it is cut
//! there, so both are looked at before they see it.

/// How deep brackets may nest; GStreamer itself writes a handful of levels.
const MAX_DEPTH: usize = 32;
/// Most bytes of one text.
const MAX_TEXT: usize = 16 * 1024 * 1024;

/// Whether GStreamer's parsers can be given this text.
pub(crate) fn is_harmless(text: &str) -> bool {
    let mut depth = 0_usize;
    text.len() <= MAX_TEXT
        && text.bytes().all(|byte| {
            match byte {
                b'(' | b'[' | b'{' | b'<' => depth += 1,
                b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
                _ => {}
            }
            byte != 0 && depth <= MAX_DEPTH
        })
}

/// The structure that a text stands for, which must not go on after it: GStreamer would take that for a mistake of
/// this program's.
pub(crate) fn parse_structure(text: &str) -> Option<gst::Structure> {
    (is_harmless(text) && begins_with_a_name(text) && ends_with_its_first_part(text))
        .then(|| text.parse().ok())
        .flatten()
}

/// Whether a text begins with a name that a structure can have: GStreamer would take another one for a mistake of this
/// program's.
fn begins_with_a_name(text: &str) -> bool {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    text.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// Whether the first semicolon that is neither quoted, escaped nor inside brackets ends the text.
fn ends_with_its_first_part(text: &str) -> bool {
    let (mut quoted, mut escaped, mut depth) = (false, false, 0_usize);
    let end = text.bytes().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' | b'<' => depth += 1,
            b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            b';' => return depth == 0,
            _ => {}
        }
        false
    });
    end.is_none_or(|end| end + 1 == text.len())
}

/// The fixed caps that a text stands for.
pub(crate) fn parse_caps(text: &str) -> Option<gst::Caps> {
    let caps =
        (is_harmless(text) && begins_with_a_name(text)).then(|| text.parse::<gst::Caps>().ok()).flatten()?;
    caps.is_fixed().then_some(caps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_of_a_stream_are_fixed() {
        gst::init().unwrap();
        assert!(parse_caps("video/x-raw, format=NV12, width=2, height=2, framerate=30/1").is_some());
        assert!(parse_caps("video/x-raw, width=[ 1, 2 ]").is_none());
        assert!(parse_caps("ANY").is_none());
        assert!(parse_caps("no caps at all, really").is_none());
        assert!(parse_caps("").is_none());
        assert!(parse_caps("/x-raw, width=1").is_none());
    }

    #[test]
    fn a_structure_is_one_structure() {
        gst::init().unwrap();
        for whole in ["a, b=1", "a, b=1;", "a, b=\"x;y\\\"\", c=2;", "a, b={ \"x;\", y };"] {
            assert!(parse_structure(whole).is_some(), "{whole}");
        }
        for nameless in ["2, b=1", "", ", b=1", "\"a\", b=1"] {
            assert!(parse_structure(nameless).is_none(), "{nameless}");
        }
        for more in ["a, b=1; c", "a;;", "a, b=\"x;y\"; \"", "nul\0"] {
            assert!(parse_structure(more).is_none(), "{more}");
        }
    }

    #[test]
    fn a_text_that_would_exhaust_the_stack_is_not_parsed() {
        assert!(!is_harmless(&"{".repeat(100_000)));
        assert!(!is_harmless("nul\0"));
        assert!(is_harmless(&"{}".repeat(100)));
    }
}
