// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: backlogs of lossless readers, and the slots that they need.
//!
//! As in the exporter, a frame joins the backlog of each reader without a vacant entry, or with a
//! backlog, and leaves it in order as entries become vacant. A frame is published only while the
//! credits, the longest backlog with it, and two more slots are within the limit.

use crate::{fails, holds};
use stateright::{Model, Property};
use std::collections::VecDeque;

const READERS: usize = 2;
/// Entries of each reader's queue: its credit.
const CREDIT: [usize; READERS] = [1, 2];
/// The credits, two frames that wait, and two in reserve.
const SLOTS: usize = 3 + 2 + 2;
/// Number of published frames.
const FRAMES: u8 = 7;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A frame takes a vacant entry although others wait.
    Overtakes,
    /// The slots of a backlog are not counted.
    Unbounded,
    /// A reader that ends leaves its backlog behind.
    LeftBehind,
    /// A frame leaves the backlog without its lease.
    LeaseLost,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Reader {
    /// Frames in entries, oldest first, and whether each is released.
    entries: Vec<(u8, bool)>,
    backlog: VecDeque<u8>,
    /// The last frame that was delivered.
    last: u8,
    /// A frame was delivered out of order, or left out.
    is_wrong: bool,
    is_linked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    readers: [Reader; READERS],
    /// Number of leases of each frame.
    leases: Vec<i8>,
    next: u8,
    /// A publication found no free slot.
    is_out_of_slots: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Publish,
    /// The reader releases an entry.
    Release(usize, usize),
    /// The exporter collects releases.
    Collect(usize),
    /// The exporter delivers a waiting frame.
    Deliver(usize),
    /// The exporter notices that the reader has ended.
    End(usize),
}

struct Backlogs(Flaw);

impl State {
    fn longest(&self) -> usize {
        self.readers.iter().map(|reader| reader.backlog.len()).max().unwrap_or(0)
    }

    fn credit(&self) -> usize {
        let linked = self.readers.iter().zip(CREDIT).filter(|(reader, _)| reader.is_linked);
        linked.map(|(_, credit)| credit).sum()
    }

    fn deliver(&mut self, at: usize, frame: u8) {
        let reader = &mut self.readers[at];
        reader.is_wrong |= frame != reader.last + 1;
        reader.last = frame;
        reader.entries.push((frame, false));
    }
}

impl Backlogs {
    /// Whether one more frame is within the limits.
    fn has_room(&self, state: &State) -> bool {
        let waits = |(reader, credit): (&Reader, usize)| {
            reader.is_linked && (reader.entries.len() == credit || !reader.backlog.is_empty())
        };
        let one_more = usize::from(state.readers.iter().zip(CREDIT).any(waits));
        self.0 == Flaw::Unbounded || one_more == 0 || state.credit() + state.longest() + 1 + 2 <= SLOTS
    }
}

impl Model for Backlogs {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let reader = Reader { is_linked: true, ..Reader::default() };
        let leases = vec![0; usize::from(FRAMES) + 1];
        vec![State { readers: [reader.clone(), reader], leases, next: 1, is_out_of_slots: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.next <= FRAMES && self.has_room(state) {
            actions.push(Action::Publish);
        }
        for (at, reader) in state.readers.iter().enumerate().filter(|(_, reader)| reader.is_linked) {
            actions.push(Action::Collect(at));
            actions.push(Action::Deliver(at));
            actions.push(Action::End(at));
            let held = reader.entries.iter().enumerate().filter(|(_, (_, is_released))| !is_released);
            actions.extend(held.map(|(entry, _)| Action::Release(at, entry)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Publish => {
                let frame = state.next;
                state.next += 1;
                let used = state.leases.iter().filter(|leases| **leases > 0).count();
                // The next frame's copy needs a slot, too.
                state.is_out_of_slots |= used + 2 > SLOTS;
                for (at, credit) in CREDIT.into_iter().enumerate() {
                    let reader = &mut state.readers[at];
                    if !reader.is_linked {
                        continue;
                    }
                    state.leases[usize::from(frame)] += 1;
                    let waits = !reader.backlog.is_empty() && self.0 != Flaw::Overtakes;
                    if reader.entries.len() == credit || waits {
                        reader.backlog.push_back(frame);
                    } else {
                        state.deliver(at, frame);
                    }
                }
            }
            Action::Release(at, entry) => state.readers[at].entries.get_mut(entry)?.1 = true,
            Action::Collect(at) => {
                let released = std::mem::take(&mut state.readers[at].entries);
                for (frame, is_released) in released {
                    if is_released {
                        state.leases[usize::from(frame)] -= 1;
                    } else {
                        state.readers[at].entries.push((frame, false));
                    }
                }
            }
            Action::Deliver(at) => {
                if state.readers[at].entries.len() == CREDIT[at] {
                    return None;
                }
                let frame = state.readers[at].backlog.pop_front()?;
                if self.0 == Flaw::LeaseLost {
                    state.leases[usize::from(frame)] -= 1;
                }
                state.deliver(at, frame);
            }
            Action::End(at) => {
                let reader = std::mem::take(&mut state.readers[at]);
                let waiting = reader.backlog.into_iter().filter(|_| self.0 != Flaw::LeftBehind);
                for frame in reader.entries.into_iter().map(|(frame, _)| frame).chain(waiting) {
                    state.leases[usize::from(frame)] -= 1;
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every reader gets every frame in order", |_, state: &State| {
                state.readers.iter().all(|reader| !reader.is_wrong)
            }),
            Property::always("a publication finds a slot", |_, state: &State| !state.is_out_of_slots),
            Property::always("the frames of a backlog are the newest ones", |_, state: &State| {
                let is_suffix = |reader: &Reader| {
                    let count = reader.backlog.len() as u8;
                    reader.backlog.iter().copied().eq(state.next - count..state.next)
                };
                state.readers.iter().all(is_suffix)
            }),
            Property::always("the count of leases matches entries and backlogs", |_, state: &State| {
                state.leases.iter().zip(0..).all(|(leases, frame)| {
                    let has = |reader: &Reader| {
                        let entries = reader.entries.iter().filter(|(of, _)| *of == frame).count();
                        (entries + reader.backlog.iter().filter(|of| **of == frame).count()) as i8
                    };
                    state.readers.iter().map(has).sum::<i8>() == *leases
                })
            }),
            Property::sometimes("two frames wait for both readers", |_, state: &State| {
                state.readers.iter().all(|reader| reader.backlog.len() == 2)
            }),
            Property::sometimes("a paused reader catches up", |_, state: &State| {
                state.next > FRAMES && state.readers[0].last == FRAMES && state.readers[0].entries.is_empty()
            }),
        ]
    }
}

#[test]
fn backlogs_keep_order_and_slots() {
    holds("backlogs", Backlogs(Flaw::None));
}

#[test]
fn frame_that_overtakes_a_backlog_is_found() {
    fails(Backlogs(Flaw::Overtakes), "every reader gets every frame in order");
}

#[test]
fn backlog_without_limit_runs_out_of_slots() {
    fails(Backlogs(Flaw::Unbounded), "a publication finds a slot");
}

#[test]
fn backlog_left_behind_is_found() {
    fails(Backlogs(Flaw::LeftBehind), "the count of leases matches entries and backlogs");
}

#[test]
fn waiting_frame_without_lease_is_found() {
    fails(Backlogs(Flaw::LeaseLost), "the count of leases matches entries and backlogs");
}
