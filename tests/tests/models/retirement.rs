//! The end of a generation, for memory that every reader must have given up before it is freed, against a reader that joins
//! late, one that leaves and one that dies.
//!
//! As the exporter has it: a reader learns of a generation when the first frame in it is published to it; when a generation
//! is retired every reader that knows it is told; it is freed when no reader, be it on its way out, knows it.

use crate::{fails, holds};
use stateright::{Model, Property};

const READERS: usize = 2;
const GENERATIONS: usize = 2;
/// Frames that are published.
const FRAMES: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Readers that have said goodbye are not waited for.
    ForgetsLeaving,
    /// A newcomer is told of everything that is there, retired or not.
    TellsNewcomersAll,
    /// An acknowledgement counts without having been asked for.
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
    /// It wants no more frames.
    Leaving,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reader {
    link: Link,
    alive: bool,
    /// On their way to the reader.
    inbox: Vec<Message>,
    /// Acknowledgements on their way to the exporter.
    outbox: Vec<u8>,
    /// The exporter's ledger: known, and told to give up.
    known: [bool; GENERATIONS],
    told: [bool; GENERATIONS],
    /// What the reader has imported, and holds frames of.
    imports: [bool; GENERATIONS],
    holds: [bool; GENERATIONS],
    /// It was asked to give up, and does when it holds no frame.
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
    frames: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Join(usize),
    Publish,
    Renew,
    Retire,
    Free(u8),
    Receive(usize),
    Release(usize, u8),
    Acknowledge(usize),
    /// Says goodbye, and keeps what it holds for a while.
    Goodbye(usize),
    /// Acknowledges what it was not asked to, and keeps it.
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

    fn hear(&mut self, message: Message) {
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
        state.retired[generation]
            && !state.freed[generation]
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
            known: [false; GENERATIONS],
            told: [false; GENERATIONS],
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
                let freed = state.freed;
                let current = state.current;
                let reader = &mut state.readers[at];
                reader.link = Link::Linked;
                if self.0 == Flaw::TellsNewcomersAll {
                    for generation in (0..=usize::from(current)).filter(|generation| !freed[*generation]) {
                        reader.known[generation] = true;
                        reader.inbox.push(Message::Slot(generation as u8));
                    }
                }
            }
            Action::Publish => {
                state.frames += 1;
                let current = state.current;
                for reader in state.readers.iter_mut().filter(|reader| reader.link == Link::Linked) {
                    if !std::mem::replace(&mut reader.known[usize::from(current)], true) {
                        reader.inbox.push(Message::Slot(current));
                    }
                    reader.inbox.push(Message::Frame(current));
                }
            }
            Action::Renew => state.current += 1,
            Action::Retire => {
                state.retired[0] = true;
                for reader in state.readers.iter_mut().filter(|reader| reader.link == Link::Linked) {
                    if reader.known[0] {
                        reader.told[0] = true;
                        reader.inbox.push(Message::Retire(0));
                    }
                }
            }
            Action::Free(generation) => state.freed[usize::from(generation)] = true,
            Action::Receive(at) => {
                let message = state.readers[at].inbox.remove(0);
                state.readers[at].hear(message);
            }
            Action::Release(at, generation) => {
                state.readers[at].holds[usize::from(generation)] = false;
                state.readers[at].give_up();
            }
            Action::Acknowledge(at) => {
                let reader = &mut state.readers[at];
                let generation = usize::from(reader.outbox.remove(0));
                let asked = reader.told[generation] || reader.link == Link::Leaving;
                if asked || self.0 == Flaw::UnaskedAcknowledgement {
                    reader.known[generation] = false;
                } else if reader.link == Link::Linked {
                    // A violation: it is published to no more, and its process is waited for.
                    reader.link = Link::Leaving;
                }
            }
            Action::Goodbye(at) => {
                let reader = &mut state.readers[at];
                reader.link = Link::Leaving;
                // It takes nothing more, and gives up everything once it holds nothing.
                reader.inbox.clear();
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
            Action::Notice(at) => state.readers[at].link = Link::Over,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is freed that is imported", |_, state: &State| {
                let honest = state.readers.iter().filter(|reader| !reader.lied);
                honest.into_iter().all(|reader| {
                    (0..GENERATIONS)
                        .all(|generation| !(state.freed[generation] && reader.imports[generation]))
                })
            }),
            Property::always("who knows retired memory is asked to give it up", |_, state: &State| {
                let linked = state.readers.iter().filter(|reader| reader.link == Link::Linked);
                linked.into_iter().all(|reader| {
                    (0..GENERATIONS).all(|at| !state.retired[at] || !reader.known[at] || reader.told[at])
                })
            }),
            Property::always("a frame's memory is known, and not given up", |_, state: &State| {
                state.readers.iter().all(|reader| !reader.lost_its_way)
            }),
            Property::always("who lies about what it keeps is published to no more", |_, state: &State| {
                state.readers.iter().all(|reader| {
                    // Once its lie has been heard.
                    !reader.lied
                        || !reader.outbox.is_empty()
                        || reader.link != Link::Linked
                        || reader.told[0]
                        || reader.known[0]
                })
            }),
            Property::sometimes("a late reader meets the new generation alone", |_, state: &State| {
                state.retired[0]
                    && state.readers[1].link == Link::Linked
                    && state.readers[1].holds == [false, true]
            }),
            Property::sometimes("the old generation is freed while readers go on", |_, state: &State| {
                state.freed[0] && state.readers.iter().all(|reader| reader.link == Link::Linked)
            }),
        ]
    }
}

#[test]
fn memory_is_freed_when_nobody_imports_it_whoever_joins_or_leaves() {
    holds("retirement", Retirement(Flaw::None));
}

#[test]
fn readers_on_their_way_out_must_be_waited_for() {
    fails(Retirement(Flaw::ForgetsLeaving), "nothing is freed that is imported");
}

#[test]
fn a_newcomer_that_is_told_of_retired_memory_is_never_asked_to_give_it_up() {
    fails(Retirement(Flaw::TellsNewcomersAll), "who knows retired memory is asked to give it up");
}

#[test]
fn an_acknowledgement_that_nobody_asked_for_is_a_violation() {
    fails(Retirement(Flaw::UnaskedAcknowledgement), "who lies about what it keeps is published to no more");
}
