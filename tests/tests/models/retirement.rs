// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: the end of a generation of memory that readers must release before it is freed, with
//! readers that join late, leave and die.
//!
//! As in the exporter, a reader learns of a generation with the first frame published to it in it.
//! When the generation retires, the exporter asks every reader that knows it to release it, and
//! frees it when no reader, draining ones included, knows it, and no frame in it waits or is kept.
//!
//! The last frame is kept: a joining reader gets it, in a retired generation possibly, and is then
//! asked to release that. The second reader is lossless, with a credit of one: further frames wait
//! in a backlog, and so does the request behind them.

use crate::{fails, holds};
use stateright::{Model, Property};

const READERS: usize = 2;
/// The reader with a backlog.
const LOSSLESS: usize = 1;
const GENERATIONS: usize = 2;
/// Number of published frames.
const FRAMES: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The exporter does not wait for draining readers.
    ForgetsLeaving,
    /// The exporter announces all generations to a joining reader, retired ones included.
    AnnouncesAll,
    /// The exporter does not ask a joining reader for the retired generation of the kept frame.
    ForgetsKept,
    /// The exporter asks for a generation whose frames wait for the reader.
    OvertakesBacklog,
    /// The exporter frees a generation that no reader knows although a frame in it is kept.
    FreesKept,
    /// The exporter accepts an acknowledgement without a request.
    UnaskedAcknowledgement,
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
    /// Draining: the reader receives no more frames.
    Leaving,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reader {
    link: Link,
    alive: bool,
    /// Messages in flight to the reader.
    inbox: Vec<Message>,
    /// Acknowledgements in flight to the exporter.
    outbox: Vec<u8>,
    /// Frames that wait for credit, and requests behind them.
    backlog: Vec<Message>,
    /// The exporter's state: generations announced, and generations requested back.
    known: [bool; GENERATIONS],
    requested: [bool; GENERATIONS],
    /// Generations that the reader has imported, and those that it holds frames of.
    imports: [bool; GENERATIONS],
    holds: [bool; GENERATIONS],
    /// Generations requested back: the reader releases them when it holds no frame of them.
    asked: [bool; GENERATIONS],
    lost_its_way: bool,
    lied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    readers: [Reader; READERS],
    current: u8,
    retired: [bool; GENERATIONS],
    freed: [bool; GENERATIONS],
    /// The generation of the kept frame.
    kept: Option<u8>,
    frames: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Join(usize),
    Publish,
    /// Takes the next frame or request out of a reader's backlog.
    Deliver(usize),
    Renew,
    Retire,
    Free(u8),
    Receive(usize),
    Release(usize, u8),
    Acknowledge(usize),
    /// Sends the close message, and keeps the held frames for a while.
    Goodbye(usize),
    /// Acknowledges a generation that was not requested back, and keeps it.
    Lie(usize),
    Die(usize),
    Notice(usize),
}

struct Retirement(Flaw);

impl Reader {
    fn give_up(&mut self) {
        for generation in 0..GENERATIONS {
            if self.asked[generation] && !self.holds[generation] && self.imports[generation] {
                self.imports[generation] = false;
                self.asked[generation] = false;
                self.outbox.push(generation as u8);
            }
        }
    }

    /// Returns whether no frame is published to the reader that it has not released.
    fn has_credit(&self) -> bool {
        let is_untaken = self.inbox.iter().any(|message| matches!(message, Message::Frame(_)));
        !is_untaken && self.holds == [false; GENERATIONS]
    }

    fn can_deliver(&self) -> bool {
        match self.backlog.first() {
            Some(Message::Frame(_)) => self.has_credit(),
            Some(_) => true,
            None => false,
        }
    }

    /// The exporter publishes a frame to the reader.
    fn publish(&mut self, generation: u8) {
        if !std::mem::replace(&mut self.known[usize::from(generation)], true) {
            self.inbox.push(Message::Slot(generation));
        }
        self.inbox.push(Message::Frame(generation));
    }

    /// The exporter asks the reader to release a generation, if the reader knows it.
    fn request(&mut self, generation: u8) {
        let at = usize::from(generation);
        if self.known[at] && !std::mem::replace(&mut self.requested[at], true) {
            self.inbox.push(Message::Retire(generation));
        }
    }

    /// Returns whether frames of a generation wait.
    fn waits_for(&self, generation: usize) -> bool {
        self.backlog.contains(&Message::Frame(generation as u8))
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Slot(generation) => self.imports[usize::from(generation)] = true,
            Message::Frame(generation) => {
                let generation = usize::from(generation);
                self.lost_its_way |= !self.imports[generation] || self.asked[generation];
                self.holds[generation] = true;
            }
            Message::Retire(generation) => self.asked[usize::from(generation)] = true,
        }
        self.give_up();
    }
}

impl Retirement {
    fn may_be_freed(&self, state: &State, generation: usize) -> bool {
        let is_kept = state.kept == Some(generation as u8) && self.0 != Flaw::FreesKept;
        let is_used = is_kept || state.readers.iter().any(|reader| reader.waits_for(generation));
        state.retired[generation]
            && !state.freed[generation]
            && !is_used
            && state.readers.iter().all(|reader| {
                let counts = match reader.link {
                    Link::Linked => true,
                    Link::Leaving => self.0 != Flaw::ForgetsLeaving,
                    Link::None | Link::Over => false,
                };
                !counts || !reader.known[generation]
            })
    }
}

impl Model for Retirement {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let reader = Reader {
            link: Link::None,
            alive: true,
            inbox: Vec::new(),
            outbox: Vec::new(),
            backlog: Vec::new(),
            known: [false; GENERATIONS],
            requested: [false; GENERATIONS],
            imports: [false; GENERATIONS],
            holds: [false; GENERATIONS],
            asked: [false; GENERATIONS],
            lost_its_way: false,
            lied: false,
        };
        vec![State {
            readers: [reader.clone(), reader],
            current: 0,
            retired: [false; GENERATIONS],
            freed: [false; GENERATIONS],
            kept: None,
            frames: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.frames < FRAMES {
            actions.push(Action::Publish);
        }
        if usize::from(state.current) + 1 < GENERATIONS {
            actions.push(Action::Renew);
        } else if !state.retired[0] {
            actions.push(Action::Retire);
        }
        actions.extend(
            (0..GENERATIONS).filter(|at| self.may_be_freed(state, *at)).map(|at| Action::Free(at as u8)),
        );
        for (at, reader) in state.readers.iter().enumerate() {
            if reader.alive {
                actions.push(Action::Die(at));
                if reader.link == Link::None {
                    actions.push(Action::Join(at));
                }
                if !reader.inbox.is_empty() {
                    actions.push(Action::Receive(at));
                }
                if reader.link == Link::Linked {
                    actions.push(Action::Goodbye(at));
                    if !reader.lied && reader.imports[0] {
                        actions.push(Action::Lie(at));
                    }
                }
                if reader.link == Link::Linked && reader.can_deliver() {
                    actions.push(Action::Deliver(at));
                }
                let held = (0..GENERATIONS).filter(|generation| reader.holds[*generation]);
                actions.extend(held.map(|generation| Action::Release(at, generation as u8)));
            } else if matches!(reader.link, Link::Linked | Link::Leaving) {
                actions.push(Action::Notice(at));
            }
            if !reader.outbox.is_empty() {
                actions.push(Action::Acknowledge(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Join(at) => {
                let State { freed, current, retired, kept, .. } = state;
                let reader = &mut state.readers[at];
                reader.link = Link::Linked;
                if self.0 == Flaw::AnnouncesAll {
                    for generation in (0..=usize::from(current)).filter(|generation| !freed[*generation]) {
                        reader.known[generation] = true;
                        reader.inbox.push(Message::Slot(generation as u8));
                    }
                }
                if let Some(generation) = kept {
                    reader.publish(generation);
                    if retired[usize::from(generation)] && self.0 != Flaw::ForgetsKept {
                        reader.request(generation);
                    }
                }
            }
            Action::Publish => {
                state.frames += 1;
                let current = state.current;
                state.kept = Some(current);
                for (at, reader) in state.readers.iter_mut().enumerate() {
                    match reader.link {
                        Link::Linked
                            if at == LOSSLESS && !(reader.backlog.is_empty() && reader.has_credit()) =>
                        {
                            reader.backlog.push(Message::Frame(current));
                        }
                        Link::Linked => reader.publish(current),
                        _ => {}
                    }
                }
            }
            Action::Deliver(at) => {
                let reader = &mut state.readers[at];
                match reader.backlog.remove(0) {
                    Message::Frame(generation) => reader.publish(generation),
                    Message::Retire(generation) => reader.request(generation),
                    Message::Slot(_) => {}
                }
            }
            Action::Renew => state.current += 1,
            Action::Retire => {
                state.retired[0] = true;
                for reader in state.readers.iter_mut().filter(|reader| reader.link == Link::Linked) {
                    if reader.backlog.is_empty() || self.0 == Flaw::OvertakesBacklog {
                        reader.request(0);
                    } else {
                        reader.backlog.push(Message::Retire(0));
                    }
                }
            }
            Action::Free(generation) => state.freed[usize::from(generation)] = true,
            Action::Receive(at) => {
                let message = state.readers[at].inbox.remove(0);
                state.readers[at].receive(message);
            }
            Action::Release(at, generation) => {
                state.readers[at].holds[usize::from(generation)] = false;
                state.readers[at].give_up();
            }
            Action::Acknowledge(at) => {
                let reader = &mut state.readers[at];
                let generation = usize::from(reader.outbox.remove(0));
                let asked = reader.requested[generation] || reader.link == Link::Leaving;
                if asked || self.0 == Flaw::UnaskedAcknowledgement {
                    reader.known[generation] = false;
                } else if reader.link == Link::Linked {
                    // A violation: the exporter publishes no more frames to the reader, and waits
                    // for its process to exit.
                    reader.link = Link::Leaving;
                    reader.backlog.clear();
                }
            }
            Action::Goodbye(at) => {
                let reader = &mut state.readers[at];
                reader.link = Link::Leaving;
                // The reader takes no more frames, and releases everything when it holds no frame.
                reader.inbox.clear();
                reader.backlog.clear();
                reader.asked = reader.imports;
                reader.give_up();
            }
            Action::Lie(at) => {
                state.readers[at].lied = true;
                state.readers[at].outbox.push(0);
            }
            Action::Die(at) => {
                let reader = &mut state.readers[at];
                reader.alive = false;
                reader.imports = [false; GENERATIONS];
                reader.holds = [false; GENERATIONS];
                reader.inbox.clear();
                if reader.link == Link::None {
                    reader.link = Link::Over;
                }
            }
            Action::Notice(at) => {
                state.readers[at].link = Link::Over;
                state.readers[at].backlog.clear();
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("imported memory is not freed", |_, state: &State| {
                let honest = state.readers.iter().filter(|reader| !reader.lied);
                honest.into_iter().all(|reader| {
                    (0..GENERATIONS)
                        .all(|generation| !(state.freed[generation] && reader.imports[generation]))
                })
            }),
            Property::always("every reader that knows retired memory is asked for it", |_, state: &State| {
                let linked = state.readers.iter().filter(|reader| reader.link == Link::Linked);
                linked.into_iter().all(|reader| {
                    (0..GENERATIONS).all(|at| {
                        let is_asked =
                            reader.requested[at] || reader.backlog.contains(&Message::Retire(at as u8));
                        !state.retired[at] || !reader.known[at] || is_asked
                    })
                })
            }),
            Property::always("a frame that waits or is kept is not freed", |_, state: &State| {
                let waits = |at| state.readers.iter().any(|reader| reader.waits_for(at));
                (0..GENERATIONS).all(|at| !state.freed[at] || !(state.kept == Some(at as u8) || waits(at)))
            }),
            Property::always("the memory of a held frame is known and not released", |_, state: &State| {
                state.readers.iter().all(|reader| !reader.lost_its_way)
            }),
            Property::always("a lying reader receives no more frames", |_, state: &State| {
                state.readers.iter().all(|reader| {
                    // Until the exporter has received the violation.
                    !reader.lied
                        || !reader.outbox.is_empty()
                        || reader.link != Link::Linked
                        || reader.requested[0]
                        || reader.known[0]
                })
            }),
            Property::sometimes("a late reader knows the new generation only", |_, state: &State| {
                state.retired[0]
                    && state.readers[1].link == Link::Linked
                    && state.readers[1].holds == [false, true]
            }),
            Property::sometimes(
                "a reader gets the kept frame of a retired generation",
                |_, state: &State| {
                    state.retired[0] && state.kept == Some(0) && state.readers[0].holds == [true, false]
                },
            ),
            Property::sometimes("a request waits behind a frame", |_, state: &State| {
                state.readers[LOSSLESS].backlog == [Message::Frame(0), Message::Retire(0)]
            }),
            Property::sometimes("the old generation is freed while readers continue", |_, state: &State| {
                state.freed[0] && state.readers.iter().all(|reader| reader.link == Link::Linked)
            }),
        ]
    }
}

#[test]
fn memory_is_freed_after_last_import_is_closed() {
    holds("retirement", Retirement(Flaw::None));
}

#[test]
fn ignoring_draining_readers_frees_imported_memory() {
    fails(Retirement(Flaw::ForgetsLeaving), "imported memory is not freed");
}

#[test]
fn announcing_retired_memory_never_frees_it() {
    fails(Retirement(Flaw::AnnouncesAll), "every reader that knows retired memory is asked for it");
}

#[test]
fn forgetting_the_kept_frame_never_frees_its_memory() {
    fails(Retirement(Flaw::ForgetsKept), "every reader that knows retired memory is asked for it");
}

#[test]
fn request_that_overtakes_backlog_takes_its_memory() {
    fails(Retirement(Flaw::OvertakesBacklog), "the memory of a held frame is known and not released");
}

#[test]
fn ignoring_the_kept_frame_frees_its_memory() {
    fails(Retirement(Flaw::FreesKept), "a frame that waits or is kept is not freed");
}

#[test]
fn accepting_unasked_acknowledgement_frees_held_memory() {
    fails(Retirement(Flaw::UnaskedAcknowledgement), "a lying reader receives no more frames");
}
