// SPDX-License-Identifier: MIT OR Apache-2.0

//! Model: two exporters and a name, with the lock file, the socket file, deaths at any step, and a
//! user who removes either file.
//!
//! As in `Listener`: open the lock file, lock it, compare it with the file at its path, connect to
//! the socket file and unlink it if no process listens, bind, listen. At the end: unlink the
//! socket's own file, close the socket, release the lock. A listening exporter checks both files
//! from time to time, and binds again if they are missing.

use crate::{fails, holds};
use stateright::{Model, Property};

const EXPORTERS: usize = 2;
/// Number of times that each exporter starts.
const LIVES: u8 = 2;

/// Faults of the model, for negative controls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// No lock is taken.
    NoLock,
    /// The locked file is not compared with the file at its path.
    NoComparison,
    /// The socket file is unlinked without a connection attempt.
    NoProbe,
    /// At the end the file at the socket's path is unlinked, even if it is not the exporter's own.
    UnlinkByName,
}

/// Progress of an exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Dead,
    /// The lock file is open, with its inode.
    Opened(u8),
    Locked(u8),
    Unlinked(u8),
    /// The socket is bound; the inodes of the lock file and of the socket file.
    Bound(u8, u8),
    Listening(u8, u8),
    /// Stopping: the socket file is unlinked, the socket still open.
    Ending(u8),
    /// Refused, since the name is in use.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    steps: [Step; EXPORTERS],
    lives: [u8; EXPORTERS],
    /// Inode at the lock's path.
    lock_path: Option<u8>,
    /// The inode that each exporter has locked.
    locks: [Option<u8>; EXPORTERS],
    /// Inode at the socket's path.
    socket_path: Option<u8>,
    next_inode: u8,
    /// Files that the user may still remove: the lock file, the socket file.
    removals: [bool; 2],
    taken_over: bool,
    bound_again: bool,
    /// An exporter removed the file of a socket that another exporter listens on.
    removed_live: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Go(usize),
    Check(usize),
    Stop(usize),
    Die(usize),
    RemoveLock,
    RemoveSocket,
}

struct Takeover(Flaw);

impl State {
    fn inode(&mut self) -> u8 {
        self.next_inode += 1;
        self.next_inode
    }

    /// Returns the lock file's inode, and creates the file if it is missing.
    fn open_lock(&mut self) -> u8 {
        let lock = match self.lock_path {
            Some(lock) => lock,
            None => self.inode(),
        };
        self.lock_path = Some(lock);
        lock
    }

    fn is_live(&self, socket: u8) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Listening(_, other) if *other == socket))
    }

    fn unlink_socket(&mut self) {
        self.removed_live |= self.socket_path.is_some_and(|socket| self.is_live(socket));
        self.socket_path = None;
    }
}

impl Takeover {
    /// A listening exporter checks its files.
    fn check(&self, state: &mut State, who: usize) -> Option<()> {
        let Step::Listening(mut lock, mut socket) = state.steps[who] else { return None };
        if state.lock_path != Some(lock) {
            let other = state.open_lock();
            if state.locks.contains(&Some(other)) {
                return None;
            }
            (state.locks[who], lock) = (Some(other), other);
        }
        if state.socket_path != Some(socket) {
            // The exporter's own socket has no name any more.
            state.steps[who] = Step::Locked(lock);
            if state.socket_path.is_some_and(|other| state.is_live(other)) {
                state.steps[who] = Step::Listening(lock, socket);
                return Some(());
            }
            state.socket_path = None;
            socket = state.inode();
            state.socket_path = Some(socket);
            state.bound_again = true;
        }
        state.steps[who] = Step::Listening(lock, socket);
        Some(())
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
            removals: [true; 2],
            taken_over: false,
            bound_again: false,
            removed_live: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, step) in state.steps.iter().enumerate() {
            match step {
                Step::Dead if state.lives[who] > 0 => actions.push(Action::Go(who)),
                Step::Dead => {}
                Step::Listening(..) => {
                    actions.extend([Action::Check(who), Action::Stop(who), Action::Die(who)])
                }
                _ => actions.extend([Action::Go(who), Action::Die(who)]),
            }
        }
        // The rules do not cover a removal between the comparison and listen(2).
        let starts = |step: &Step| matches!(step, Step::Locked(_) | Step::Unlinked(_) | Step::Bound(..));
        if state.removals[0] && !state.steps.iter().any(starts) {
            actions.push(Action::RemoveLock);
        }
        if state.removals[1] {
            actions.push(Action::RemoveSocket);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::RemoveLock => {
                state.removals[0] = false;
                state.lock_path = None;
            }
            Action::RemoveSocket => {
                state.removals[1] = false;
                state.socket_path = None;
            }
            Action::Die(who) => {
                state.locks[who] = None;
                state.steps[who] = Step::Dead;
            }
            Action::Check(who) => self.check(&mut state, who)?,
            Action::Stop(who) => {
                let Step::Listening(lock, socket) = state.steps[who] else { return None };
                state.steps[who] = Step::Ending(lock);
                if state.socket_path == Some(socket) || self.0 == Flaw::UnlinkByName {
                    state.unlink_socket();
                }
            }
            Action::Go(who) => {
                state.steps[who] = match state.steps[who] {
                    Step::Dead => {
                        state.lives[who] -= 1;
                        Step::Opened(state.open_lock())
                    }
                    Step::Opened(lock) if self.0 != Flaw::NoLock && state.locks.contains(&Some(lock)) => {
                        Step::Refused
                    }
                    Step::Opened(lock) if state.lock_path != Some(lock) && self.0 != Flaw::NoComparison => {
                        Step::Opened(state.open_lock())
                    }
                    Step::Opened(lock) => {
                        state.locks[who] = Some(lock);
                        Step::Locked(lock)
                    }
                    Step::Locked(lock) => match state.socket_path {
                        Some(socket) if self.0 != Flaw::NoProbe && state.is_live(socket) => {
                            state.locks[who] = None;
                            Step::Refused
                        }
                        found => {
                            state.taken_over |= found.is_some();
                            state.unlink_socket();
                            Step::Unlinked(lock)
                        }
                    },
                    // bind(2) fails if the file exists.
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
            Property::always("the owner of the name is reached by it", |_, state: &State| {
                state.steps.iter().all(|step| match step {
                    Step::Bound(lock, socket) | Step::Listening(lock, socket) => {
                        // A missing file was removed by the user.
                        state.lock_path != Some(*lock)
                            || state.socket_path.is_none_or(|other| other == *socket)
                    }
                    _ => true,
                })
            }),
            Property::always("no live socket is removed", |_, state: &State| !state.removed_live),
            Property::sometimes("a stale socket is taken over", |_, state: &State| {
                state.taken_over && state.steps.iter().any(|step| matches!(step, Step::Listening(..)))
            }),
            Property::sometimes("a removed socket is bound again", |_, state: &State| state.bound_again),
            Property::sometimes("the second exporter is refused", |_, state: &State| {
                state.steps.contains(&Step::Refused)
                    && state.steps.iter().any(|step| matches!(step, Step::Listening(..)))
            }),
        ]
    }
}

#[test]
fn one_of_two_racing_exporters_gets_name() {
    holds("name take-over", Takeover(Flaw::None));
}

#[test]
fn without_lock_socket_of_starting_exporter_is_replaced() {
    fails(Takeover(Flaw::NoLock), "the owner of the name is reached by it");
}

#[test]
fn without_comparison_removed_lock_file_counts() {
    fails(Takeover(Flaw::NoComparison), "the owner of the name is reached by it");
}

#[test]
fn without_probe_live_socket_is_removed() {
    fails(Takeover(Flaw::NoProbe), "no live socket is removed");
}

#[test]
fn unlink_by_name_removes_socket_of_next() {
    fails(Takeover(Flaw::UnlinkByName), "no live socket is removed");
}
