// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: the end of single slots whose generation goes on, with readers that join late, leave and
//! die.
//!
//! As in the exporter, a reader learns of a slot with the first frame published to it in it. A slot
//! that no frame uses is taken out of use: the exporter asks every reader that knows it to release
//! it, and frees it when no reader, draining ones included, may import it. The request overtakes
//! the backlog of the second reader, which is lossless and has a credit of one. A later slot has a
//! new number.

use crate::{fails, holds};
use stateright::{Model, Property};
use std::collections::BTreeSet;

const READERS: usize = 2;
/// The reader with a backlog.
const LOSSLESS: usize = 1;
/// Number of published frames.
const FRAMES: u8 = 3;
/// Number of slots, one after another or at once.
const SLOTS: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The exporter frees without waiting for acknowledgements.
    FreesUnacknowledged,
    /// The exporter does not wait for draining readers.
    ForgetsLeaving,
    /// The exporter takes a slot out of use although a frame in it waits in a backlog.
    ForgetsBacklog,
    /// The exporter takes a slot out of use although a reader holds a frame in it.
    ForgetsLeases,
    /// The exporter accepts an acknowledgement without a request.
    UnaskedAcknowledgement,
    /// A reader acknowledges before it has released a frame that it holds.
    AcknowledgesEarly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Slot(u8),
    Frame(u8),
    Retire(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    None,
    Linked,
    /// Draining: the reader receives nothing more.
    Leaving,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reader {
    link: Link,
    alive: bool,
    /// Messages and frames in flight to the reader.
    inbox: Vec<Message>,
    /// Acknowledgements in flight to the exporter.
    outbox: Vec<u8>,
    /// Frames that wait for credit.
    backlog: Vec<u8>,
    /// The exporter's state: slots announced, slots requested back, and leases.
    known: BTreeSet<u8>,
    requested: BTreeSet<u8>,
    leases: Vec<u8>,
    /// Slots that the reader has imported, and those that it holds frames of.
    imports: BTreeSet<u8>,
    held: Vec<u8>,
    lost_its_way: bool,
    was_announced_twice: bool,
    lied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    readers: [Reader; READERS],
    /// Slots that frames may be published in.
    open: BTreeSet<u8>,
    /// Slots that were taken out of use and are not freed.
    retired: BTreeSet<u8>,
    freed: BTreeSet<u8>,
    made: u8,
    frames: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Join(usize),
    Allocate,
    Publish(u8),
    Deliver(usize),
    Trim(u8),
    Free(u8),
    Receive(usize),
    Release(usize),
    Acknowledge(usize),
    /// Sends the close message, and keeps the imports for a while.
    Leave(usize),
    /// Acknowledges a slot that was not requested back, and keeps it.
    Lie(usize, u8),
    Die(usize),
    Notice(usize),
}

struct Trimming(Flaw);

impl Reader {
    fn is_connected(&self) -> bool {
        matches!(self.link, Link::Linked | Link::Leaving)
    }

    /// The exporter publishes a frame to the reader.
    fn publish(&mut self, slot: u8) {
        if self.known.insert(slot) {
            self.inbox.push(Message::Slot(slot));
        }
        self.inbox.push(Message::Frame(slot));
        self.leases.push(slot);
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Slot(slot) => self.was_announced_twice |= !self.imports.insert(slot),
            Message::Frame(slot) => {
                self.lost_its_way |= !self.imports.contains(&slot);
                self.held.push(slot);
            }
            Message::Retire(slot) => {
                // An import ends with the last frame that uses it.
                self.lost_its_way |= self.held.contains(&slot);
                self.imports.remove(&slot);
                self.outbox.push(slot);
            }
        }
    }
}

impl Trimming {
    /// Returns whether no frame uses a slot, as the exporter sees it.
    fn is_free(&self, state: &State, slot: u8) -> bool {
        state.readers.iter().all(|reader| {
            let waits = reader.backlog.contains(&slot) && self.0 != Flaw::ForgetsBacklog;
            let leased = reader.leases.contains(&slot) && self.0 != Flaw::ForgetsLeases;
            !waits && !leased
        })
    }

    fn may_be_freed(&self, state: &State, slot: u8) -> bool {
        state.readers.iter().all(|reader| {
            let counts = match reader.link {
                Link::Linked => true,
                Link::Leaving => self.0 != Flaw::ForgetsLeaving,
                Link::None | Link::Over => false,
            };
            !counts || !reader.known.contains(&slot) || self.0 == Flaw::FreesUnacknowledged
        })
    }
}

impl Model for Trimming {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let reader = Reader {
            link: Link::None,
            alive: true,
            inbox: Vec::new(),
            outbox: Vec::new(),
            backlog: Vec::new(),
            known: BTreeSet::new(),
            requested: BTreeSet::new(),
            leases: Vec::new(),
            imports: BTreeSet::new(),
            held: Vec::new(),
            lost_its_way: false,
            was_announced_twice: false,
            lied: false,
        };
        vec![State {
            readers: [reader.clone(), reader],
            open: BTreeSet::new(),
            retired: BTreeSet::new(),
            freed: BTreeSet::new(),
            made: 0,
            frames: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.made < SLOTS {
            actions.push(Action::Allocate);
        }
        for slot in state.open.iter().filter(|slot| self.is_free(state, **slot)) {
            actions.push(Action::Trim(*slot));
            if state.frames < FRAMES {
                actions.push(Action::Publish(*slot));
            }
        }
        let free = state.retired.iter().filter(|slot| self.may_be_freed(state, **slot));
        actions.extend(free.map(|slot| Action::Free(*slot)));
        for (at, reader) in state.readers.iter().enumerate() {
            if reader.alive {
                actions.push(Action::Die(at));
                match reader.link {
                    Link::None => actions.push(Action::Join(at)),
                    Link::Linked => {
                        actions.push(Action::Leave(at));
                        // One liar is enough.
                        let may_lie = reader.imports.iter().filter(|_| at != LOSSLESS && !reader.lied);
                        actions.extend(may_lie.map(|slot| Action::Lie(at, *slot)));
                    }
                    Link::Leaving | Link::Over => {}
                }
                if !reader.inbox.is_empty() {
                    actions.push(Action::Receive(at));
                }
                if !reader.held.is_empty() {
                    actions.push(Action::Release(at));
                }
            } else if reader.is_connected() {
                actions.push(Action::Notice(at));
            }
            if reader.link == Link::Linked && !reader.backlog.is_empty() && reader.leases.is_empty() {
                actions.push(Action::Deliver(at));
            }
            if !reader.outbox.is_empty() {
                actions.push(Action::Acknowledge(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Join(at) => state.readers[at].link = Link::Linked,
            Action::Allocate => {
                state.open.insert(state.made);
                state.made += 1;
            }
            Action::Publish(slot) => {
                state.frames += 1;
                for (at, reader) in state.readers.iter_mut().enumerate() {
                    match reader.link {
                        Link::Linked if at == LOSSLESS && !reader.leases.is_empty() => {
                            reader.backlog.push(slot);
                        }
                        Link::Linked => reader.publish(slot),
                        _ => {}
                    }
                }
            }
            Action::Deliver(at) => {
                let slot = state.readers[at].backlog.remove(0);
                state.readers[at].publish(slot);
            }
            Action::Trim(slot) => {
                state.open.remove(&slot);
                state.retired.insert(slot);
                for reader in state.readers.iter_mut().filter(|reader| reader.link == Link::Linked) {
                    if reader.known.contains(&slot) {
                        reader.requested.insert(slot);
                        // Ahead of the backlog, and of frames: none of them uses the slot.
                        reader.inbox.push(Message::Retire(slot));
                    }
                }
            }
            Action::Free(slot) => {
                state.retired.remove(&slot);
                state.freed.insert(slot);
            }
            Action::Receive(at) => {
                let message = state.readers[at].inbox.remove(0);
                state.readers[at].receive(message);
            }
            Action::Release(at) => {
                let reader = &mut state.readers[at];
                let slot = reader.held.remove(0);
                if let Some(lease) = reader.leases.iter().position(|lease| *lease == slot) {
                    reader.leases.remove(lease);
                }
            }
            Action::Acknowledge(at) => {
                let reader = &mut state.readers[at];
                let slot = reader.outbox.remove(0);
                if reader.requested.remove(&slot) || self.0 == Flaw::UnaskedAcknowledgement {
                    reader.known.remove(&slot);
                } else if reader.link == Link::Linked {
                    // A violation: the reader gets nothing more, and its process is waited for.
                    reader.link = Link::Leaving;
                    (reader.leases, reader.backlog) = (Vec::new(), Vec::new());
                }
            }
            Action::Leave(at) => {
                let reader = &mut state.readers[at];
                reader.link = Link::Leaving;
                reader.inbox.clear();
                reader.backlog.clear();
                reader.leases = reader.held.clone();
            }
            Action::Lie(at, slot) => {
                let reader = &mut state.readers[at];
                reader.lied = true;
                reader.outbox.push(slot);
            }
            Action::Die(at) => {
                let reader = &mut state.readers[at];
                reader.alive = false;
                (reader.imports, reader.held) = (BTreeSet::new(), Vec::new());
                reader.inbox.clear();
                if reader.link == Link::None {
                    reader.link = Link::Over;
                }
            }
            Action::Notice(at) => {
                let reader = &mut state.readers[at];
                reader.link = Link::Over;
                (reader.leases, reader.backlog) = (Vec::new(), Vec::new());
            }
        }
        if self.0 == Flaw::AcknowledgesEarly {
            state.readers.iter_mut().for_each(acknowledge_early);
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("imported memory is not freed", |_, state: &State| {
                let honest = state.readers.iter().filter(|reader| !reader.lied);
                honest.into_iter().all(|reader| reader.imports.is_disjoint(&state.freed))
            }),
            Property::always("a frame that waits or is held is not freed", |_, state: &State| {
                let connected = state.readers.iter().filter(|reader| !reader.lied && reader.is_connected());
                connected.into_iter().all(|reader| {
                    let mut used = reader.backlog.iter().chain(&reader.held);
                    used.all(|slot| !state.freed.contains(slot))
                })
            }),
            Property::always("the memory of a frame is imported", |_, state: &State| {
                state.readers.iter().all(|reader| !reader.lost_its_way)
            }),
            Property::always("no slot is announced twice", |_, state: &State| {
                state.readers.iter().all(|reader| !reader.was_announced_twice)
            }),
            Property::sometimes("a slot is freed while readers continue", |_, state: &State| {
                !state.freed.is_empty()
                    && state.readers.iter().all(|reader| reader.link == Link::Linked && reader.alive)
            }),
            Property::sometimes("a request overtakes a backlog", |_, state: &State| {
                let reader = &state.readers[LOSSLESS];
                !reader.backlog.is_empty()
                    && reader.inbox.iter().any(|message| matches!(message, Message::Retire(_)))
            }),
        ]
    }
}

/// Acknowledges the requests that have not arrived yet.
fn acknowledge_early(reader: &mut Reader) {
    let is_request = |message: &Message| matches!(message, Message::Retire(_));
    if let Some(at) = reader.inbox.iter().position(is_request)
        && let Message::Retire(slot) = reader.inbox.remove(at)
    {
        reader.outbox.push(slot);
    }
}

#[test]
fn slot_is_freed_after_its_last_import_is_closed() {
    holds("trimming", Trimming(Flaw::None));
}

#[test]
fn freeing_without_acknowledgement_frees_imported_memory() {
    fails(Trimming(Flaw::FreesUnacknowledged), "imported memory is not freed");
}

#[test]
fn ignoring_draining_readers_frees_an_imported_slot() {
    fails(Trimming(Flaw::ForgetsLeaving), "imported memory is not freed");
}

#[test]
fn retiring_slot_of_a_waiting_frame_takes_its_memory() {
    fails(Trimming(Flaw::ForgetsBacklog), "the memory of a frame is imported");
}

#[test]
fn retiring_slot_of_a_held_frame_takes_its_memory() {
    fails(Trimming(Flaw::ForgetsLeases), "the memory of a frame is imported");
}

#[test]
fn accepting_unasked_acknowledgement_announces_slot_twice() {
    fails(Trimming(Flaw::UnaskedAcknowledgement), "no slot is announced twice");
}

#[test]
fn acknowledging_before_the_release_frees_imported_slot() {
    fails(Trimming(Flaw::AcknowledgesEarly), "imported memory is not freed");
}
