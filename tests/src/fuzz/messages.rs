//! Control messages, as either side decodes them.

use frameshare_protocol::{
    limits::MAX_FDS,
    message::{ToExporter, ToReader},
};

/// A packet as an exporter gets it. What it takes for a message is one: written again it reads the same.
pub fn to_exporter(packet: &[u8]) {
    if let Ok(message) = ToExporter::decode(packet)
        && let Ok(again) = message.encode()
    {
        assert_eq!(ToExporter::decode(&again), Ok(message));
    }
}

/// A packet as a reader gets it.
pub fn to_reader(packet: &[u8]) {
    if let Ok(message) = ToReader::decode(packet) {
        assert!(*message.fds().end() <= MAX_FDS);
        if let Ok(again) = message.encode() {
            assert_eq!(ToReader::decode(&again), Ok(message));
        }
    }
}
