// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fields of caps, from the text that describes a format.
//!
//! The text comes from a peer. Fixed caps of one structure are understood, as GStreamer writes
//! them: `name(features), field=(type)value, ...;`.

use std::borrow::Cow;

/// The media type and the fields of caps.
#[derive(Debug)]
pub(super) struct Caps<'a> {
    pub media: &'a str,
    fields: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> Caps<'a> {
    /// Parses caps. A part that is not `field=value` is left out.
    pub fn parse(text: &'a str) -> Self {
        let mut parts = Parts(text);
        let head = parts.next().unwrap_or_default();
        let media = head.split('(').next().unwrap_or_default().trim();
        Self { media, fields: parts.filter_map(field).collect() }
    }

    /// Returns the text of a field's value, without its type and quotes.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_ref())
    }

    /// Returns a number.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.get(name)?.parse().ok()
    }

    /// Returns numerator and denominator.
    pub fn fraction(&self, name: &str) -> Option<(u32, u32)> {
        let text = self.get(name)?;
        let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
        Some((numerator.trim().parse().ok()?, denominator.trim().parse().ok()?))
    }
}

/// The parts between commas that are neither quoted nor in brackets.
struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let (mut is_quoted, mut is_escaped, mut depth) = (false, false, 0_u32);
        let end = self.0.find(|c: char| {
            let was_escaped = std::mem::take(&mut is_escaped);
            match c {
                _ if was_escaped => {}
                '\\' => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                _ if is_quoted => {}
                '<' | '{' | '[' | '(' => depth += 1,
                '>' | '}' | ']' | ')' => depth = depth.saturating_sub(1),
                ',' | ';' => return depth == 0,
                _ => {}
            }
            false
        });
        let (part, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        // Only the first structure counts.
        self.0 = rest.strip_prefix(',').unwrap_or_default();
        Some(part.trim())
    }
}

fn field(part: &str) -> Option<(&str, Cow<'_, str>)> {
    let (name, value) = part.split_once('=')?;
    let value = value.trim();
    // The type.
    let value = match value.strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.1.trim(),
        None => value,
    };
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    Some((name.trim(), quoted.map_or(Cow::Borrowed(value), |text| text.replace('\\', "").into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_any_form() {
        let caps = Caps::parse(
            "video/x-raw(memory:CUDAMemory, meta:A), format=(string)NV12,width = (int) 640 , height=480, \
             list=(int)< 1, 2 >, text=(string)\"a, \\\"width=1\\\", (b\", framerate=30000/1001; other, x=1",
        );
        assert_eq!(caps.media, "video/x-raw");
        assert_eq!((caps.get("format"), caps.get("list")), (Some("NV12"), Some("< 1, 2 >")));
        assert_eq!((caps.number("width"), caps.number("height")), (Some(640), Some(480)));
        assert_eq!(caps.get("text"), Some("a, \"width=1\", (b"));
        assert_eq!((caps.fraction("framerate"), caps.get("x")), (Some((30000, 1001)), None));
    }

    #[test]
    fn damaged_text_is_no_panic() {
        for text in ["", ",", ";", "a,", "a,b", "a,=", "a,b=(", "a,b=\"", "a,b=\\", "a)>,b=1", "ä,ö=\\ü\"é"]
        {
            let caps = Caps::parse(text);
            assert_eq!((caps.number("b").unwrap_or(1), caps.fraction("ö")), (1, None), "{text}");
        }
    }
}
