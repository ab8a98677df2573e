// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stories of slots and readers from begin to end: acquisition, retirement, disconnections, control
//! messages, statistics.

use super::*;
use crate::{
    stream::{gpu::Work, record::KeptAlive, system::Simulated},
    task::spawn,
};
use frameshare_core::exporter::{
    link::Link,
    parts::Urgency,
    slot::{Purpose, Vacancy},
    state::State,
};
use frameshare_protocol::{
    EntryIndex, Sequence,
    message::{ToExporter, ToReader},
};
use std::collections::BTreeSet;

impl Guest {
    /// Takes the oldest frame, which there is.
    fn take_next(&self) -> (EntryIndex, Sequence) {
        let (entry, descriptor) = self.take().expect("there is a frame");
        (entry, descriptor.sequence)
    }

    /// Releases a frame. Its release fence, if it has one, is pending.
    fn release(&self, (entry, sequence): (EntryIndex, Sequence)) {
        let _is_waited_for = self.consumer.release(entry, sequence);
    }

    /// Sends a message, and lets the exporter handle it.
    fn say(&self, message: ToExporter) {
        self.channel.send_to_exporter(message);
        pass(SOON);
    }

    fn close(&self, reason: Reason) {
        self.say(ToExporter::Goodbye { reason, text: String::new() });
    }

    /// Receives all messages, and leaves room for so many further ones.
    fn with_room(self, room: usize) -> Self {
        self.receive();
        (room..16).for_each(|_| assert_eq!(self.channel.send_to_reader(&[], &[]), Ok(true)));
        self
    }
}

const MS: Duration = Duration::from_millis(1);
/// More than one interval of unhurried polls.
const SOON: Duration = Duration::from_millis(3);

fn pass(time: Duration) {
    block("time passes", Some(now() + time), || false);
}

/// The numbers of readers, in ascending order.
fn ids(links: &[Link<Simulated>]) -> Vec<u64> {
    let ids: BTreeSet<_> = links.iter().map(|link| link.info.id).collect();
    ids.into_iter().collect()
}

fn draining(stage: &Stage) -> Vec<u64> {
    stage.exporter.with(|state| ids(state.readers().draining()))
}

fn watch(stage: &Stage) -> Urgency {
    stage.exporter.with(|state| state.begin_turn().watch)
}

/// Bytes of slots that are not freed.
fn allocated(stage: &Stage) -> u64 {
    let allocated = stage.record.allocated.lock().unwrap();
    let left = allocated.iter().filter_map(|memory| memory.get());
    left.filter(|memory| memory.kind() != MemoryKind::Host).map(|memory| memory.size()).sum()
}

/// A reader that has failed releases nothing: its frames return when its process ends, or after the
/// fence timeout. Until then the service thread polls.
#[test]
fn frames_of_failed_readers_return_in_time() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let guests = [1, 2, 3].map(|number| Guest::join(stage, number, reader(Policy::Latest)));
            stage.publish(PAGE);
            let _frames = guests.each_ref().map(Guest::take);
            // The owner has disconnected the last one before.
            stage.exporter.with(|state| {
                assert!(state.disconnect(3, "a test") && !state.disconnect(3, "again"));
                assert!(!state.gpu_is_busy());
            });
            guests.iter().for_each(|guest| guest.close(Reason::Failed));
            assert!(stage.exporter.with(|state| state.gpu_is_busy()));
            guests[0].channel.close_reader();
            pass(SOON);
            assert_eq!(draining(stage).len(), 3);
            guests[1].channel.exit_reader();
            pass(MS * 980);
            assert_eq!(draining(stage), [1, 3]);
            pass(MS * 20);
            assert!(draining(stage).is_empty());
        });
    });
}

/// A disconnected reader keeps the frames that it has taken until it releases them, sends two close
/// messages, or the owner revokes them. Its credit stays reserved, and statistics name it.
#[test]
fn disconnected_reader_keeps_taken_frames() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let guests = [1, 2, 3, 4].map(|number| Guest::join(stage, number, reader(Policy::Latest)));
            stage.publish(PAGE);
            let frames = [0, 1, 2].map(|at| guests[at].take_next());
            stage.exporter.with(|state| {
                assert!((1..=4).all(|id| state.disconnect(id, "a test")));
                // The last one has not taken its frame.
                let stats = state.stats();
                let held: Vec<_> = stats.draining.iter().map(|one| (one.info.id, one.held)).collect();
                assert_eq!((held, stats.readers.len()), (vec![(1, 1), (2, 1), (3, 1)], 0));
                assert_eq!((state.credit_left(true), stats.free_slots), (16 - 2 - 3, 0));
                assert!(!state.reclaim() && state.revoke(2, "a test") && !state.revoke(2, "again"));
            });
            guests[0].release(frames[0]);
            assert!(stage.exporter.with(|state| state.reclaim()));
            assert_eq!(draining(stage), [3]);
            guests[2].close(Reason::Stopped);
            assert_eq!(draining(stage), [3]);
            guests[2].close(Reason::Stopped);
            assert!(draining(stage).is_empty());
            assert!(stage.exporter.with(|state| state.stats().free_slots == 1 && !state.reclaim()));
        });
    });
}

/// The close message waits for a reader that does not receive, for 5 s: for at most 64 readers of
/// an open stream, and all of a closed one. A reader that has hung up gets none.
#[test]
fn close_messages_wait_for_some_readers() {
    let exporter = |_| settings(MemoryKind::Host, 80, false);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let join = |number| Guest::join(stage, number, reader(Policy::Latest)).with_room(0);
            let guests: Vec<_> = (1..=66).map(join).collect();
            let disconnect = |id| stage.exporter.with(|state| state.disconnect(id, "a test"));
            assert!((1..=66).all(disconnect));
            assert_eq!(draining(stage), (1..=64).collect::<Vec<_>>());
            guests[7].channel.close_reader();
            stage.exporter.with(|state| state.flush(8));
            assert_eq!(draining(stage).len(), 63);
            pass(MS * 4990);
            assert_eq!(draining(stage).len(), 63);
            pass(MS * 20);
            assert!(draining(stage).is_empty());
            let later: Vec<_> = (67..=132).map(join).collect();
            stage.exporter.close();
            assert_eq!(draining(stage).len(), later.len());
        });
    });
}

/// With `QueueThenDisconnect`, the reader with the longest backlog goes at once when there is no
/// room. A reader without a backlog has the whole timeout.
#[test]
fn longest_backlog_is_evicted_at_once() {
    let exporter = |_| {
        with_limits(|limits| {
            limits.slow_readers = SlowReaders::QueueThenDisconnect;
            limits.max_queued_bytes = 2 * PAGE;
        })
    };
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let present = || stage.exporter.with(|state| ids(state.readers().present()));
            let guests = [1, 2].map(|number| Guest::join(stage, number, reader(Policy::Lossless)));
            stage.publish(PAGE);
            let frame = guests[1].take_next();
            stage.publish(PAGE);
            guests[1].release(frame);
            stage.publish(PAGE);
            let begun = now();
            stage.publish(PAGE);
            assert_eq!((present(), now()), (vec![2], begun));
            stage.exporter.with(|state| assert_eq!(state.stats().readers[0].waiting, 2));
            drop(guests);
            pass(SOON);
            let peer = Peer { may_queue: false, ..peer(true) };
            let _guest = Guest::join(stage, 3, Behaviour { peer, ..reader(Policy::Lossless) });
            stage.publish(PAGE);
            let begun = now();
            stage.publish(PAGE);
            assert_eq!((present(), now() - begun), (vec![], MS * 1000));
        });
    });
}

/// Each reader of the own user that copies the frames of a format is reported to the owner once.
/// The automatic queue of a reader suits the frames of the format, too.
#[test]
fn layout_copies_are_reported_once_per_format() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let guests = [1, 2, 3].map(|number| {
                let automatic = Behaviour { credit: 4, max_queued: 0, ..reader(Policy::Latest) };
                Guest::join(stage, number, Behaviour { peer: peer(number < 3), ..automatic })
            });
            let queue = || stage.exporter.with(|state| state.readers().present()[0].info.max_queued);
            stage.exporter.with(|state| state.note_arrival(None, Some(u64::MAX), 0));
            assert_eq!(queue(), 4);
            let reported = || {
                let mut notices = stage.record.notices.take();
                notices.retain(|(_, notice)| matches!(notice, Notice::LayoutCopied { .. }));
                notices.into_iter().map(|(_, notice)| notice).collect::<Vec<_>>()
            };
            let copied = |readers| Notice::LayoutCopied { readers };
            let copy = |number: usize| guests[number - 1].say(ToExporter::CopiesForLayout);
            [3, 1, 1, 2].into_iter().for_each(copy);
            assert_eq!(reported(), [1, 2].map(copied));
            let caps = "video/x-raw".to_owned();
            stage.exporter.with(|state| state.set_format(Format { caps, video: None }));
            assert_eq!(queue(), 2);
            [2, 3].into_iter().for_each(copy);
            assert_eq!(reported(), [copied(1)]);
        });
    });
}

/// Another format, or another kind of memory, begins a generation of its own size. The same one
/// goes on with larger slots than it needs.
#[test]
fn generation_is_renewed_for_another_format() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let set = |width: u32| {
                let caps = format!("video/x-raw, width={width}");
                stage.exporter.with(|state| state.set_format(Format { caps, video: None }));
            };
            let acquire = |pages| {
                let slot = stage.acquire(pages * PAGE);
                assert_eq!(
                    stage.exporter.with(|state| state.stats().memory.kind.is_gpu()),
                    !slot.is_in_host()
                );
                (slot.id().generation, slot.is_in_host())
            };
            for (width, in_host, pages, generation) in [
                (1, false, 2, 1),
                (1, false, 1, 1),
                (2, false, 1, 2),
                (2, false, 2, 3),
                (2, false, 1, 3),
                (2, true, 2, 4),
                // The format was announced with other memory.
                (2, true, 1, 4),
                (2, false, 1, 5),
            ] {
                stage.exporter.with(|state| state.end_of_stream());
                set(width);
                assert!(!stage.exporter.with(|state| state.announcement().has_ended()));
                stage.exporter.with(|state| state.use_host_memory(in_host));
                assert_eq!(acquire(pages), (generation, in_host));
            }
        });
    });
}

/// The user data of a dma-buf returns to its owner when no device uses it, or after the fence
/// timeout, also of a closed stream. It is dropped while the state is unlocked.
#[test]
fn dma_buf_returns_after_work_of_devices() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let kept = || *stage.record.kept_alive.lock().unwrap();
            let [memory, cuda] = [MemoryKind::DmaBuf, MemoryKind::Legacy]
                .map(|kind| Memory::new(kind, PAGE, &Default::default()));
            let local = stage.exporter.adopt(&cuda, 2).unwrap().id();
            let slot = stage.exporter.adopt(&memory, 1).unwrap();
            let free = |device: Option<&Work>| {
                let keep = Box::new(KeptAlive::new(&stage.record));
                stage.exporter.with(|state| {
                    state.system_mut().device = device.cloned();
                    state.free(slot.clone(), Some(keep));
                    state.deferred_mut().has_user_data()
                })
            };
            // Readers of this process cannot import memory of CUDA.
            assert_eq!(stage.exporter.with(|state| state.system().local.take()), [local]);
            assert!(free(None) && kept() == 0);
            let work = Work::begun();
            assert!(!free(Some(&work)) && kept() == 1);
            assert_eq!(watch(stage), Urgency::Unhurried);
            work.finish();
            pass(SOON);
            assert_eq!((kept(), watch(stage)), (0, Urgency::None));
            free(Some(&Work::begun()));
            stage.exporter.close();
            pass(MS * 990);
            assert_eq!((kept(), stage.exporter.peek_over()), (1, false));
            pass(MS * 20);
            assert_eq!((kept(), stage.exporter.peek_over()), (0, true));
        });
    });
}

/// Memory that readers must drop first is shared within the process, introduced before its first
/// frame is written, and freed when they have acknowledged, which wakes waiting threads.
#[test]
fn waiting_thread_sees_that_memory_is_freed() {
    let exporter = |_| settings(MemoryKind::Legacy, 16, true);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            let guest = Guest::join(stage, 1, Behaviour { room: 64, ..reader(Policy::Latest) });
            let slots: Vec<_> = (0..7).map(|_| stage.acquire(PAGE)).collect();
            let numbers: Vec<_> = slots.iter().map(|slot| slot.id()).collect();
            stage.exporter.with(|state| {
                assert_eq!(*state.system().local.borrow(), numbers);
                let imports = &state.readers().present()[0].imports;
                assert!(numbers.iter().all(|slot| imports.has(*slot)));
            });
            drop((slots, guest.receive()));
            pass(MS * 5900);
            assert_eq!(allocated(stage), 7 * PAGE);
            pass(MS * 200);
            // Three in reserve and two spare ones stay.
            stage.exporter.with(|state| {
                let stats = state.stats();
                assert_eq!((stats.slots, stats.trimmed_slots, stats.retired_bytes), (5, 2, 2 * PAGE));
            });
            let begun = now();
            let answer = |messages: Vec<ToReader>| {
                let channel = guest.channel.clone();
                spawn(EXPORTER + 1, "acknowledges", move || {
                    pass(MS * 10);
                    for message in messages {
                        channel.send_to_exporter(match message {
                            ToReader::RetireSlot { slot } => ToExporter::RetiredSlot { slot },
                            ToReader::Retire { generation, .. } => ToExporter::Retired { generation },
                            _ => continue,
                        });
                    }
                });
            };
            answer(guest.receive());
            stage.expect("slots are freed", |state| state.slots().generations()[0].retired_slot_bytes() == 0);
            assert_eq!(now() - begun, MS * 10);
            stage.publish(2 * PAGE);
            stage.exporter.with(|state| assert_eq!(state.stats().retired_bytes, 5 * PAGE));
            answer(guest.receive());
            stage.expect("a generation is freed", |state| state.slots().generations().len() == 1);
            assert_eq!((now() - begun, allocated(stage)), (MS * 20, 2 * PAGE));
        });
    });
}

/// A new slot is introduced early to readers that will get its first frame, and to no others. Sent
/// messages keep no reference to its memory.
#[test]
fn new_slot_is_introduced_early_to_readers_with_room() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let join = |number, credit, on_gpu| {
                let behaviour = Behaviour { credit, on_gpu, max_queued: credit, ..reader(Policy::Latest) };
                Guest::join(stage, number, behaviour)
            };
            let (fast, _downloads) = (join(1, 3, true), join(2, 3, false));
            let (full, stuck) = (join(3, 1, true), join(4, 3, true));
            stage.publish(PAGE);
            full.take_next();
            let _stuck = stuck.with_room(0);
            let waits = ToReader::EndOfStream { before: Sequence(2) };
            stage.exporter.with(|state| state.readers_mut()[3].send(&waits).unwrap());
            let slots = [(); 2].map(|()| stage.acquire(PAGE));
            let known = |state: &mut State<Simulated>| {
                let links = state.readers().present().iter();
                links.map(|link| link.imports.has(slots[1].id())).collect::<Vec<_>>()
            };
            assert_eq!(stage.exporter.with(known), [true, false, false, false]);
            // The last message waits for room in the socket, with memory.
            let fast = fast.with_room(1);
            let larger = stage.acquire(2 * PAGE);
            let waits = |state: &mut State<Simulated>| state.readers().present()[0].outbox.len();
            assert_eq!(stage.exporter.with(waits), 1);
            fast.receive();
            pass(SOON);
            stage.exporter.with(|state| assert!(!state.readers().present()[0].outbox.has_spent()));
            assert_eq!(stage.exporter.with(waits), 0);
            drop(larger);
        });
    });
}

/// The service thread polls for readers' GPU work and for buffers of upstream, the more urgently
/// the sooner a thread may wait for them. It does not poll for backlogs: their readers send
/// wake-ups.
#[test]
fn polls_are_as_urgent_as_what_waits() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let guest = Guest::join(stage, 1, Behaviour { credit: 2, ..reader(Policy::Lossless) });
            assert_eq!(watch(stage), Urgency::None);
            stage.publish(PAGE);
            assert_eq!(watch(stage), Urgency::Idle);
            stage.exporter.with(|state| state.end_of_stream());
            assert_eq!(watch(stage), Urgency::Unhurried);
            stage.publish(PAGE);
            stage.publish(PAGE);
            // A frame waits, and no fence is pending.
            assert_eq!(watch(stage), Urgency::Idle);
            assert!(stage.exporter.with(|state| state.has_backlogs()));
            let frames = [(); 2].map(|()| guest.take_next());
            guest.release(frames[0]);
            assert_eq!(watch(stage), Urgency::Close);
            guest.fences.release(frames[0].0, frames[0].1);
            assert_eq!(watch(stage), Urgency::Idle);
            let last = guest.take_next();
            [frames[1], last].into_iter().for_each(|frame| guest.release(frame));
            // A fence is pending, and no frame waits.
            assert_eq!(watch(stage), Urgency::Idle);
            guest.fences.release(frames[1].0, frames[1].1);
            pass(MS * 200);
            stage.exporter.with(|state| {
                assert!(state.disconnect(1, "a test") && state.gpu_is_busy());
                assert_eq!(state.begin_turn().watch, Urgency::Unhurried);
            });
            guest.fences.release(last.0, last.1);
            pass(SOON);
            assert_eq!((watch(stage), draining(stage)), (Urgency::None, vec![]));
            let work = Work::begun();
            stage.exporter.with(|state| state.drop_after(work.clone(), Box::new(())));
            assert_eq!(watch(stage), Urgency::Idle);
            assert_eq!(stage.exporter.with(|state| state.count_unreturned()), 1);
            work.finish();
            pass(MS * 101);
            stage.exporter.with(|state| assert!(state.system().recycled == 1 && !state.gpu_is_busy()));
        });
    });
}

/// Upstream that publishes nothing until a poll has given its buffer back may have waited for it:
/// polls are more frequent from then on. An eviction finds pending fences, which threads poll for.
#[test]
fn polls_are_frequent_after_upstream_has_waited() {
    tell(gpu, |stage, _| {
        stage.publish_with(|stage| {
            let guest = Guest::join(stage, 1, reader(Policy::Latest));
            let demanded = || stage.exporter.with(|state| state.demanded_urgency());
            stage.publish(PAGE);
            let frame = guest.take_next();
            pass(MS * 60);
            // No buffer has come back.
            assert_eq!(watch(stage), Urgency::Idle);
            stage.publish(PAGE);
            assert_eq!(demanded(), Urgency::Idle);
            pass(MS * 60);
            guest.fences.release(frame.0, frame.1);
            guest.release(frame);
            assert_eq!((watch(stage), demanded()), (Urgency::None, Urgency::Idle));
            stage.publish(PAGE);
            assert_eq!(demanded(), Urgency::Unhurried);
            guest.release(guest.take_next());
            stage.exporter.with(|state| {
                assert!(!state.gpu_is_busy() && state.disconnect(1, "a test") && state.gpu_is_busy());
            });
        });
    });
}

/// A stream that is closed, since the engine has failed for example, frees the memory that no
/// reader must drop first, a kept frame's, too, although its state lives on.
/// Readers are polled once a frame: by the acquisition of its slot, or by its publication.
#[test]
fn closed_stream_frees_its_memory() {
    let exporter = |_| settings(MemoryKind::Vmm, 16, true);
    tell(exporter, |stage, _| {
        stage.publish_with(|stage| {
            drop([(); 2].map(|()| stage.acquire(PAGE)));
            assert_eq!(stage.exporter.with(|state| [state.needs_poll(), state.needs_poll()]), [false, true]);
            assert_eq!(allocated(stage), 2 * PAGE);
            let may_join = |memory| {
                let left = Left { memory: Some(memory), ..PLENTY };
                stage.exporter.with(|state| {
                    let promised = state.promise(&peer(true), 3, left);
                    state.end_promise();
                    promised.is_ok()
                })
            };
            assert!(may_join(3 * PAGE) && !may_join(3 * PAGE - 1));
            stage.publish(PAGE);
            stage.exporter.with(|state| {
                // The kept frame ends with the next one.
                assert_eq!(state.count_unreturned(), 0);
                state.fail("a test");
                assert!(state.is_closed() && state.failure() == Some("a test"));
            });
            let notices = stage.record.notices.take();
            assert!(notices.iter().any(|(_, notice)| matches!(notice, Notice::Failed { .. })));
            stage.exporter.close();
            pass(SOON);
            assert_eq!((allocated(stage), stage.exporter.peek_over()), (0, true));
        });
    });
}

/// A slot that its last reader has released is used for the next frame, before more memory is
/// allocated.
#[test]
fn released_slot_is_used_before_new_memory() {
    tell(host, |stage, _| {
        stage.publish_with(|stage| {
            let guest = Guest::join(stage, 1, reader(Policy::Latest));
            stage.publish(PAGE);
            guest.release(guest.take_next());
            let place = stage.exporter.with(|state| state.place(PAGE, Purpose::Copy));
            assert!(matches!(place, Ok(Vacancy::Free(_))), "{place:?}");
        });
    });
}
