// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sources of streams as text.

use super::{Secret, Source};
use std::path::Path;

/// User and password for the URLs of a camera.
#[derive(Clone, Default)]
pub struct Login {
    pub user: Option<String>,
    pub password: Option<Secret>,
}

/// Parses a source; paths are relative to a folder.
pub fn parse(text: &str, folder: &Path, login: &Login) -> Result<Source, String> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    match (scheme, text.strip_prefix("pattern:")) {
        (Some("rtsp" | "rtsps"), _) => rtsp(text, login),
        (Some(scheme), _) => Err(format!("unknown scheme '{scheme}': expected rtsp or rtsps")),
        (None, Some(pattern)) => parse_pattern(pattern),
        (None, None) if text.is_empty() => Err("empty: name a URL, a device, a file or a pattern".into()),
        (None, None) if text.starts_with("/dev/") => Ok(Source::Device(text.into())),
        (None, None) => {
            let path = folder.join(text);
            match path.is_file() {
                true => Ok(Source::File(path)),
                false => Err(format!("no file {}", path.display())),
            }
        }
    }
}

/// Takes user and password out of a URL.
fn rtsp(text: &str, login: &Login) -> Result<Source, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("rtsp", text));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if path.contains('@') {
        let text = "ambiguous '@': write '/' as %2F, '?' as %3F and '@' as %40 in user, password and path";
        return Err(text.into());
    }
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    if host.is_empty() || host.starts_with(':') {
        return Err("no host: expected rtsp://HOST/PATH".into());
    }
    if credentials.is_some() && (login.user.is_some() || login.password.is_some()) {
        return Err("user and password are in the URL and in keys: remove those in the URL".into());
    }
    let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
        Some((user, password)) => {
            let password = decode(password).ok_or("invalid percent-encoding in the password")?;
            let user = decode(user).ok_or("invalid percent-encoding in the user")?;
            (Some(user), Some(password).filter(|text| !text.is_empty()).map(Secret::from))
        }
        None => (login.user.clone(), login.password.clone()),
    };
    Ok(Source::Rtsp { url: format!("{scheme}://{host}{path}"), user, password })
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

fn parse_pattern(text: &str) -> Result<Source, String> {
    let (name, query) = text.split_once('?').unwrap_or((text, ""));
    let (mut width, mut height, mut rate) = (640, 360, 10);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (target, range) = match key {
            "width" => (&mut width, 16..=7680),
            "height" => (&mut height, 16..=4320),
            "rate" => (&mut rate, 1..=240),
            _ => return Err(format!("unknown '{key}' of a pattern: expected width, height or rate")),
        };
        *target = value.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
            format!("invalid {key} '{value}': expected {} to {}", range.start(), range.end())
        })?;
    }
    if width % 2 + height % 2 > 0 {
        return Err(format!("invalid size {width}x{height}: width and height of a pattern are even"));
    }
    match name.is_empty() {
        true => Err("no name: expected pattern:ball, pattern:smpte or another one of videotestsrc".into()),
        false => Ok(Source::Pattern { pattern: name.to_owned(), width, height, rate }),
    }
}
