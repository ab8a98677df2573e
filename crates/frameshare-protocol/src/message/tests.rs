// SPDX-License-Identifier: MIT OR Apache-2.0

//! Round trips of messages, and rejection of invalid ones.

use super::{codec::HEADER, *};
use crate::{
    Ages, CopyCount, Sequence, SlotId,
    kind::{FenceKind, MemoryKind, Policy},
    limits::{
        MAX_COPY_REASONS, MAX_CREDIT, MAX_FDS, MAX_GENERATIONS, MAX_GPUS, MAX_INCIDENTS, MAX_KEPT_UNITS,
        MAX_LARGE_AREAS, MAX_MESSAGE, MAX_PAYLOAD, MAX_PEER_NAME, MAX_SLOTS, MAX_SNAPSHOT, MAX_TEXT,
    },
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

const RIGHTS: Rights = Rights { uid: 1000, credit: 3, may_be_lossless: true, may_have_gpu_memory: false };

fn copies(reason: &str) -> CopyCount {
    CopyCount { reason: reason.into(), count: 3 }
}

fn snapshot() -> Snapshot {
    Snapshot {
        time: 12,
        exporter: ExporterInfo {
            pid: 1,
            uid: 1000,
            program: "camera".into(),
            engine: "0.1.0".into(),
            protocol: crate::VERSION,
            session: 3,
            started: 4,
            is_mps_client: true,
        },
        format: Some(Format { caps: "video/x-raw".into(), video: None }),
        memory: MemoryKind::Host,
        memory_why: "no GPU is used".into(),
        gpu: None,
        generations: vec![GenerationInfo {
            generation: 1,
            memory: MemoryKind::Host,
            slot_size: 4096,
            slots: 3,
            free_slots: 2,
            bytes: 12288,
            is_adopted: false,
            is_overflow: false,
            is_retired: false,
        }],
        limits: StreamLimits {
            max_slots: 256,
            max_held_limit: 16,
            lossless_readers: LosslessAllowed::OwnUid,
            slow_readers: SlowTreatment::Wait,
            reader_timeout: u64::MAX,
            max_queued_bytes: 1,
            max_queued_time: 2,
            queue_for_other_users: false,
            history: 1,
            fence_timeout: 4,
            max_retired_bytes: 5,
            max_gop_bytes: 6,
            fence: Some(FenceKind::Timeline),
        },
        counters: StreamCounters { published: 9, copies: vec![copies("no-free-slot")], ..Default::default() },
        readers: vec![ReaderState {
            id: 1,
            pid: 2,
            uid: 3,
            name: "reader".into(),
            policy: Policy::Lossless,
            credit: 4,
            max_queued: 4,
            held: 1,
            queued: 2,
            waiting: 3,
            sent: 5,
            lost: 6,
            lag: 7,
            fence: FenceKind::None,
            fence_why: "host frames are complete".into(),
            memory: MemoryKind::Host,
            cannot_adopt: None,
            ages: Ages { sum: 8, ..Default::default() },
            copies: vec![copies("credit")],
        }],
        incidents: vec![Incident {
            time: 1,
            reader: None,
            pid: 2,
            uid: 3,
            name: String::new(),
            reason: Reason::NoCreditLeft,
            text: "full".into(),
        }],
    }
}

#[test]
fn snapshot_round_trip_is_lossless() {
    assert_eq!(Snapshot::decode(&snapshot().encode()), Ok(snapshot()));
}

#[test]
fn invalid_snapshots_are_rejected() {
    const INVALID: Result<Snapshot, DecodeError> = Err(DecodeError::Malformed(Malformation::Snapshot));
    let bytes = snapshot().encode();
    for length in 0..bytes.len() {
        assert_eq!(Snapshot::decode(&bytes[..length]), INVALID, "{length}");
    }
    assert_eq!(Snapshot::decode(&[bytes, vec![0]].concat()), INVALID);
    assert_eq!(Snapshot::decode(&vec![0; MAX_SNAPSHOT as usize + 1]), INVALID);
    let good = snapshot();
    let readers = vec![good.readers[0].clone(); MAX_SLOTS as usize + 1];
    let incidents = vec![good.incidents[0].clone(); MAX_INCIDENTS + 1];
    let generations = vec![good.generations[0].clone(); MAX_GENERATIONS + 1];
    let of_stream = |copies| {
        let counters = StreamCounters { copies, ..good.counters.clone() };
        Snapshot { counters, ..good.clone() }
    };
    let of_reader = ReaderState { copies: vec![copies("\u{1b}")], ..good.readers[0].clone() };
    for absurd in [
        of_stream(vec![copies("A")]),
        of_stream(vec![copies("")]),
        of_stream(vec![copies(&"a".repeat(33))]),
        of_stream(vec![copies("a"); MAX_COPY_REASONS + 1]),
        Snapshot { readers: vec![of_reader], ..good.clone() },
        Snapshot { readers, ..good.clone() },
        Snapshot { incidents, ..good.clone() },
        Snapshot { generations, ..good.clone() },
    ] {
        assert_eq!(Snapshot::decode(&absurd.encode()), INVALID);
    }
    for size in [0, MAX_SNAPSHOT + 1] {
        let message = ToReader::Snapshot { request: 0, rights: RIGHTS, payload: Payload::Sealed(size) };
        let decoded = ToReader::decode(&message.encode().unwrap());
        assert_eq!(decoded, Err(DecodeError::Malformed(Malformation::Snapshot)));
    }
    let observe = Observe { name: "x".repeat(MAX_PEER_NAME + 1), interval_ms: 0 };
    let decoded = ToExporter::decode(&ToExporter::Observe(observe).encode().unwrap());
    assert_eq!(decoded, Err(DecodeError::Malformed(Malformation::Observe)));
}

/// The largest stream fits.
#[test]
fn largest_snapshot_is_accepted() {
    let mut largest = snapshot();
    let (name, text) = ("n".repeat(MAX_PEER_NAME), "t".repeat(MAX_TEXT));
    let reader = ReaderState {
        name: name.clone(),
        fence_why: text.clone(),
        cannot_adopt: Some(text.clone()),
        ..largest.readers[0].clone()
    };
    largest.readers = vec![reader; MAX_SLOTS as usize];
    largest.incidents = vec![Incident { name, text, ..largest.incidents[0].clone() }; MAX_INCIDENTS];
    largest.generations = vec![largest.generations[0].clone(); MAX_GENERATIONS];
    largest.format = Some(Format { caps: "c".repeat(MAX_MESSAGE), video: None });
    assert_eq!(Snapshot::decode(&largest.encode()), Ok(largest));
}

#[test]
fn snapshot_text_is_one_printable_line() {
    let mut snapshot = snapshot();
    let hostile = || format!("\x1b[2J\n{}", "é".repeat(2 * MAX_TEXT));
    snapshot.exporter.program = hostile();
    snapshot.memory_why = hostile();
    snapshot.readers[0].name = hostile();
    snapshot.incidents[0].text = hostile();
    let decoded = Snapshot::decode(&snapshot.encode()).unwrap();
    let texts = [
        &decoded.exporter.program,
        &decoded.memory_why,
        &decoded.readers[0].name,
        &decoded.incidents[0].text,
    ];
    assert!(texts.iter().all(|text| text.starts_with("?[2J?") && text.len() <= MAX_TEXT));
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
        ToReader::Event { before: Sequence(9), kind: 2, sticky: true, payload: Payload::Sealed(100_000) },
        ToReader::Metadata { sequence: Sequence(9), payload: Payload::Inline(vec![1, 2, 3]) },
        ToReader::KeptUnits { before: Sequence(9), count: 2, size: 4096 },
        ToReader::Skipped { before: Sequence(9) },
        ToReader::EndOfStream { before: Sequence(10) },
        ToReader::Goodbye { reason: Reason::TooSlow, text: "too slow".into() },
        ToReader::Snapshot { request: 7, rights: RIGHTS, payload: Payload::Inline(snapshot().encode()) },
        ToReader::Snapshot { request: 0, rights: RIGHTS, payload: Payload::Sealed(100_000) },
        ToReader::Disconnected { reader: 5, outcome: Disconnection::NoSuchReader },
        ToReader::RetireSlot { slot: SlotId { generation: 1, index: u32::MAX } },
        ToReader::LargeAreas { count: MAX_LARGE_AREAS },
    ] {
        assert_eq!(ToReader::decode(&message.encode().unwrap()), Ok(message));
    }
    let refusal = ToExporter::CannotImport { generation: 7, text: "invalid handle".into() };
    for message in [
        ToExporter::Hello(hello()),
        refusal,
        ToExporter::RequestKeyUnit,
        ToExporter::CopiesForLayout,
        ToExporter::Observe(Observe { name: "top".into(), interval_ms: 100 }),
        ToExporter::RequestSnapshot { request: 8 },
        ToExporter::Disconnect { reader: 5 },
        ToExporter::RetiredSlot { slot: SlotId { generation: 1, index: u32::MAX } },
    ] {
        assert_eq!(ToExporter::decode(&message.encode().unwrap()), Ok(message));
    }
}

#[test]
fn other_version_and_protocol_are_distinguished() {
    let mut packet = ToExporter::Hello(hello()).encode().unwrap();
    packet[4] += 1;
    assert_eq!(ToExporter::decode(&packet), Err(DecodeError::Version(crate::VERSION + 1)));
    assert_eq!(ToExporter::decode(b"GET / HTTP/1.1"), Err(DecodeError::NotOurs));
    assert_eq!(ToExporter::decode(b""), Err(DecodeError::NotOurs));
}

#[test]
fn invalid_values_and_packets_are_rejected() {
    for absurd in [
        Hello { credit: MAX_CREDIT + 1, ..hello() },
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
fn impossible_large_areas_are_rejected() {
    for count in [0, MAX_LARGE_AREAS + 1, u32::MAX] {
        let decoded = ToReader::decode(&ToReader::LargeAreas { count }.encode().unwrap());
        assert_eq!(decoded, Err(DecodeError::Malformed(Malformation::Areas)), "{count}");
    }
    assert_eq!(ToReader::LargeAreas { count: 1 }.fds(), 1..=1);
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
    // Ends of lines, orders of text, and invisible characters of Unicode are replaced, too.
    for c in "\n\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{200f}\u{61c}\u{feff}\u{ad}\u{e0041}".chars() {
        let packet = ToExporter::Hello(Hello { name: format!("a{c}b"), ..hello() }).encode().unwrap();
        let decoded = ToExporter::decode(&packet);
        assert!(matches!(decoded, Ok(ToExporter::Hello(hello)) if hello.name == "a?b"), "{c:?}");
    }
    let name = "Kamera Süd 日本 עברית 🎥";
    let packet = ToExporter::Hello(Hello { name: name.into(), ..hello() }).encode().unwrap();
    assert!(matches!(ToExporter::decode(&packet), Ok(ToExporter::Hello(hello)) if hello.name == name));
}

#[test]
fn message_over_size_limit_is_not_encoded() {
    let message = ToReader::Event {
        before: Sequence(1),
        kind: 0,
        sticky: false,
        payload: Payload::Inline(vec![0; MAX_MESSAGE]),
    };
    assert!(message.encode().is_err());
}

/// A payload is its length as a varint and its bytes unchanged, so that a copy encodes and decodes
/// it.
#[test]
fn inline_payload_is_encoded_as_its_bytes() {
    let bytes: Vec<u8> = (0..60_000_u32).map(|i| i as u8).collect();
    let message = ToReader::Metadata { sequence: Sequence(5), payload: Payload::Inline(bytes.clone()) };
    let packet = message.encode().expect("60 kB fit");
    assert!(
        packet.ends_with(&[&[0xE0, 0xD4, 0x03][..], &bytes].concat()),
        "60000 as a varint, and the bytes"
    );
    assert_eq!(ToReader::decode(&packet), Ok(message));
}

/// Four pages and sockets, the timeline page, and the wake-up page.
#[test]
fn welcome_has_descriptors_of_its_pages() {
    let count = |fence, wake_word| {
        let welcome = Welcome {
            nonce: [7; 16],
            session: 1,
            policy: Policy::Latest,
            credit: 4,
            fence,
            events: Vec::new(),
            gpu: None,
            areas: 1,
            next: Sequence(1),
            live: Sequence(1),
            wake_word,
        };
        ToReader::Welcome(welcome).fds()
    };
    assert_eq!((count(FenceKind::None, None), count(FenceKind::None, Some(0))), (4..=4, 5..=5));
    assert_eq!((count(FenceKind::Timeline, None), count(FenceKind::Timeline, Some(0))), (5..=5, 6..=6));
    assert_eq!(*count(FenceKind::Timeline, Some(0)).end(), MAX_FDS);
}
