// SPDX-License-Identifier: MIT OR Apache-2.0

//! Syntax of the URIs.

use frameshare::{Endpoint, StreamName};

pub(super) const STREAM: &str = "stream";
pub(super) const SOCKET_PATH: &str = "socket-path";

/// Content of a URI.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    /// The property that names the stream.
    pub property: &'static str,
    /// Its value.
    pub stream: String,
    /// Names and values of other properties.
    pub settings: Vec<(String, String)>,
}

/// Parses a URI.
///
/// # Errors
///
/// A text that names the invalid part.
pub(super) fn parse(uri: &str) -> Result<Parsed, String> {
    let forms = "expected frameshare://NAME or frameshare:///PATH";
    let (scheme, rest) = uri.split_once("://").ok_or(forms)?;
    if !scheme.eq_ignore_ascii_case("frameshare") {
        return Err(forms.into());
    }
    if let Some((_, fragment)) = rest.split_once('#') {
        return Err(format!("a stream has no fragment (#{fragment})"));
    }
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (property, stream) = if location.starts_with(['/', '@']) {
        let path =
            decode(location.strip_suffix('/').filter(|name| name.starts_with('@')).unwrap_or(location))?;
        Endpoint::at(&path).map_err(|error| error.to_string())?;
        (SOCKET_PATH, path)
    } else {
        (STREAM, name(location)?)
    };
    let mut settings = Vec::<(String, String)>::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("{part:?} has no value: expected property=value"))?;
        let (name, value) = (decode(name)?, decode(value)?);
        if [STREAM, SOCKET_PATH].contains(&name.as_str()) {
            return Err(format!("it names two streams: {stream:?}, and {value:?} by {name}"));
        }
        if settings.iter().any(|(other, _)| *other == name) {
            return Err(format!("it sets {name:?} twice"));
        }
        settings.push((name, value));
    }
    Ok(Parsed { property, stream, settings })
}

/// Parses the name of a stream, which stands for the host.
fn name(location: &str) -> Result<String, String> {
    let (host, path) = location.split_once('/').unwrap_or((location, ""));
    if !path.is_empty() {
        return Err(format!(
            "it names two streams: {host:?} and the path {path:?}; a socket's path has three slashes before it"
        ));
    }
    if let Some((user, _)) = host.split_once('@') {
        return Err(format!("a stream has no user ({user}@)"));
    }
    if let Some((_, port)) = host.split_once(':') {
        return Err(format!("a stream has no port (:{port})"));
    }
    let name = decode(host)?;
    let endpoint = name.parse::<StreamName>().map_err(|error| error.to_string());
    endpoint.and_then(|name| Endpoint::of_stream(&name).map_err(|error| error.to_string()))?;
    Ok(name)
}

/// Decodes percent-encoded text.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digit = |index: usize| after.get(index).and_then(|byte| char::from(*byte).to_digit(16));
        let byte = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                rest = &after[2..];
                (high * 16 + low) as u8
            }
            (b'%', ..) => return Err(format!("{text:?} has a % without two hexadecimal digits")),
            _ => {
                rest = after;
                *first
            }
        };
        if byte == 0 {
            return Err(format!("{text:?} contains a zero byte"));
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is not UTF-8"))
}

/// Percent-encodes text, apart from letters, digits, `-._~` and the characters of `kept`.
pub(super) fn encode(text: &str, kept: &str) -> String {
    let is_kept =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.as_bytes().contains(&byte);
    text.bytes().fold(String::new(), |encoded, byte| {
        if is_kept(byte) { encoded + &char::from(byte).to_string() } else { format!("{encoded}%{byte:02X}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_paths_and_settings_are_decoded() {
        let parsed = |property, stream: &str, settings: &[(&str, &str)]| {
            let settings =
                settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Ok(Parsed { property, stream: stream.into(), settings })
        };
        assert_eq!(parse("frameshare://cam0"), parsed(STREAM, "cam0", &[]));
        assert_eq!(parse("FRAMESHARE://Cam0/"), parsed(STREAM, "Cam0", &[]));
        assert_eq!(parse("frameshare://cam%30?"), parsed(STREAM, "cam0", &[]));
        assert_eq!(parse("frameshare:///srv/a%20b.sock"), parsed(SOCKET_PATH, "/srv/a b.sock", &[]));
        assert_eq!(parse("frameshare://@cam0/"), parsed(SOCKET_PATH, "@cam0", &[]));
        assert_eq!(
            parse("frameshare://c?policy=lossless&max%2Dheld=%38&x=a%3Db%26c+d"),
            parsed(STREAM, "c", &[("policy", "lossless"), ("max-held", "8"), ("x", "a=b&c+d")])
        );
    }

    #[test]
    fn invalid_uris_name_the_invalid_part() {
        for (uri, part) in [
            ("frameshare:cam0", "frameshare://NAME"),
            ("file:///x", "frameshare://NAME"),
            ("frameshare://", "name"),
            ("frameshare://a%2Fb", "a/b"),
            ("frameshare:///", "path of a file"),
            ("frameshare:///srv/", "path of a file"),
            ("frameshare://cam0/cam1", "two streams"),
            ("frameshare://cam0?stream=cam1", "two streams"),
            ("frameshare://cam0?socket-path=/x", "two streams"),
            ("frameshare://me@cam0", "me@"),
            ("frameshare://@cam0/cam1", "@cam0/cam1"),
            ("frameshare://cam0:80", ":80"),
            ("frameshare://cam0#part", "#part"),
            ("frameshare://cam0?policy", "no value"),
            ("frameshare://cam0?policy=latest&policy=latest", "twice"),
            ("frameshare://cam%3", "hexadecimal"),
            ("frameshare://cam0?a=%gg", "hexadecimal"),
            ("frameshare://cam0?a=%00", "zero byte"),
            ("frameshare://cam0?a=%ff", "UTF-8"),
        ] {
            let error = parse(uri).unwrap_err();
            assert!(error.contains(part), "{uri}: {error}");
        }
        assert!(parse(&format!("frameshare:///{}", "x".repeat(200))).is_err());
    }

    #[test]
    fn encoded_text_decodes_to_itself() {
        for text in ["cam0", "/srv/a b/ü%?#&=.sock", "< (uint)1 >", "~-._"] {
            assert_eq!(decode(&encode(text, "/")).unwrap(), text);
            assert!(
                encode(text, "").bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#&=<> ".contains(&byte))
            );
        }
    }
}
