// SPDX-License-Identifier: MIT OR Apache-2.0

//! Round trips of messages, and rejection of invalid ones.

use super::{codec::HEADER, *};
use crate::{
    Sequence, SlotId,
    kind::{FenceKind, MemoryKind, Policy},
    limits::{MAX_CREDIT, MAX_GPUS, MAX_KEPT_UNITS, MAX_MESSAGE, MAX_PAYLOAD, MAX_PEER_NAME, MAX_TEXT},
};

fn hello() -> Hello {
    Hello {
        nonce: [7; 16],
        name: "test".into(),
        policy: Policy::Lossless,
        credit: 4,
        max_queued: 1,
        memory: vec![MemoryKind::Host],
        fences: vec![FenceKind::None],
        gpus: vec![[1; 16]],
        context: 1,
        host_fallback: true,
        max_gop_bytes: 1 << 20,
    }
}

#[test]
fn message_round_trip_is_lossless() {
    let format = Format {
        caps: "video/x-raw, format=NV12".into(),
        video: Some(Video { format: "NV12".into(), width: 1920, height: 1080 }),
    };
    for message in [
        ToReader::Gpu { gpu: [3; 16], fence: FenceKind::Event, events: vec![1; 2 * EVENT_HANDLE] },
        ToReader::Generation { generation: 1, memory: MemoryKind::Vmm, slot_size: 1 << 21, adopted: true },
        ToReader::Slot { slot: SlotId { generation: 1, index: 3 }, handle: vec![9; 64] },
        ToReader::Retire { before: Sequence(9), generation: 1 },
        ToReader::Format { before: Sequence(9), memory: MemoryKind::Vmm, format },
        ToReader::Event { before: Sequence(9), kind: 2, payload: Payload::Sealed(100_000) },
        ToReader::Metadata { sequence: Sequence(9), payload: Payload::Inline(vec![1, 2, 3]) },
        ToReader::KeptUnits { before: Sequence(9), count: 2, size: 4096 },
        ToReader::Skipped { before: Sequence(9) },
        ToReader::EndOfStream { before: Sequence(10) },
        ToReader::Goodbye { reason: Reason::TooSlow, text: "too slow".into() },
    ] {
        assert_eq!(ToReader::decode(&message.encode().unwrap()), Ok(message));
    }
    let refusal = ToExporter::CannotImport { generation: 7, text: "invalid handle".into() };
    for message in [ToExporter::Hello(hello()), refusal, ToExporter::RequestKeyUnit] {
        assert_eq!(ToExporter::decode(&message.encode().unwrap()), Ok(message));
    }
}

#[test]
fn other_version_and_protocol_are_distinguished() {
    let mut packet = ToExporter::Hello(hello()).encode().unwrap();
    packet[4] = 9;
    assert_eq!(ToExporter::decode(&packet), Err(DecodeError::Version(9)));
    assert_eq!(ToExporter::decode(b"GET / HTTP/1.1"), Err(DecodeError::NotOurs));
    assert_eq!(ToExporter::decode(b""), Err(DecodeError::NotOurs));
}

#[test]
fn invalid_values_and_packets_are_rejected() {
    for absurd in [
        Hello { credit: 0, ..hello() },
        Hello { credit: MAX_CREDIT + 1, ..hello() },
        Hello { max_queued: 0, ..hello() },
        Hello { max_queued: MAX_CREDIT + 1, ..hello() },
        Hello { name: "x".repeat(MAX_PEER_NAME + 1), ..hello() },
        Hello { gpus: vec![[0; 16]; MAX_GPUS + 1], ..hello() },
    ] {
        let packet = ToExporter::Hello(absurd).encode().unwrap();
        assert!(matches!(ToExporter::decode(&packet), Err(DecodeError::Malformed(_))));
    }
    let packet = ToExporter::Hello(hello()).encode().unwrap();
    for length in HEADER..packet.len() {
        assert!(matches!(ToExporter::decode(&packet[..length]), Err(DecodeError::Malformed(_))), "{length}");
    }
    let longer = [packet, vec![0]].concat();
    assert_eq!(ToExporter::decode(&longer), Err(DecodeError::Malformed(Malformation::Length)));
}

#[test]
fn impossible_kept_units_are_rejected() {
    let record = 8 * crate::kept::RECORD as u64;
    let is_fine = |count, size| {
        let packet = ToReader::KeptUnits { before: Sequence(9), count, size }.encode().unwrap();
        let decoded = ToReader::decode(&packet);
        assert!(decoded.is_ok() || decoded == Err(DecodeError::Malformed(Malformation::KeptUnits)));
        decoded.is_ok()
    };
    assert!(is_fine(1, record) && is_fine(2, 2 * record) && is_fine(1, MAX_PAYLOAD));
    assert!(is_fine(MAX_KEPT_UNITS, MAX_PAYLOAD));
    for (count, size) in [
        (0, record),
        (1, 0),
        (1, record - 8),
        (1, record + 1),
        (2, record),
        (1, MAX_PAYLOAD + 8),
        (MAX_KEPT_UNITS + 1, MAX_PAYLOAD),
        (u32::MAX, u64::MAX),
    ] {
        assert!(!is_fine(count, size), "{count} units in {size} bytes");
    }
    assert_eq!(ToReader::KeptUnits { before: Sequence(9), count: 1, size: record }.fds(), 1..=1);
}

#[test]
fn peer_text_is_truncated_to_one_printable_line() {
    let text = format!("gone\n\x1b[2Jroot: all is well {}", "é".repeat(2 * MAX_TEXT));
    let goodbye = ToExporter::Goodbye { reason: Reason::Stopped, text: text.clone() };
    let refused = ToReader::Refused { reason: Reason::Stopped, text };
    let Ok(ToExporter::Goodbye { text, .. }) = ToExporter::decode(&goodbye.encode().unwrap()) else {
        panic!("expected a Goodbye message");
    };
    assert!(text.starts_with("gone??[2Jroot") && text.len() <= MAX_TEXT && !text.contains(char::is_control));
    let packet = refused.encode().unwrap();
    assert!(matches!(ToReader::decode(&packet), Ok(ToReader::Refused { text: same, .. }) if same == text));
    let packet = ToExporter::Hello(Hello { name: "a\nb".into(), ..hello() }).encode().unwrap();
    assert!(matches!(ToExporter::decode(&packet), Ok(ToExporter::Hello(hello)) if hello.name == "a?b"));
}

#[test]
fn message_over_size_limit_is_not_encoded() {
    let message =
        ToReader::Event { before: Sequence(1), kind: 0, payload: Payload::Inline(vec![0; MAX_MESSAGE]) };
    assert!(message.encode().is_err());
}
