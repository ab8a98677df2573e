//! Two exporters and a name: the lock file, the socket's file, deaths at any step, and a user who removes either file.
//!
//! As `Listener` has it: open the lock file, lock it, compare it with the file of its name, connect to the socket's file and
//! unlink it if nobody listens, bind, listen; and at the end unlink the socket's own file, close the socket, release the
//! lock. While it listens it checks both files now and then, and binds again if they are gone.

use crate::{fails, holds};
use stateright::{Model, Property};

const EXPORTERS: usize = 2;
/// How often each starts.
const LIVES: u8 = 2;

/// What can be wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Nothing is locked.
    NoLock,
    /// The lock is not compared with the file of its name.
    NoComparison,
    /// A socket is unlinked without asking whether another process listens.
    NoProbe,
    /// At the end whatever has the socket's name is unlinked.
    UnlinkByName,
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
    /// The name is in use.
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
    /// What the user may still remove: the lock file, the socket's file.
    removals: [bool; 2],
    taken_over: bool,
    bound_again: bool,
    /// An exporter removed a file whose socket another one listened at.
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

    /// The lock file's inode, which is created if it is missing.
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
            // Its own socket is no longer reached by any name.
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
        // A removal between the comparison and listen(2) is out of the rules' reach.
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
                        // Without a file the user has removed it.
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
fn two_exporters_race_for_a_name_and_one_has_it() {
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
fn unlink_by_name_removes_socket_of_the_next() {
    fails(Takeover(Flaw::UnlinkByName), "no live socket is removed");
}
