// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between server and page on the WebSocket.
//!
//! Texts are JSON with a field `type`. Pictures and units are binary, with a header of 16 bytes in
//! little-endian order: kind, flags, number of the channel (2 bytes), age in ms (4 bytes,
//! `u32::MAX` if unknown), key of the frame (8 bytes). The page acknowledges each of them, so that
//! a bounded number is on the way.

use super::media::Identity;
use axum::body::Bytes;
use serde::Deserialize;

/// Length of the header of binary messages.
pub const HEADER: usize = 16;

/// Binary messages. Values are those of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JPEG of a camera; the channel is the index of the camera.
    Tile = 1,
    /// Unit of the camera in focus; the channel is the number of the focus.
    Unit = 2,
    /// JPEG of the camera in focus.
    Picture = 3,
}

/// Flag of a unit that can be decoded first.
pub const KEY: u8 = 1;

/// Requests of a page.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", tag = "type", deny_unknown_fields)]
pub enum Request {
    /// The cameras whose tiles are visible.
    Watch { cameras: Vec<usize> },
    /// The page has drawn the tile of this camera.
    Drawn { camera: usize },
    /// The page has taken messages of its focus.
    Taken { focus: u16, count: u32 },
    /// The page shows this camera alone. It numbers each change.
    Focus { focus: u16, camera: Option<usize>, mode: Mode },
}

/// Form of the video of a camera that is shown alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Units,
    Pictures,
}

/// Returns a binary message.
pub fn binary(kind: Kind, flags: u8, channel: u16, identity: Identity, content: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(HEADER + content.len());
    message.extend([kind as u8, flags]);
    message.extend(channel.to_le_bytes());
    message.extend(identity.age.unwrap_or(u32::MAX).to_le_bytes());
    message.extend(identity.key.to_le_bytes());
    message.extend(content);
    message.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_layout_of_the_page() {
        let identity = Identity { key: 0x0102_0304_0506_0708, age: Some(258) };
        let message = binary(Kind::Unit, KEY, 0x0a0b, identity, b"xy");
        let expected = [2, 1, 0x0b, 0x0a, 2, 1, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, b'x', b'y'];
        assert_eq!((&message[..], HEADER), (&expected[..], 16));
        let unknown = binary(Kind::Tile, 0, 0, Identity::default(), b"");
        assert_eq!(unknown[4..8], [0xff; 4]);
    }

    #[test]
    fn requests_are_read_and_others_refused() {
        let read = |text| serde_json::from_str::<Request>(text);
        let focus = read(r#"{"type":"focus","focus":3,"camera":1,"mode":"units"}"#).unwrap();
        assert_eq!(focus, Request::Focus { focus: 3, camera: Some(1), mode: Mode::Units });
        assert_eq!(
            read(r#"{"type":"watch","cameras":[0,2]}"#).unwrap(),
            Request::Watch { cameras: vec![0, 2] }
        );
        let refused = [
            "",
            "[]",
            r#"{"type":"kill"}"#,
            r#"{"type":"drawn","camera":-1}"#,
            r#"{"type":"drawn","camera":1,"x":1}"#,
        ];
        for text in refused {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
