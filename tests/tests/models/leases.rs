// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: leases of slots, with readers that take, release, lie, disconnect and die.
//!
//! As in the exporter, a publication counts its leases, an entry of a reader's queue carries one
//! lease, and a reader's claim words are compared with the exporter's own state. A slot is free
//! when it has no publication.

use crate::{fails, holds};
use stateright::{Model, Property};

const READERS: usize = 2;
/// Entries of a reader's queue.
const ENTRIES: usize = 2;
const SLOTS: usize = 3;
/// Number of published frames.
const FRAMES: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The exporter accepts a release of any frame.
    AnyRelease,
    /// Disconnecting a reader ends its leases, the released ones a second time.
    EndedTwice,
    /// An untaken frame is revoked by a store in place of an exchange.
    BlindRevoke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Revoked(u8),
    Published(u8),
    Taken(u8),
    Released(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reader {
    /// The shared claim words.
    words: [Word; ENTRIES],
    /// The exporter's state: the frame that each entry carries.
    leases: [Option<u8>; ENTRIES],
    /// The frames that the reader holds in its own view.
    holds: [Option<u8>; ENTRIES],
    /// The reader's process runs.
    alive: bool,
    /// The exporter serves the reader.
    linked: bool,
    /// The reader has written an invalid word.
    lied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    readers: [Reader; READERS],
    /// By frame: its slot and its number of leases.
    publications: Vec<Option<(u8, i8)>>,
    /// By slot: the frame in it.
    content: [u8; SLOTS],
    next: u8,
    /// A lease has ended by the release of another one.
    deceived: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Publish,
    Take(usize, usize),
    Release(usize, usize),
    /// Releases a frame that was reclaimed long ago.
    Lie(usize, usize),
    Die(usize),
    /// The exporter collects releases.
    Collect(usize),
    /// The exporter notices that the reader has disconnected.
    Notice(usize),
}

struct Leases(Flaw);

impl State {
    fn end_lease(&mut self, frame: u8) {
        let publication = &mut self.publications[usize::from(frame)];
        if let Some((_, leases)) = publication {
            *leases -= 1;
            if *leases == 0 {
                *publication = None;
            }
        } else {
            // One lease too many has ended: the count becomes negative.
            *publication = Some((0, -1));
        }
    }

    fn free_slot(&self) -> Option<u8> {
        let used = |slot: u8| self.publications.iter().flatten().any(|(of, _)| *of == slot);
        (0..SLOTS as u8).find(|slot| !used(*slot))
    }
}

impl Leases {
    /// Disconnects a reader: all its leases end.
    fn unlink(&self, state: &mut State, reader: usize) {
        state.readers[reader].linked = false;
        for entry in 0..ENTRIES {
            let word = state.readers[reader].words[entry];
            if let Some(frame) = state.readers[reader].leases[entry].take() {
                state.end_lease(frame);
                if self.0 == Flaw::EndedTwice && word == Word::Released(frame) {
                    state.end_lease(frame);
                }
            }
        }
    }

    /// Whether the word is a violation for the exporter.
    fn is_violation(word: Word, lease: u8) -> bool {
        !matches!(word, Word::Published(of) | Word::Taken(of) | Word::Released(of) if of == lease)
    }

    fn collect(&self, state: &mut State, reader: usize) {
        for entry in 0..ENTRIES {
            let (Some(lease), word) =
                (state.readers[reader].leases[entry], state.readers[reader].words[entry])
            else {
                continue;
            };
            let is_release = match self.0 {
                Flaw::AnyRelease => matches!(word, Word::Released(_)),
                _ if Self::is_violation(word, lease) => return self.unlink(state, reader),
                _ => word == Word::Released(lease),
            };
            if is_release {
                state.deceived |= word != Word::Released(lease);
                state.readers[reader].leases[entry] = None;
                state.end_lease(lease);
            }
        }
    }

    /// An entry for the next frame: a vacant one, or else the oldest untaken one.
    fn vacate(&self, state: &mut State, reader: usize) -> Option<usize> {
        if let Some(vacant) = state.readers[reader].leases.iter().position(Option::is_none) {
            return Some(vacant);
        }
        let mut entries: Vec<usize> = (0..ENTRIES).collect();
        entries.sort_by_key(|entry| state.readers[reader].leases[*entry]);
        for entry in entries {
            let lease = state.readers[reader].leases[entry]?;
            let word = state.readers[reader].words[entry];
            if word == Word::Published(lease) || self.0 == Flaw::BlindRevoke {
                state.readers[reader].words[entry] = Word::Revoked(lease);
                state.readers[reader].leases[entry] = None;
                state.end_lease(lease);
                return Some(entry);
            }
            if Self::is_violation(word, lease) {
                self.unlink(state, reader);
                return None;
            }
        }
        None
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let reader = Reader {
            words: [Word::Revoked(0); ENTRIES],
            leases: [None; ENTRIES],
            holds: [None; ENTRIES],
            alive: true,
            linked: true,
            lied: false,
        };
        vec![State {
            readers: [reader.clone(), reader],
            publications: vec![None; usize::from(FRAMES) + 1],
            content: [0; SLOTS],
            next: 1,
            deceived: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.next <= FRAMES {
            actions.push(Action::Publish);
        }
        for (at, reader) in state.readers.iter().enumerate() {
            if reader.alive {
                actions.push(Action::Die(at));
                for entry in 0..ENTRIES {
                    if matches!(reader.words[entry], Word::Published(_)) {
                        actions.push(Action::Take(at, entry));
                    }
                    if reader.holds[entry].is_some() {
                        actions.push(Action::Release(at, entry));
                    }
                    if !reader.lied && reader.holds[entry].is_some_and(|frame| frame > 1) {
                        actions.push(Action::Lie(at, entry));
                    }
                }
            } else if reader.linked {
                actions.push(Action::Notice(at));
            }
            if reader.linked {
                actions.push(Action::Collect(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Publish => {
                let slot = state.free_slot()?;
                let frame = state.next;
                state.next += 1;
                // The publisher's own lease, until the frame was offered to every reader.
                state.publications[usize::from(frame)] = Some((slot, 1));
                state.content[usize::from(slot)] = frame;
                for reader in 0..READERS {
                    if !state.readers[reader].linked {
                        continue;
                    }
                    if let Some(entry) = self.vacate(&mut state, reader) {
                        state.readers[reader].words[entry] = Word::Published(frame);
                        state.readers[reader].leases[entry] = Some(frame);
                        if let Some((_, leases)) = &mut state.publications[usize::from(frame)] {
                            *leases += 1;
                        }
                    }
                }
                state.end_lease(frame);
            }
            Action::Take(reader, entry) => {
                let reader = &mut state.readers[reader];
                let Word::Published(frame) = reader.words[entry] else { return None };
                reader.words[entry] = Word::Taken(frame);
                reader.holds[entry] = Some(frame);
            }
            Action::Release(reader, entry) => {
                let reader = &mut state.readers[reader];
                let frame = reader.holds[entry].take()?;
                reader.words[entry] = Word::Released(frame);
            }
            Action::Lie(reader, entry) => {
                let reader = &mut state.readers[reader];
                let frame = reader.holds[entry]?;
                reader.lied = true;
                reader.words[entry] = Word::Released(frame - 1);
            }
            Action::Die(reader) => {
                state.readers[reader].alive = false;
                state.readers[reader].holds = [None; ENTRIES];
            }
            Action::Collect(reader) => self.collect(&mut state, reader),
            Action::Notice(reader) => self.unlink(&mut state, reader),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a frame is not written while it is read", |_, state: &State| {
                // A reader that lied or was disconnected has no claim to its frames.
                let honest = state.readers.iter().filter(|reader| reader.linked && !reader.lied);
                honest
                    .flat_map(|reader| reader.holds.iter().flatten())
                    .all(|frame| state.content.contains(frame))
            }),
            Property::always("no lease ends twice", |_, state: &State| {
                state.publications.iter().flatten().all(|(_, leases)| *leases > 0)
            }),
            Property::always("the count of leases matches the entries", |_, state: &State| {
                state.publications.iter().enumerate().all(|(frame, publication)| {
                    let leases = state.readers.iter().flat_map(|reader| reader.leases.iter().flatten());
                    let count = leases.filter(|of| usize::from(**of) == frame).count() as i8;
                    publication.map_or(0, |(_, leases)| leases) == count
                })
            }),
            Property::always("a lease ends by its own release", |_, state: &State| !state.deceived),
            Property::always("a disconnected reader has no leases", |_, state: &State| {
                state.readers.iter().all(|reader| reader.linked || reader.leases.iter().all(Option::is_none))
            }),
            Property::sometimes("all frames are released", |_, state: &State| {
                state.next > FRAMES && state.publications.iter().all(Option::is_none)
            }),
            Property::sometimes("a lying reader is disconnected", |_, state: &State| {
                state.readers.iter().any(|reader| reader.lied && reader.alive && !reader.linked)
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        // States behind a violation need not be explored.
        state.publications.iter().flatten().all(|(_, leases)| *leases >= -1)
    }
}

#[test]
fn every_lease_ends_once() {
    holds("leases", Leases(Flaw::None));
}

#[test]
fn accepting_any_release_reclaims_held_frame() {
    fails(Leases(Flaw::AnyRelease), "a lease ends by its own release");
}

#[test]
fn lease_ended_twice_is_found() {
    fails(Leases(Flaw::EndedTwice), "the count of leases matches the entries");
}

#[test]
fn revoking_by_store_overwrites_held_frame() {
    fails(Leases(Flaw::BlindRevoke), "a frame is not written while it is read");
}
