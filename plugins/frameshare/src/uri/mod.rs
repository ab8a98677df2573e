// SPDX-License-Identifier: MIT OR Apache-2.0

//! URIs of both elements: a stream, and properties of the element.
//!
//! | URI | meaning |
//! | --- | --- |
//! | `frameshare://cam0` | `stream=cam0` |
//! | `frameshare:///srv/frames/cam0.sock` | `socket-path=/srv/frames/cam0.sock` |
//! | `frameshare://@cam0` | `socket-path=@cam0`, an abstract socket |
//! | `frameshare://cam0?policy=lossless&max-held=8` | with more properties, in the syntax of gst-launch-1.0 |
//!
//! Names and values are percent-encoded. A URI is checked as a whole before any property is set;
//! properties that it does not name keep their values.

mod parse;
mod values;

use gst::prelude::*;
use parse::{Parsed, SOCKET_PATH, STREAM, encode};

pub(crate) const PROTOCOLS: &[&str] = &["frameshare"];

fn error(kind: gst::URIError, uri: &str, text: &str) -> glib::Error {
    glib::Error::new(kind, &format!("invalid URI {uri:?}: {text}"))
}

/// Sets the properties that a URI names.
///
/// # Errors
///
/// The URI is invalid, or the element is not in NULL or READY. No property has changed then.
pub(crate) fn set(element: &gst::Element, uri: &str) -> Result<(), glib::Error> {
    let bad = |text: String| error(gst::URIError::BadUri, uri, &text);
    let Parsed { property, stream, settings } = parse::parse(uri).map_err(bad)?;
    let state = element.current_state().max(element.pending_state());
    if state > gst::State::Ready {
        let text = format!("it can only be set in NULL or READY, and {} is in {state:?}", element.name());
        return Err(glib::Error::new(gst::URIError::BadState, &text));
    }
    let settings = settings
        .iter()
        .map(|(name, text)| Ok((name.as_str(), values::of_text(element, name, text)?)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(bad)?;
    for (name, text) in [(STREAM, None), (SOCKET_PATH, None), (property, Some(stream))] {
        element.set_property(name, text);
    }
    for (name, value) in settings {
        element.set_property_from_value(name, &value);
    }
    Ok(())
}

/// Returns the URI that sets the stream of an element and its properties; none without a stream.
pub(crate) fn get(element: &gst::Element) -> Option<String> {
    let text = |name| element.property::<Option<String>>(name).filter(|text| !text.is_empty());
    let mut uri = match (text(SOCKET_PATH), text(STREAM)) {
        (Some(name), _) if name.starts_with('@') => format!("frameshare://{}", encode(&name, "@")),
        (Some(path), _) => format!("frameshare://{}", encode(std::path::absolute(path).ok()?.to_str()?, "/")),
        (None, Some(stream)) => format!("frameshare://{}", encode(&stream, "")),
        (None, None) => return None,
    };
    for (index, (name, text)) in values::changed(element).iter().enumerate() {
        let separator = if index == 0 { '?' } else { '&' };
        uri += &format!("{separator}{}={}", encode(name, ""), encode(text, ""));
    }
    Some(uri)
}
