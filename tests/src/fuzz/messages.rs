// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzz targets of the control message decoders of both sides.

use frameshare_protocol::{
    limits::MAX_FDS,
    message::{Payload, Snapshot, ToExporter, ToReader},
};

/// Decodes a packet as an exporter does. Encoding an accepted message again gives the same message.
pub fn to_exporter(packet: &[u8]) {
    if let Ok(message) = ToExporter::decode(packet)
        && let Ok(again) = message.encode()
    {
        assert_eq!(ToExporter::decode(&again), Ok(message));
    }
}

/// Decodes a packet as a reader does.
pub fn to_reader(packet: &[u8]) {
    if let Ok(message) = ToReader::decode(packet) {
        assert!(*message.fds().end() <= MAX_FDS);
        if let ToReader::Snapshot { payload: Payload::Inline(bytes), .. } = &message
            && let Ok(snapshot) = Snapshot::decode(bytes)
        {
            assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
        }
        if let Ok(again) = message.encode() {
            assert_eq!(ToReader::decode(&again), Ok(message));
        }
    }
}
