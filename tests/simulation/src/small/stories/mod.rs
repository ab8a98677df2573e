// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decisions of an exporter that no rule of a random run can know: who is admitted with how much
//! credit, when a slow reader is reported and evicted, which memory is used again. Each story is
//! one run, in which each task runs until it waits.

mod delivery;
mod guest;
mod lifetime;

use super::{
    Script, Size, Small,
    stage::{PAGE, Stage, reader, settings},
};
use crate::{
    choices::Choices,
    end::End,
    run::{Run, World},
    stream::{
        exporter::Settings,
        memory::Memory,
        process::EXPORTER,
        reader::{Behaviour, hello},
    },
    task::{block, now},
};
use frameshare_core::exporter::{
    limits::{Limits, SlowReaders},
    notice::Notice,
    peer::Peer,
    state::Left,
    system::{self, Slot as _},
};
use frameshare_protocol::{
    MemoryKind, Policy,
    message::{Format, Hello, Reason},
};
use guest::Guest;
use std::time::Duration;

const PLENTY: Left = Left { files: None, all_files: 1000, memory: None };

/// Runs a story once.
fn tell(exporter: fn(u32) -> Settings, begin: fn(&Stage, u32)) {
    let script = Script { name: "story", goals: &[], exporter, begin };
    let world = Small { script, size: Size { readers: 1, deviations: 0 } };
    let report = world.run(Run::traced(Choices::listed(Vec::new())));
    if report.end != End::Done {
        report.trace.iter().for_each(|line| println!("{line}"));
        panic!("{:?}", report.end);
    }
}

fn host(_: u32) -> Settings {
    settings(MemoryKind::Host, 16, false)
}

fn gpu(_: u32) -> Settings {
    settings(MemoryKind::Vmm, 16, false)
}

fn with_limits(change: impl Fn(&mut Limits)) -> Settings {
    let mut settings = host(1);
    change(&mut settings.limits);
    settings
}

fn peer(is_own: bool) -> Peer {
    Peer { is_own, is_own_or_root: is_own, ..reader(Policy::Latest).peer }
}

/// Two slots are for the frame that is written and the next one, a quarter of all for readers of
/// the own user.
#[test]
fn credit_leaves_slots_for_the_stream_and_for_the_own_user() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            stage.exporter.with(|state| {
                assert_eq!((state.credit_left(true), state.credit_left(false)), (14, 10));
                let mut promise = |is_own, asked| {
                    let credit = state.promise(&peer(is_own), asked, PLENTY).unwrap();
                    let left = (state.credit_left(true), state.credit_left(false));
                    state.end_promise();
                    (credit, left)
                };
                // An automatic credit is small while others may join; none exceeds `max_held`.
                assert_eq!(promise(true, 0), (2, (12, 8)));
                assert_eq!(promise(false, 1), (1, (13, 9)));
                assert_eq!(promise(false, 100), (4, (10, 6)));
                assert_eq!(state.credit_left(true), 14);
            });
        });
    });
}

/// A reader of which the exporter could not hold the frames is refused, with the numbers.
#[test]
fn reader_is_refused_without_files_or_gpu_memory() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let promise = |files, memory| {
                let left = Left { files: Some(files), memory: Some(memory), ..PLENTY };
                stage.exporter.with(|state| {
                    let promised = state.promise(&peer(true), 3, left).map_err(|refusal| refusal.text);
                    promised.map(|_| state.end_promise())
                })
            };
            // Eight files of the reader, its three slots, and two of the stream.
            let refusal = promise(12, u64::MAX).unwrap_err();
            assert!(
                refusal.contains("only 12 more of 1000 files") && refusal.contains("need 13"),
                "{refusal}"
            );
            // Before the first frame the size of a slot is unknown.
            promise(13, 0).unwrap();
            stage.publish(PAGE);
            // One slot is there.
            promise(12, u64::MAX).unwrap();
            let refusal = promise(12, 4 * PAGE - 1).unwrap_err();
            assert!(refusal.contains("need 16384"), "{refusal}");
            promise(12, 4 * PAGE).unwrap();
        });
    });
}

/// The same memory has one slot while it is in use. A further kind, size or dma-buf than fits in
/// its generation begins another one.
#[test]
fn memory_is_adopted_once() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let careless = Default::default();
            let memory = |size| Memory::new(MemoryKind::DmaBuf, size, &careless);
            let (first, larger) = (memory(PAGE), memory(2 * PAGE));
            let slot = stage.exporter.adopt(&first, 1).unwrap();
            assert_eq!(stage.exporter.adopt(&first, 1).unwrap().id(), slot.id());
            let other = stage.exporter.adopt(&larger, 100).unwrap();
            assert_ne!(other.id().generation, slot.id().generation);
            let others: Vec<_> =
                (2..=64).map(|id| stage.exporter.adopt(&memory(PAGE), id).unwrap()).collect();
            assert!(others.iter().all(|other| other.id().generation == slot.id().generation));
            let is_retired = |stage: &Stage| stage.exporter.with(|state| state.slots().is_retired(&slot));
            assert!(!is_retired(stage));
            let beyond = stage.exporter.adopt(&memory(PAGE), 65).unwrap();
            assert!(beyond.id().generation > other.id().generation && is_retired(stage));
            stage.exporter.with(|state| state.retire_adopted());
        });
    });
}

/// A reader that holds the stream back is reported after half of `reader-timeout`, once, and
/// evicted after all of it.
#[test]
fn stuck_reader_is_reported_and_evicted_in_time() {
    let exporter = |_| with_limits(|limits| limits.slow_readers = SlowReaders::Wait);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            stage.join(1);
            stage.publish(PAGE);
            block("lets the reader take it", Some(now() + Duration::from_nanos(1)), || false);
            let begun = now();
            // The reader has no credit for the second frame.
            stage.publish(PAGE);
            let notices = stage.record.notices.take();
            assert_eq!((now() - begun).as_millis(), 1000);
            let reported =
                |notice: &&(crate::time::Time, Notice)| matches!(notice.1, Notice::ReaderBlocking { .. });
            let reports: Vec<_> =
                notices.iter().filter(reported).map(|(at, _)| (*at - begun).as_millis()).collect();
            assert_eq!(reports, [500]);
            let evicted = notices.iter().find_map(|(at, notice)| match notice {
                Notice::ReaderRemoved { reason, .. } => Some(((*at - begun).as_millis(), *reason)),
                _ => None,
            });
            assert_eq!(evicted, Some((1000, Reason::TooSlow)));
        });
        let stuck = Behaviour { holds: 1, on_gpu: false, ..reader(Policy::Lossless) };
        stage.read(EXPORTER + 1, Behaviour { is_blameless: false, ..stuck });
    });
}

/// A slow stream's last frame is for readers that join later, but not that of another format.
#[test]
fn last_frame_is_kept_for_later_readers() {
    let exporter = |_| settings(MemoryKind::Host, 16, true);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let last = |stage: &Stage| {
                stage
                    .exporter
                    .with(|state| state.last_for(false, None).map(|last| last.descriptor.sequence.0))
            };
            assert_eq!(last(stage), None);
            stage.publish(PAGE);
            stage.publish(PAGE);
            assert_eq!(last(stage), Some(2));
            stage
                .exporter
                .with(|state| state.set_format(Format { caps: "video/x-raw, width=2".into(), video: None }));
            assert_eq!(last(stage), None);
            stage.publish(PAGE);
            stage.exporter.with(|state| state.set_history(false));
            assert_eq!(last(stage), None);
            stage.exporter.with(|state| state.set_history(true));
            assert_eq!(last(stage), None);
        });
    });
}

/// A reader of downloads gets the last frame if the memory for it is large enough.
#[test]
fn last_frame_is_downloaded_into_memory_of_its_size() {
    let exporter = |_| settings(MemoryKind::Vmm, 16, true);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            stage.publish(2 * PAGE);
            let host = |size| {
                let memory = stage.exporter.with(|state| state.system().files.slot(MemoryKind::Host, size));
                stage.exporter.with(|state| {
                    system::System::slot(state.system(), Default::default(), false, memory.clone())
                })
            };
            let [small, large] = [PAGE - 1, PAGE].map(host);
            stage.exporter.with(|state| {
                assert_eq!(state.last_to_download(), Some(PAGE));
                assert!(state.last_for(false, None).is_some());
                assert!(state.last_for(true, None).is_none());
                assert!(state.last_for(true, Some(&small)).is_none());
                assert!(state.last_for(true, Some(&large)).is_some());
            });
        });
    });
}

/// The queue of a reader of the newest frames is as long as it asks for, or suits the stream, and
/// never longer than its credit.
#[test]
fn queue_is_within_credit() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let queue = |policy, asked, credit| {
                let hello = Hello { policy, max_queued: asked, ..hello(2, &reader(policy)) };
                stage.exporter.with(|state| state.new_reader(&peer(true), &hello, credit).max_queued)
            };
            assert_eq!(queue(Policy::Latest, 3, 4), 3);
            assert_eq!(queue(Policy::Latest, 5, 4), 4);
            assert_eq!((queue(Policy::Latest, 0, 4), queue(Policy::Latest, 0, 1)), (2, 1));
            assert_eq!(queue(Policy::Lossless, 1, 4), 4);
        });
    });
}

/// A reader that joins later gets the last sticky event of each kind, one in a file of its own,
/// too.
#[test]
fn long_sticky_event_is_kept_for_later_readers() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            stage.exporter.with(|state| {
                for number in [1_u64, 2] {
                    stage.record.events.set(number);
                    state.send_event(4, true, number.to_le_bytes().repeat(10_000));
                }
            });
            stage.join(1);
            block("lets the reader take it", Some(now() + Duration::from_nanos(1)), || false);
            assert_eq!(stage.record.last_event.get(), 2);
        });
        stage.read(EXPORTER + 1, Behaviour { on_gpu: false, ..reader(Policy::Lossless) });
    });
}

/// Statistics tell what a reader holds, may take and has lost.
#[test]
fn statistics_count_the_frames_of_a_reader() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            stage.join(1);
            stage.publish(PAGE);
            block("lets the reader take it", Some(now() + Duration::from_nanos(1)), || false);
            (0..3).for_each(|_| stage.publish(PAGE));
            stage.exporter.with(|state| {
                let stats = state.stats();
                let [reader] = &stats.readers[..] else { panic!("{:?}", stats.readers) };
                assert_eq!((reader.held, reader.queued, reader.waiting), (1, 1, 0), "{reader:?}");
                assert_eq!((reader.sent, reader.lost, reader.lag), (4, 2, 1), "{reader:?}");
                assert_eq!((stats.published, stats.readers_total, stats.waiting_bytes), (4, 1, 0));
                assert_eq!((stats.slots, stats.free_slots, stats.slot_size), (3, 1, PAGE));
                assert_eq!((stats.retired_bytes, stats.gop_units, stats.trimmed_slots), (0, 0, 0));
            });
        });
        let stuck = Behaviour { credit: 2, holds: 1, on_gpu: false, ..reader(Policy::Latest) };
        stage.read(EXPORTER + 1, stuck);
    });
}
