// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which task has its turn next: queue, timers, and events that wait for a task that runs.

use super::task::Run;
use crate::sys::Timeout;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map},
    mem,
    time::Instant,
};

/// The tasks of the service threads.
#[derive(Default)]
pub(super) struct Schedule {
    tasks: BTreeMap<u32, Entry>,
    next: u32,
    /// Tasks whose turn is due, in order. Each is in it once at most.
    queue: VecDeque<u32>,
    timers: BTreeSet<(Instant, u32)>,
}

/// A task, and the reasons for its next turn.
#[derive(Default)]
struct Entry {
    /// `None` before the task has started, and while it runs.
    run: Option<Box<dyn Run>>,
    has_started: bool,
    is_queued: bool,
    is_woken: bool,
    /// Registrations that have an event.
    ready: Vec<u32>,
    /// The time that the task named at the end of its last turn.
    deadline: Option<Instant>,
    /// The first time that others named since.
    soon: Option<Instant>,
    /// The last time that others named since, in place of earlier ones.
    later: Option<Instant>,
    /// The timer in the schedule, which may be too early.
    timer: Option<Instant>,
}

/// A task whose turn has begun.
pub(super) struct Turn {
    pub id: u32,
    pub run: Box<dyn Run>,
    pub ready: Vec<u32>,
}

impl Entry {
    fn due(&self) -> Option<Instant> {
        [self.deadline, self.soon, self.later].into_iter().flatten().min()
    }
}

impl Schedule {
    /// Adds a task that has not started. Numbers are used again once they have wrapped.
    pub fn reserve(&mut self) -> u32 {
        loop {
            let id = self.next;
            self.next = self.next.wrapping_add(1);
            if let btree_map::Entry::Vacant(place) = self.tasks.entry(id) {
                place.insert(Entry::default());
                return id;
            }
        }
    }

    /// Removes a task that has not started.
    pub fn cancel(&mut self, id: u32) {
        if self.tasks.get(&id).is_some_and(|entry| !entry.has_started) {
            self.tasks.remove(&id);
        }
    }

    /// Starts a task: its first turn is due.
    pub fn start(&mut self, id: u32, run: Box<dyn Run>) {
        let Some(entry) = self.tasks.get_mut(&id) else { return };
        (entry.run, entry.has_started, entry.is_woken) = (Some(run), true, true);
        self.enqueue(id);
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub fn has_several(&self) -> bool {
        self.tasks.len() > 1
    }

    /// Returns whether there is a task other than this one.
    pub fn has_other_than(&self, id: Option<u32>) -> bool {
        let own = id.is_some_and(|id| self.tasks.contains_key(&id));
        self.tasks.len() > usize::from(own)
    }

    /// Makes a turn of a task due: the present one does not count.
    pub fn wake(&mut self, id: u32) {
        if let Some(entry) = self.tasks.get_mut(&id) {
            entry.is_woken = true;
            self.enqueue(id);
        }
    }

    /// Makes a turn of a task due at a time at the latest.
    pub fn wake_by(&mut self, id: u32, at: Instant) {
        if let Some(entry) = self.tasks.get_mut(&id) {
            entry.soon = Some(entry.soon.map_or(at, |soon| soon.min(at)));
            self.set_timer(id);
        }
    }

    /// Makes a turn of a task due at a time, in place of an earlier call. A turn in between ends
    /// that.
    pub fn wake_at(&mut self, id: u32, at: Instant) {
        if let Some(entry) = self.tasks.get_mut(&id) {
            entry.later = Some(at);
            self.set_timer(id);
        }
    }

    /// Records an event of a task's registration.
    pub fn add_event(&mut self, id: u32, registration: u32) {
        if let Some(entry) = self.tasks.get_mut(&id) {
            entry.ready.push(registration);
            self.enqueue(id);
        }
    }

    /// Queues tasks whose time has come, and returns the number of turns that are due.
    pub fn expire(&mut self, now: Instant) -> usize {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            let Some(entry) = self.tasks.get_mut(&id) else { continue };
            entry.timer = None;
            match entry.due() {
                Some(due) if due <= now => {
                    entry.is_woken = true;
                    self.enqueue(id);
                }
                // It was put off.
                _ => self.set_timer(id),
            }
        }
        self.queue.len()
    }

    /// Begins the next turn that is due.
    pub fn begin(&mut self) -> Option<Turn> {
        loop {
            let id = self.queue.pop_front()?;
            let Some(entry) = self.tasks.get_mut(&id) else { continue };
            entry.is_queued = false;
            let Some(run) = entry.run.take() else { continue };
            entry.is_woken = false;
            (entry.deadline, entry.soon, entry.later) = (None, None, None);
            if let Some(timer) = entry.timer.take() {
                self.timers.remove(&(timer, id));
            }
            return Some(Turn { id, run, ready: mem::take(&mut entry.ready) });
        }
    }

    /// Ends a turn; the next one is due at `next`, or after an event.
    pub fn end(&mut self, id: u32, run: Box<dyn Run>, next: Timeout) {
        let Some(entry) = self.tasks.get_mut(&id) else { return };
        entry.run = Some(run);
        entry.deadline = match next {
            Timeout::At(at) => Some(at),
            Timeout::Never => None,
        };
        self.set_timer(id);
        self.enqueue(id);
    }

    /// Removes a task.
    pub fn remove(&mut self, id: u32) {
        if let Some(timer) = self.tasks.remove(&id).and_then(|entry| entry.timer) {
            self.timers.remove(&(timer, id));
        }
    }

    /// Time of the next turn unless an event comes before: now if one is due.
    pub fn next_turn(&self) -> Timeout {
        if !self.queue.is_empty() {
            return Timeout::At(Instant::now());
        }
        self.timers.first().map_or(Timeout::Never, |(at, _)| Timeout::At(*at))
    }

    fn enqueue(&mut self, id: u32) {
        let Some(entry) = self.tasks.get_mut(&id) else { return };
        if entry.run.is_some() && !entry.is_queued && (entry.is_woken || !entry.ready.is_empty()) {
            entry.is_queued = true;
            self.queue.push_back(id);
        }
    }

    /// Sets a timer that is not later than the task's next turn. One that is put off again and
    /// again is set once in its time.
    fn set_timer(&mut self, id: u32) {
        let Some(entry) = self.tasks.get_mut(&id) else { return };
        let Some(due) = entry.due().filter(|due| entry.timer.is_none_or(|timer| timer > *due)) else {
            return;
        };
        if let Some(timer) = entry.timer.replace(due) {
            self.timers.remove(&(timer, id));
        }
        self.timers.insert((due, id));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Next, *};
    use crate::sys::Epoll;
    use std::time::Duration;

    struct Nothing;

    impl Run for Nothing {
        fn run(&mut self, _: &Epoll, _: &[u32]) -> Next {
            Next::End
        }

        fn fail(&mut self) {}

        fn end(&mut self, _: &Epoll) {}
    }

    fn schedule(count: u32) -> Schedule {
        let mut schedule = Schedule::default();
        for _ in 0..count {
            let id = schedule.reserve();
            schedule.start(id, Box::new(Nothing));
        }
        schedule
    }

    fn begin(schedule: &mut Schedule) -> Option<(u32, Vec<u32>)> {
        schedule.begin().map(|Turn { id, ready, .. }| (id, ready))
    }

    #[test]
    fn task_that_runs_gets_events_and_wake_ups_in_its_next_turn() {
        let mut schedule = schedule(2);
        assert_eq!(begin(&mut schedule), Some((0, vec![])));
        schedule.wake(0);
        schedule.add_event(0, 7);
        schedule.add_event(0, 9);
        assert_eq!(begin(&mut schedule), Some((1, vec![])));
        assert_eq!(begin(&mut schedule), None);
        schedule.end(0, Box::new(Nothing), Timeout::Never);
        assert_eq!(begin(&mut schedule), Some((0, vec![7, 9])));
        schedule.end(0, Box::new(Nothing), Timeout::Never);
        assert_eq!(begin(&mut schedule), None);
    }

    #[test]
    fn woken_task_has_its_turn_after_those_before_it() {
        let mut schedule = schedule(3);
        (0..3).for_each(|_| drop(begin(&mut schedule)));
        (0..3).for_each(|id| schedule.end(id, Box::new(Nothing), Timeout::Never));
        for id in [2, 0, 2, 1, 0] {
            schedule.wake(id);
        }
        let order = std::iter::from_fn(|| begin(&mut schedule)).map(|(id, _)| id);
        assert_eq!(order.collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn turn_is_due_at_earlier_of_both_times_and_may_be_put_off() {
        let mut schedule = schedule(1);
        drop(begin(&mut schedule));
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        schedule.end(0, Box::new(Nothing), Timeout::At(at(50)));
        assert_eq!(schedule.next_turn(), Timeout::At(at(50)));
        schedule.wake_at(0, at(10));
        assert_eq!(schedule.next_turn(), Timeout::At(at(10)));
        schedule.wake_at(0, at(20));
        assert_eq!(schedule.expire(at(10)), 0);
        assert_eq!(schedule.next_turn(), Timeout::At(at(20)));
        schedule.wake_at(0, at(90));
        assert_eq!(schedule.expire(at(20)), 0);
        assert_eq!(schedule.next_turn(), Timeout::At(at(50)));
        assert_eq!(schedule.expire(at(50)), 1);
        assert_eq!(begin(&mut schedule), Some((0, vec![])));
        schedule.end(0, Box::new(Nothing), Timeout::Never);
        assert_eq!(schedule.next_turn(), Timeout::Never, "a turn ends both");
    }

    #[test]
    fn turn_is_due_at_first_time_that_may_not_be_put_off() {
        let mut schedule = schedule(1);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        for _ in 0..2 {
            // Names them before or during a turn.
            schedule.wake_by(0, at(30));
            let (id, _) = begin(&mut schedule).unwrap();
            schedule.wake_by(id, at(20));
            schedule.wake_by(id, at(40));
            schedule.wake_at(id, at(90));
            schedule.end(id, Box::new(Nothing), Timeout::At(at(50)));
            assert_eq!(schedule.next_turn(), Timeout::At(at(20)));
            assert_eq!(schedule.expire(at(20)), 1);
        }
    }

    #[test]
    fn wrapped_number_is_no_running_task_s() {
        let mut schedule = schedule(2);
        schedule.next = u32::MAX;
        assert_eq!([(); 3].map(|()| schedule.reserve()), [u32::MAX, 2, 3]);
        assert_eq!(schedule.tasks.len(), 5);
    }

    #[test]
    fn removed_or_cancelled_task_has_no_turn() {
        let mut schedule = schedule(2);
        drop(begin(&mut schedule));
        schedule.wake_at(0, Instant::now());
        schedule.remove(0);
        schedule.end(0, Box::new(Nothing), Timeout::Never);
        let cancelled = schedule.reserve();
        schedule.wake(cancelled);
        schedule.cancel(cancelled);
        schedule.cancel(1);
        assert_eq!(schedule.expire(Instant::now()), 1);
        assert_eq!(begin(&mut schedule), Some((1, vec![])));
        schedule.remove(1);
        assert!(schedule.is_empty());
    }
}
