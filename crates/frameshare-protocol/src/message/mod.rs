// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages and their encoding as socket packets.
//!
//! A packet is an 8-byte header (magic `fshr`, the version as a little-endian `u16`, two zero
//! bytes) followed by one message in [postcard](https://postcard.jamesmunns.com/wire-format)
//! encoding. File descriptors are sent with a packet from exporter to reader only;
//! [`ToReader::fds`] returns the number for each message.

mod codec;
mod content;
mod handshake;
mod observe;
#[cfg(test)]
mod tests;
mod to_exporter;
mod to_reader;

pub use codec::{DecodeError, Malformation, TooLong, is_printable, make_printable};
pub use content::{Format, Payload, Reason, Video};
pub use handshake::{EVENT_HANDLE, GpuUuid, Hello, Nonce, Welcome};
pub use observe::{
    Disconnection, ExporterInfo, GenerationInfo, Incident, LosslessAllowed, Observe, ReaderState, Rights,
    SlowTreatment, Snapshot, StreamCounters, StreamLimits,
};
pub use to_exporter::ToExporter;
pub use to_reader::ToReader;
