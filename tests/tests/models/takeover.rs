//! Two exporters and a name: the lock file, the socket's file, and deaths at any step.
//!
//! As `Exporter::bind` has it: open the lock file, lock it, look whether there is a socket's file, unlink it, bind, listen;
//! and at the end unlink the socket's file, close the socket, let the lock go.

use crate::{fails, holds};
use stateright::{Model, Property};

const EXPORTERS: usize = 2;
/// How often each starts.
const LIVES: u8 = 2;

/// What can be wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The lock file is removed in the end, as files that are no longer needed are.
    UnlinkedLock,
    /// The lock is let go before the socket's file is unlinked.
    EarlyUnlock,
    /// A stale socket is unlinked without holding the lock.
    NoLock,
}

/// How far an exporter has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Dead,
    /// It has opened the lock file, which was this inode.
    Opened(u8),
    Locked(u8),
    Unlinked(u8),
    /// Its socket's file is this inode.
    Bound(u8, u8),
    Listening(u8, u8),
    /// It ends: its file is gone, the socket still open.
    Ending(u8),
    /// It was told that the name is in use.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    steps: [Step; EXPORTERS],
    lives: [u8; EXPORTERS],
    /// The inode that the lock's path leads to.
    lock_path: Option<u8>,
    /// Who holds a lock on which inode.
    locks: [Option<u8>; EXPORTERS],
    /// The inode that the socket's path leads to.
    socket_path: Option<u8>,
    next_inode: u8,
    taken_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Go(usize),
    Stop(usize),
    Die(usize),
}

struct Takeover(Flaw);

impl State {
    fn inode(&mut self) -> u8 {
        self.next_inode += 1;
        self.next_inode
    }
}

impl Model for Takeover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            steps: [Step::Dead; EXPORTERS],
            lives: [LIVES; EXPORTERS],
            lock_path: None,
            locks: [None; EXPORTERS],
            socket_path: None,
            next_inode: 0,
            taken_over: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, step) in state.steps.iter().enumerate() {
            match step {
                Step::Dead if state.lives[who] > 0 => actions.push(Action::Go(who)),
                Step::Dead => {}
                Step::Listening(..) => actions.extend([Action::Stop(who), Action::Die(who)]),
                _ => actions.extend([Action::Go(who), Action::Die(who)]),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Die(who) => {
                state.locks[who] = None;
                state.steps[who] = Step::Dead;
            }
            Action::Stop(who) => {
                let Step::Listening(lock, _) = state.steps[who] else { return None };
                if self.0 == Flaw::EarlyUnlock {
                    state.locks[who] = None;
                } else {
                    // By its path: the socket itself is not what unlink(2) is told.
                    state.socket_path = None;
                }
                state.steps[who] = Step::Ending(lock);
            }
            Action::Go(who) => {
                state.steps[who] = match state.steps[who] {
                    Step::Dead => {
                        state.lives[who] -= 1;
                        let lock = match state.lock_path {
                            Some(lock) => lock,
                            None => state.inode(),
                        };
                        state.lock_path = Some(lock);
                        Step::Opened(lock)
                    }
                    Step::Opened(lock) if self.0 != Flaw::NoLock && state.locks.contains(&Some(lock)) => {
                        Step::Refused
                    }
                    Step::Opened(lock) => {
                        state.locks[who] = Some(lock);
                        Step::Locked(lock)
                    }
                    Step::Locked(lock) => {
                        state.taken_over |= state.socket_path.is_some();
                        state.socket_path = None;
                        Step::Unlinked(lock)
                    }
                    // bind(2) fails where there is a file.
                    Step::Unlinked(_) if state.socket_path.is_some() => {
                        state.locks[who] = None;
                        Step::Refused
                    }
                    Step::Unlinked(lock) => {
                        let socket = state.inode();
                        state.socket_path = Some(socket);
                        Step::Bound(lock, socket)
                    }
                    Step::Bound(lock, socket) => Step::Listening(lock, socket),
                    Step::Ending(_) => {
                        match self.0 {
                            Flaw::EarlyUnlock => state.socket_path = None,
                            Flaw::UnlinkedLock => state.lock_path = None,
                            _ => {}
                        }
                        state.locks[who] = None;
                        Step::Dead
                    }
                    Step::Refused => Step::Dead,
                    Step::Listening(..) => return None,
                };
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("who listens is reached by the name", |_, state: &State| {
                state.steps.iter().all(|step| match step {
                    Step::Bound(_, socket) | Step::Listening(_, socket) => state.socket_path == Some(*socket),
                    _ => true,
                })
            }),
            Property::always("one exporter at a time has the name", |_, state: &State| {
                let has_it = |step: &&Step| matches!(step, Step::Bound(..) | Step::Listening(..));
                state.steps.iter().filter(has_it).count() <= 1
            }),
            Property::sometimes("a stale socket is taken over", |_, state: &State| {
                state.taken_over && state.steps.iter().any(|step| matches!(step, Step::Listening(..)))
            }),
            Property::sometimes("who comes second is refused", |_, state: &State| {
                state.steps.contains(&Step::Refused)
                    && state.steps.iter().any(|step| matches!(step, Step::Listening(..)))
            }),
        ]
    }
}

#[test]
fn two_exporters_race_for_a_name_and_one_has_it() {
    holds("name take-over", Takeover(Flaw::None));
}

#[test]
fn a_lock_file_that_is_removed_lets_two_have_the_name() {
    fails(Takeover(Flaw::UnlinkedLock), "one exporter at a time has the name");
}

#[test]
fn a_lock_that_is_let_go_too_early_takes_the_next_ones_socket_away() {
    fails(Takeover(Flaw::EarlyUnlock), "who listens is reached by the name");
}

#[test]
fn without_a_lock_a_live_socket_is_taken_away() {
    fails(Takeover(Flaw::NoLock), "who listens is reached by the name");
}
