// SPDX-License-Identifier: MIT OR Apache-2.0

//! The leases of one reader: its queue entries, from publication until the release fence is ready.

mod revocation;

use crate::{
    exporter::{
        ending::Ending,
        link::Start,
        notice::ReaderInfo,
        now::Now,
        statistics::ReaderStats,
        system::{Fence, System},
        unit::Unit,
    },
    selected::Selected,
};
use frameshare_protocol::{
    AreaIndex, Descriptor, EntryIndex, FenceKind, MemoryKind, Sequence, message::Reason, page::ClaimState,
};
use frameshare_queue::{Ordered, Producer, Revocation, Sleeper, Violation};
use std::{
    cmp::Reverse,
    mem,
    time::{Duration, Instant},
};

/// A lease, as the exporter's state records it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    sequence: Sequence,
    area: AreaIndex,
    unit: Unit,
    /// The frame is in GPU memory: its lease ends after the reader's release fence.
    is_fenced: bool,
    /// Time when it was first seen released with its fence pending.
    released: Option<Instant>,
}

/// A frame that the reader has released. Ordered by sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Released {
    sequence: Sequence,
    entry: EntryIndex,
}

/// Figures that change when a reader takes or releases a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The oldest untaken frame.
    untaken: Option<Sequence>,
    /// Number of frames released so far.
    released: u64,
}

/// Whether a reader's GPU work on frames has so far ended in the order of the frames.
///
/// Polling an event takes a driver call. While frames are released in order, frames behind a
/// pending one need no call. Timeline values are read individually, in any order.
#[derive(Debug)]
struct InOrder {
    so_far: bool,
    /// Time of the last poll of frames behind a pending one.
    looked: Option<Instant>,
}

impl InOrder {
    /// Interval at which frames behind a pending one are polled nevertheless: an application with
    /// several streams may release frames in any order. Until an out-of-order release is observed,
    /// a finished frame counts as pending for up to this time.
    const DOUBT: Duration = Duration::from_millis(1);

    fn new(fence: FenceKind) -> Self {
        Self { so_far: fence == FenceKind::Event, looked: None }
    }

    /// Returns whether to poll frames behind a pending one this time.
    fn is_doubted<S: System>(&mut self, now: &Now<S>) -> bool {
        if !self.so_far {
            return true;
        }
        let now = now.get();
        let doubted = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= Self::DOUBT);
        if doubted {
            self.looked = Some(now);
        }
        doubted
    }
}

/// The leases of one reader.
#[derive(Debug)]
pub struct Leases<S: System> {
    producer: Producer<S::Page>,
    fence: S::Fence,
    choice: Selected<FenceKind>,
    /// The first frame that is neither published to the reader nor lost.
    next: Sequence,
    entries: Vec<Option<Lease>>,
    /// Maximum number of untaken frames.
    max_queued: usize,
    /// The reader got kept units, and is not known to have taken a live frame.
    reads_kept_units: bool,
    in_order: InOrder,
    start: Start,
    /// Buffer for released frames.
    released: Vec<Released>,
    /// Number of frames released so far.
    count_released: u64,
    /// The frame behind the newest one that the reader has released.
    released_up_to: Sequence,
    /// Entry of the frame that is being published.
    offered: Option<EntryIndex>,
    /// A frame was published, and no wake-up considered yet.
    is_published: bool,
    sent: u64,
    lost: u64,
    /// Time when the reader reported the loss of its context.
    failed: Option<Instant>,
}

impl<S: System> Leases<S> {
    /// Sets the maximum number of untaken frames, from the next frame on.
    pub fn set_max_queued(&mut self, max_queued: u32) {
        self.max_queued = max_queued as usize;
    }

    /// The leases of a reader that may get frames from `next` on.
    pub fn new(
        reader: &ReaderInfo,
        producer: Producer<S::Page>,
        fence: S::Fence,
        choice: Selected<FenceKind>,
        next: Sequence,
        start: Start,
    ) -> Self {
        Self {
            producer,
            in_order: InOrder::new(fence.kind()),
            fence,
            choice,
            next,
            start,
            entries: vec![None; reader.credit as usize],
            max_queued: reader.max_queued as usize,
            reads_kept_units: false,
            released: Vec::with_capacity(reader.credit as usize),
            count_released: 0,
            released_up_to: Sequence(0),
            offered: None,
            is_published: false,
            sent: 0,
            lost: 0,
            failed: None,
        }
    }

    /// Notes that the reader cannot release anything any more. Its GPU work may still run for a
    /// while: the leases stay until its process ends, or for the fence timeout.
    pub fn note_failure(&mut self, now: Instant) {
        self.failed.get_or_insert(now);
    }

    /// Returns whether leases of a failed reader are left.
    pub fn are_stranded(&self) -> bool {
        self.failed.is_some() && !self.is_empty()
    }

    /// Uses another fence from now on. No frame is published meanwhile.
    pub fn set_fence(&mut self, fence: S::Fence, choice: Selected<FenceKind>) {
        self.in_order = InOrder::new(choice.kind);
        (self.fence, self.choice) = (fence, choice);
    }

    /// Records the choice for the following frames, which need no fence.
    pub fn note_choice(&mut self, choice: Selected<FenceKind>) {
        self.choice = choice;
    }

    /// Returns whether the reader waits for GPU work, and the exporter for the reader's.
    pub fn has_fence(&self) -> bool {
        self.fence.kind() != FenceKind::None
    }

    /// Returns whether the reader's GPU may still work on a frame that is released or held.
    pub fn is_fenced(&self) -> bool {
        self.entries.iter().flatten().any(|lease| lease.is_fenced)
    }

    /// Has all leases end after the reader's release fence.
    #[cfg(feature = "testing")]
    pub fn fence_all(&mut self) {
        self.entries.iter_mut().flatten().for_each(|lease| lease.is_fenced = true);
    }

    /// Writes claims of untaken frames that no correct reader writes.
    #[cfg(feature = "testing")]
    pub fn falsify_claims(&self) {
        for (entry, lease) in self.leases() {
            assert_eq!(self.producer.revoke(entry, lease.sequence), Ok(Revocation::Revoked));
        }
    }

    /// Returns whether the reader has opened events of this exporter.
    pub fn has_events(&self) -> bool {
        self.fence.kind() == FenceKind::Event
    }

    /// Leases a frame in memory of this kind to the reader, in a vacant entry, and signals the
    /// ready fence if the frame needs one. [`Leases::publish`] follows.
    pub fn offer(
        &mut self,
        entry: EntryIndex,
        area: AreaIndex,
        sequence: Sequence,
        unit: Unit,
        kind: MemoryKind,
        signals: &mut S::Signals,
    ) -> Result<(), Ending> {
        // Host frames are complete when they are published, and unused when they are released.
        // Fences of dma-bufs are the kernel's.
        let is_fenced = kind.is_gpu();
        if is_fenced {
            self.fence.signal_ready(entry, sequence, signals)?;
        }
        self.entries[entry.0] = Some(Lease { sequence, area, unit, is_fenced, released: None });
        self.offered = Some(entry);
        Ok(())
    }

    /// Takes back the offered frame, if there is one: it is not published. Returns its area.
    pub fn withdraw(&mut self) -> Option<AreaIndex> {
        let entry = self.offered.take()?;
        self.entries[entry.0].take().map(|lease| lease.area)
    }

    /// Publishes the offered frame, if there is one.
    pub fn publish(&mut self, descriptor: &Descriptor) {
        let Some(entry) = self.offered.take() else { return };
        self.sent += 1;
        self.lost += descriptor.sequence.since(self.next);
        self.next = descriptor.sequence.next();
        self.producer.publish(entry, descriptor);
        self.is_published = true;
    }

    /// Returns whether the reader sleeps and needs a wake-up for a frame published since the last
    /// call.
    pub fn take_published(&mut self, ordered: Ordered) -> bool {
        mem::take(&mut self.is_published) && self.producer.flags_sleep(ordered)
    }

    /// Returns whether the reader may still get a frame: it joined before the frame, and has not
    /// lost it.
    pub fn may_get(&self, sequence: Sequence) -> bool {
        sequence >= self.next
    }

    /// Counts the frames before `next` that the reader has not got as lost. Returns true if the
    /// reader needs a wake-up: messages behind these frames, such as the end of the stream, may now
    /// be delivered.
    pub fn lose_before(&mut self, next: Sequence) -> bool {
        if next <= self.next {
            return false;
        }
        self.lost += next.since(self.next);
        self.next = next;
        self.producer.skip(next.previous());
        self.producer.reader_sleeps()
    }

    /// Finds leases that the reader has ended, and appends their areas to `ended`. Returns true if
    /// a release fence is still pending; one that is pending for longer than `timeout` is an error.
    /// So are leases of a reader that failed earlier than that. Frames behind a pending event are
    /// not polled in every call.
    pub fn collect_released(
        &mut self,
        ended: &mut Vec<AreaIndex>,
        timeout: Duration,
        now: &Now<S>,
    ) -> Result<bool, Ending> {
        let mut released = mem::take(&mut self.released);
        released.clear();
        for (entry, Lease { sequence, .. }) in self.leases() {
            if self.producer.state(entry, sequence).map_err(violation)? == ClaimState::Released {
                released.push(Released { sequence, entry });
            }
        }
        if self.in_order.so_far {
            released.sort_unstable();
        }
        let pending = self.end_released(&released, ended, timeout, now);
        self.released = released;
        match self.failed {
            Some(since) if now.get().saturating_duration_since(since) > timeout => {
                let text = format!("its process did not end within the fence timeout ({timeout:?})");
                Err(Ending::new(Reason::Failed, text))
            }
            Some(_) => pending.map(|_| !self.is_empty()),
            None => pending,
        }
    }

    /// Ends the released leases whose fences are ready. Returns true if some are not.
    fn end_released(
        &mut self,
        released: &[Released],
        ended: &mut Vec<AreaIndex>,
        timeout: Duration,
        now: &Now<S>,
    ) -> Result<bool, Ending> {
        let mut oldest = None;
        for &frame in released {
            let Some(area) = self.end_if_ready(frame, now, timeout)? else {
                if oldest.is_none() && !self.in_order.is_doubted(now) {
                    return Ok(true);
                }
                oldest.get_or_insert(frame);
                continue;
            };
            ended.push(area);
            // The oldest fence may have completed after its poll and before this one.
            if let Some(Released { sequence, entry }) = oldest.filter(|_| self.in_order.so_far) {
                self.in_order.so_far = self.fence.is_released(entry, sequence)?;
            }
        }
        Ok(oldest.is_some())
    }

    /// Ends the lease of a released frame and returns its area, unless the fence is still pending,
    /// for at most `timeout`.
    fn end_if_ready(
        &mut self,
        Released { sequence, entry }: Released,
        now: &Now<S>,
        timeout: Duration,
    ) -> Result<Option<AreaIndex>, Ending> {
        let is_done = match self.entries[entry.0] {
            Some(Lease { is_fenced: false, .. }) => true,
            _ => self.fence.is_released(entry, sequence)?,
        };
        let lease = &mut self.entries[entry.0];
        if is_done {
            self.count_released += 1;
            self.released_up_to = self.released_up_to.max(sequence.next());
            return Ok(lease.take().map(|lease| lease.area));
        }
        let since = lease.as_mut().map_or(now.get(), |lease| *lease.released.get_or_insert(now.get()));
        if now.get().saturating_duration_since(since) > timeout {
            let text = format!(
                "its GPU work on frame {sequence} did not end within the fence timeout ({timeout:?})"
            );
            return Err(Ending::new(Reason::Failed, text));
        }
        Ok(None)
    }

    /// Returns whether every entry has a lease.
    pub fn is_full(&self) -> bool {
        self.entries.iter().all(Option::is_some)
    }

    /// Returns whether the reader sleeps: it needs a wake-up.
    pub fn reader_sleeps(&self) -> bool {
        self.producer.reader_sleeps()
    }

    /// Takes the reader's sleeping flag.
    pub fn take_sleeper(&self) -> Option<Sleeper> {
        self.producer.take_sleeper()
    }

    /// Publishes the number of packets that were sent over the control socket.
    pub fn note_sent(&self, packets: u64) {
        self.producer.note_sent(packets);
    }

    /// Sets the waiting flag: the reader sends a wake-up when it ends its next lease.
    pub fn announce_wait(&self) {
        self.producer.announce_wait();
    }

    /// Clears the waiting flag.
    pub fn end_wait(&self) {
        self.producer.end_wait();
    }

    /// Returns an entry without a lease, if there is one.
    pub fn vacant(&self) -> Option<EntryIndex> {
        self.entries.iter().position(Option::is_none).map(EntryIndex)
    }

    /// The leases with their entries.
    fn leases(&self) -> impl Iterator<Item = (EntryIndex, Lease)> {
        let leases = self.entries.iter().enumerate();
        leases.filter_map(|(entry, lease)| Some((EntryIndex(entry), (*lease)?)))
    }

    /// The areas of all leases.
    pub fn areas(&self) -> impl Iterator<Item = AreaIndex> {
        self.entries.iter().flatten().map(|lease| lease.area)
    }

    /// Revokes all untaken frames, and collects released ones that it meets. Returns true if a
    /// release fence is still pending.
    pub fn revoke_untaken(&mut self, ended: &mut Vec<AreaIndex>, now: &Now<S>) -> Result<bool, Ending> {
        // The newest comes first: the reader takes the oldest, and so never a unit whose
        // predecessor was revoked.
        let mut leases: Vec<_> = self.leases().collect();
        leases.sort_unstable_by_key(|(_, lease)| Reverse(lease.sequence));
        for (entry, lease) in leases {
            let revoked = self.producer.revoke(entry, lease.sequence).map_err(violation)?;
            if revoked == Revocation::Revoked {
                self.lost += 1;
                ended.push(lease.area);
                self.entries[entry.0] = None;
            }
        }
        self.collect_released(ended, Duration::MAX, now)
    }

    /// The frame behind the newest one that the reader has taken and released.
    pub fn released_up_to(&self) -> Sequence {
        self.released_up_to
    }

    /// Returns whether no lease is left.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Takes all leases away and returns their areas. The reader has ended, or gets no more time.
    pub fn take_all(&mut self) -> Vec<AreaIndex> {
        self.producer.note_last_access();
        self.entries.iter_mut().filter_map(Option::take).map(|lease| lease.area).collect()
    }

    /// Returns the reader's progress, and whether it has anything to do: untaken frames, or a frame
    /// to release before it gets another one.
    pub fn progress(&self) -> (Progress, bool) {
        let mut untaken = None;
        for (entry, lease) in self.leases() {
            // A violation is found when the lease ends.
            if let Ok(ClaimState::Published) = self.producer.state(entry, lease.sequence) {
                untaken = Some(untaken.map_or(lease.sequence, |other: Sequence| other.min(lease.sequence)));
            }
        }
        (Progress { untaken, released: self.count_released }, untaken.is_some() || self.is_full())
    }

    /// Returns the reader's statistics. `next` is the sequence number of the next publication.
    pub fn stats(&self, info: ReaderInfo, next: Sequence) -> ReaderStats {
        let (mut held, mut queued, mut oldest) = (0, 0, next);
        for (entry, lease) in self.leases() {
            match self.producer.state(entry, lease.sequence) {
                Ok(ClaimState::Published) => {
                    queued += 1;
                    oldest = oldest.min(lease.sequence);
                }
                Ok(ClaimState::Taken) => held += 1,
                _ => {}
            }
        }
        let (ages, copies) = self.producer.counters();
        ReaderStats {
            info,
            held,
            queued,
            waiting: 0,
            adopted: 0,
            sent: self.sent,
            lost: self.lost,
            ages,
            copies,
            copies_for_layout: false,
            fence: self.choice.clone(),
            lag: next.since(oldest),
        }
    }
}

fn violation(violation: Violation) -> Ending {
    Ending::new(Reason::Violation, violation.to_string())
}
