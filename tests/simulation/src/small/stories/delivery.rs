// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stories of frames on their way to readers: offers, backlogs, downloads, kept frames, leases.

use super::*;
use crate::stream::{
    exporter::{Failed, Frame},
    gpu::{Work, Written},
    system::{Simulated, Slot},
};
use frameshare_core::exporter::{now::Now, state::State, unit::Unit, wait::Awaited};
use frameshare_protocol::{
    Descriptor, EntryIndex, FenceKind, Sequence,
    message::{ToExporter, ToReader},
};
use frameshare_queue::Sleeper;

impl Guest {
    /// Takes and releases all frames, and returns their numbers.
    fn take_all(&self) -> Vec<u64> {
        let read = |(entry, Descriptor { sequence, .. })| {
            self.consumer.release(entry, sequence);
            sequence.0
        };
        std::iter::from_fn(|| self.take().map(read)).collect()
    }

    /// Takes a wake-up. Returns false if there is none.
    fn is_woken(&self) -> bool {
        let is_woken = self.channel.peek_wake_for_reader();
        self.channel.drain_for_reader();
        is_woken
    }
}

/// Lets the service thread do all that it can do at this time.
fn settle() {
    wait(Duration::from_nanos(1));
}

fn wait(time: Duration) {
    block("wait", Some(now() + time), || false);
}

/// A reader of host memory with this credit, all of which may be untaken frames.
fn with_credit(policy: Policy, credit: u32) -> Behaviour {
    Behaviour { credit, max_queued: credit, on_gpu: false, ..reader(policy) }
}

fn on_gpu(policy: Policy, credit: u32) -> Behaviour {
    Behaviour { on_gpu: true, ..with_credit(policy, credit) }
}

/// Publishes a unit that the GPU or the CPU writes.
fn publish(stage: &Stage, slot: &Slot, written: Written<'_>, unit: Unit) -> Result<Sequence, Failed> {
    let tag = stage.record.tag();
    slot.memory().begin_write(EXPORTER);
    slot.memory().end_write(EXPORTER, tag);
    stage.exporter.publish(&Frame { slot, written, tag, unit, metadata: 0, is_late: false }, None)
}

fn publish_units(stage: &Stage, units: &[Unit]) {
    for unit in units {
        publish(stage, &stage.acquire(PAGE), Written::Cpu, *unit).unwrap();
    }
}

/// The number of frames that the first reader has lost, present or draining.
fn lost(state: &mut State<Simulated>) -> u64 {
    let stats = state.stats();
    stats.readers.iter().chain(&stats.draining).next().map_or(0, |reader| reader.lost)
}

/// A frame, a message and the end of an import wake a reader that sleeps. No system call is made
/// for a reader that is awake, or if there is nothing new.
#[test]
fn only_a_sleeping_reader_is_woken() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let reader = Guest::join(stage, 1, with_credit(Policy::Latest, 4));
            let slot = stage.acquire(PAGE);
            let event = |state: &mut State<Simulated>| state.send_event(4, true, vec![0; 8]);
            let retire = |state: &mut State<Simulated>, slots: &[Slot]| {
                state.readers_mut().present_mut()[0].retire_slots(slots).unwrap();
            };
            let check = |expected, step: &dyn Fn(&mut State<Simulated>)| {
                for is_woken in [false, expected] {
                    stage.exporter.with(step);
                    assert_eq!(reader.is_woken(), is_woken);
                    reader.receive();
                    reader.consumer.announce_sleep(Sleeper::Socket);
                }
                reader.consumer.end_sleep();
            };
            check(true, &event);
            // More messages than the socket takes.
            stage.exporter.with(|state| (0..20).for_each(|_| event(state)));
            assert!(!reader.is_woken(), "an awake reader receives them in time");
            reader.receive();
            settle();
            check(false, &|state| state.flush(1));
            check(false, &|state| retire(state, &[]));
            stage.publish_in(&slot);
            assert!(!reader.is_woken(), "an awake reader finds the frame");
            reader.consumer.announce_sleep(Sleeper::Socket);
            stage.publish(PAGE);
            assert!(reader.is_woken());
            reader.consumer.end_sleep();
            stage.exporter.with(|state| retire(state, std::slice::from_ref(&slot)));
            assert!(!reader.is_woken());
        });
    });
}

/// A reader sends a wake-up for a release only while the exporter waits: a thread of it, or frames
/// in the reader's backlog.
#[test]
fn release_sends_a_wake_up_while_frames_wait() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let reader = Guest::join(stage, 1, with_credit(Policy::Lossless, 1));
            let release =
                |(entry, frame): (EntryIndex, Descriptor)| reader.consumer.release(entry, frame.sequence);
            let wait_in_vain = || {
                let until = Some(now() + Duration::from_millis(1));
                assert_eq!(stage.exporter.wait_until(until, Awaited::Readers, |_| None::<()>), None);
            };
            assert!(stage.exporter.with(|state| state.has_room()));
            assert!(!stage.exporter.with(|state| state.readers().present()[0].is_direct()));
            stage.publish(PAGE);
            let first = reader.take().unwrap();
            assert!(!stage.exporter.with(|state| state.has_room()));
            stage.publish(PAGE);
            settle();
            wait_in_vain();
            assert!(release(first), "a frame waits");
            reader.channel.wake_exporter();
            settle();
            let second = reader.take().expect("the frame is delivered");
            wait_in_vain();
            assert!(!release(second), "no frame waits");
            stage.publish(PAGE);
            let third = reader.take().unwrap();
            stage.publish(PAGE);
            // A release before the flag is set sends no wake-up, and is found all the same.
            release(third);
            stage.exporter.with(|state| {
                state.announce_waits();
                assert!(!state.has_backlogs());
            });
        });
    });
}

/// A delta unit takes no other unit's place. A reader that has lost one gets the next key unit, for
/// which its oldest units leave, and they count as lost; or a delta unit if none comes for 2 s.
#[test]
fn latest_reader_resumes_at_a_key_unit_after_a_loss() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let readers = [(1, 4), (2, 2)].map(|(number, credit)| {
                let behaviour = Behaviour { max_queued: 2, ..with_credit(Policy::Latest, credit) };
                Guest::join(stage, number, behaviour)
            });
            let take_all = || readers.each_ref().map(Guest::take_all);
            publish_units(stage, &[Unit::Key, Unit::Delta, Unit::Delta]);
            assert!(readers.iter().all(|reader| reader.take().is_some()), "they hold the first unit");
            // The third one was lost, and the fourth depends on it.
            publish_units(stage, &[Unit::Delta]);
            assert_eq!(stage.exporter.with(lost), 2);
            publish_units(stage, &[Unit::Key, Unit::Delta]);
            assert_eq!(take_all(), [vec![2, 5], vec![5]]);
            publish_units(stage, &[Unit::Key, Unit::Key, Unit::Delta, Unit::Key]);
            assert_eq!((take_all(), stage.exporter.with(lost)), ([vec![8, 10], vec![10]], 5));
            publish_units(stage, &[Unit::Delta, Unit::Delta, Unit::Delta]);
            for expected in [[vec![11, 12], vec![11]], [vec![], vec![]], [vec![15], vec![15]]] {
                assert_eq!(take_all(), expected);
                wait(Duration::from_secs(1));
                publish_units(stage, &[Unit::Delta]);
            }
        });
    });
}

/// If a slot is taken back, the oldest unit leaves with those that depend on it. The reader waits
/// for a key unit if these were its newest units, and only then.
#[test]
fn units_are_revoked_with_those_that_depend_on_them() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let reader = Guest::join(stage, 1, with_credit(Policy::Latest, 4));
            let revoke = |stage: &Stage| {
                stage.exporter.with(|state| {
                    let (mut ended, leases) = (Vec::new(), &mut state.readers_mut().present_mut()[0].leases);
                    leases.revoke_oldest(&mut ended, |_| true, &Now::default()).unwrap().unwrap();
                    ended.iter().for_each(|area| state.end_lease(*area));
                    ended.len()
                })
            };
            publish_units(stage, &[Unit::Key, Unit::Delta, Unit::Key, Unit::Delta]);
            assert_eq!(revoke(stage), 2);
            publish_units(stage, &[Unit::Delta]);
            assert_eq!(revoke(stage), 3);
            publish_units(stage, &[Unit::Delta, Unit::Delta]);
            assert!(reader.take().is_none(), "they depend on a unit that the reader has lost");
            publish_units(stage, &[Unit::Key, Unit::Delta]);
            assert_eq!((reader.take_all(), stage.exporter.with(lost)), (vec![8, 9], 7));
        });
    });
}

/// The untaken frames of an evicted reader are revoked from the newest on: the reader may take the
/// oldest ones meanwhile, and so no unit whose predecessor is gone.
#[test]
fn evicted_reader_loses_the_newest_frame_first() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let _reader = Guest::join(stage, 1, with_credit(Policy::Latest, 3));
            publish_units(stage, &[Unit::Key, Unit::Delta, Unit::Delta]);
            stage.exporter.with(|state| {
                let (mut ended, leases) = (Vec::new(), &mut state.readers_mut().present_mut()[0].leases);
                let published: Vec<_> = leases.areas().collect();
                leases.revoke_untaken(&mut ended, &Now::default()).unwrap();
                assert!(published.len() == 3 && published.iter().rev().eq(&ended), "{published:?} {ended:?}");
                ended.iter().for_each(|area| state.end_lease(*area));
            });
        });
    });
}

/// A reader that joins between two key units is told which units were not for it, before the frame
/// or the end of the stream that follows. They are not lost.
#[test]
fn joining_reader_is_told_of_skipped_units() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            for last in [Some(Unit::Key), Some(Unit::Whole), None] {
                publish_units(stage, &[Unit::Key]);
                let reader = Guest::join(stage, 1, with_credit(Policy::Latest, 4));
                publish_units(stage, &[Unit::Delta, Unit::Delta]);
                let next = stage.exporter.with(|state| state.next_sequence());
                assert_eq!((reader.take(), reader.receive().len()), (None, 0));
                match last {
                    Some(unit) => publish_units(stage, &[unit]),
                    None => stage.exporter.with(|state| state.end_of_stream()),
                }
                let messages = reader.receive();
                assert_eq!(messages[0], ToReader::Skipped { before: next });
                assert!(messages[1..].iter().all(|other| !matches!(other, ToReader::Skipped { .. })));
                assert_eq!((reader.take_all().len(), stage.exporter.with(lost)), (last.iter().count(), 0));
                drop(reader);
                settle();
            }
        });
    });
}

/// The frames that a reader holds whose GPU has failed stay leased until its process ends, or for
/// the fence timeout. Those of another reader that was evicted return when it closes
/// its connection.
#[test]
fn frames_of_a_failed_reader_stay_leased_for_the_fence_timeout() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let goodbye = ToExporter::Goodbye { reason: Reason::Failed, text: "its GPU has failed".into() };
            let is_leased = || stage.exporter.with(|state| state.publications().leased().next().is_some());
            for steps in ["fail, close, exit", "fail, close", "evict, fail", "fail", "evict, close"] {
                let has = |step| steps.contains(step);
                let reader = Guest::join(stage, 1, on_gpu(Policy::Latest, 3));
                (0..3).for_each(|_| stage.publish(PAGE));
                assert!(reader.take().is_some());
                let id = stage.exporter.with(|state| state.readers().total());
                if has("evict") {
                    stage.exporter.with(|state| state.disconnect(id, "a test"));
                    assert_eq!(stage.exporter.with(lost), 2);
                }
                if has("fail") {
                    reader.channel.send_to_exporter(goodbye.clone());
                }
                settle();
                if has("close") {
                    reader.channel.close_reader();
                }
                wait(Duration::from_millis(990));
                assert_eq!(is_leased(), has("fail"), "{steps}");
                if has("exit") {
                    reader.channel.exit_reader();
                }
                wait(Duration::from_millis(if has("exit") { 1 } else { 20 }));
                assert!(!is_leased());
                drop(reader);
                settle();
            }
        });
    });
}

/// GPU work of readers ends mostly in the order of the frames. So frames behind a pending event are
/// polled once a millisecond, and in each poll after one of them was found to be released earlier.
#[test]
fn frames_behind_a_pending_event_are_polled_at_times() {
    let exporter = |_| Settings { fence: FenceKind::Event, ..gpu(1) };
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let reader = Guest::join(stage, 1, on_gpu(Policy::Latest, 4));
            (0..4).for_each(|_| stage.publish(PAGE));
            let frames: Vec<_> = std::iter::from_fn(|| reader.take()).collect();
            frames.iter().for_each(|(entry, frame)| {
                reader.consumer.release(*entry, frame.sequence);
            });
            let finish = |at: usize| reader.fences.release(frames[at].0, frames[at].1.sequence);
            let leased = |state: &mut State<Simulated>| {
                assert!(state.readers().present()[0].is_direct());
                let ended = state.reclaim();
                (ended, state.publications().leased().count(), state.gpu_is_busy())
            };
            stage.exporter.with(|state| {
                assert_eq!(leased(state), (false, 4, true));
                finish(0);
                assert_eq!(leased(state), (true, 3, true), "in order");
                finish(2);
                assert_eq!(leased(state), (false, 3, true));
            });
            wait(Duration::from_millis(1));
            stage.exporter.with(|state| {
                leased(state);
                assert_eq!(leased(state), (false, 2, true));
                finish(3);
                assert_eq!(leased(state), (true, 1, true), "work does not end in order");
                finish(1);
                assert_eq!(leased(state), (true, 0, false));
            });
        });
    });
}

/// A reader that imports no GPU memory gets downloads: publications of their own, in host memory. A
/// download starts if the readers' credit, frames that wait and the next frame leave an area for
/// it.
#[test]
fn download_is_a_publication_of_its_own() {
    let exporter = |_| Settings { limits: Limits { max_slots: 5, ..gpu(1).limits }, ..gpu(1) };
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let direct = Guest::join(stage, 1, on_gpu(Policy::Latest, 1));
            let host = Guest::join(stage, 2, with_credit(Policy::Latest, 2));
            let take = || host.take().map(|(_, frame)| frame);
            let check = |room, lost| {
                let check = |state: &mut State<_>| (state.may_download(), state.stats().readers[1].lost);
                assert_eq!(stage.exporter.with(check), (room, lost));
            };
            let (work, slot) = (Work::begun(), stage.acquire(PAGE));
            publish(stage, &slot, Written::By(&work), Unit::Whole).unwrap();
            // Six areas: three of readers, two of frames that are written, one of a download.
            check(false, 0);
            stage.publish(PAGE);
            assert!(take().is_none(), "the first frame is not written yet");
            work.finish();
            wait(Duration::from_millis(2));
            check(true, 1);
            stage.publish(PAGE);
            wait(Duration::from_millis(2));
            let frames: Vec<_> = std::iter::from_fn(take).collect();
            assert_eq!(frames.iter().map(|frame| frame.sequence.0).collect::<Vec<_>>(), [1, 3]);
            assert_eq!(direct.take().map(|(_, frame)| frame.sequence), Some(Sequence(3)));
            stage.exporter.with(|state| {
                let [direct, host] = state.readers().present() else { panic!("two readers") };
                assert_eq!([direct.is_direct(), host.is_direct(), state.has_room()], [true, false, false]);
                let areas: Vec<_> = host.leases.areas().collect();
                assert!(frames.iter().all(|frame| areas.contains(&frame.area)), "{areas:?}: {frames:?}");
            });
        });
    });
}

/// Adopted memory that a reader cannot import is published in place no more. A reader that refuses
/// memory that it was never sent is disconnected.
#[test]
fn memory_that_cannot_be_imported_is_copied() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let reader = Guest::join(stage, 1, with_credit(Policy::Latest, 2));
            let memory = Memory::new(MemoryKind::DmaBuf, PAGE, &Default::default());
            let slot = stage.exporter.adopt(&memory, 1).unwrap();
            publish(stage, &slot, Written::Cpu, Unit::Whole).unwrap();
            assert_eq!(reader.take_all(), [1]);
            let refuse = |generation| {
                let text = "no device".into();
                reader.channel.send_to_exporter(ToExporter::CannotImport { generation, text });
                settle();
            };
            refuse(slot.id().generation);
            assert_eq!(publish(stage, &slot, Written::Cpu, Unit::Whole), Err(Failed::InPlace));
            refuse(7);
            stage.exporter.with(|state| {
                assert!(state.readers().present().is_empty());
                state.retire_adopted();
            });
        });
    });
}

/// A joining reader gets the kept frame in the step that admits it. The exporter does not poll for
/// the buffer of a frame that is only kept, which ends with the next frame.
#[test]
fn kept_frame_is_delivered_at_once_and_not_awaited() {
    let exporter = |_| Settings {
        inspect: |state| assert!(!state.has_backlogs(), "the kept frame waits"),
        ..settings(MemoryKind::Vmm, 16, true)
    };
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let unreturned = |stage: &Stage| stage.exporter.with(|state| state.count_unreturned());
            stage.publish(PAGE);
            assert_eq!(unreturned(stage), 0);
            let reader = Guest::join(stage, 1, on_gpu(Policy::Latest, 2));
            assert_eq!(unreturned(stage), 1);
            assert_eq!(reader.take_all(), [1]);
            reader.fences.release(EntryIndex(0), Sequence(1));
            assert!(stage.exporter.with(|state| state.reclaim()));
            assert_eq!(unreturned(stage), 0);
        });
    });
}
