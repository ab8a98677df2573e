// SPDX-License-Identifier: MIT OR Apache-2.0

//! Room in a queue: revocation of untaken frames, and of the units that depend on them.

use super::{Lease, Leases, violation};
use crate::exporter::{ending::Ending, link::Start, now::Now, system::System, unit::Unit};
use frameshare_protocol::{AreaIndex, EntryIndex, Sequence, page::ClaimState};
use frameshare_queue::Revocation;

impl<S: System> Leases<S> {
    /// Returns a vacant entry for a frame, if there is one. Before, revokes the oldest untaken
    /// frames: as many as it takes for one more frame to stay within the maximum, and for an entry
    /// to be vacant. A delta unit takes no older unit's place, since it depends on it.
    pub fn vacate(
        &mut self,
        unit: Unit,
        ended: &mut Vec<AreaIndex>,
        now: &Now<S>,
    ) -> Result<Option<EntryIndex>, Ending> {
        let may_revoke = unit != Unit::Delta;
        // Counts taken frames too, which needs no look at shared memory.
        if self.leases().count() >= self.max_queued {
            let most = if self.reads_kept_units()? { self.entries.len() } else { self.max_queued };
            let mut queued = self.queued()?;
            while queued >= most {
                if !may_revoke || self.revoke_oldest(ended, |_| true, now)?.is_none() {
                    break;
                }
                queued = self.queued()?;
            }
            if queued >= most && !may_revoke {
                return Ok(None);
            }
        }
        match self.vacant() {
            Some(entry) => Ok(Some(entry)),
            None if may_revoke => self.revoke_oldest(ended, |_| true, now),
            None => Ok(None),
        }
    }

    /// Returns the number of untaken frames.
    fn queued(&self) -> Result<usize, Ending> {
        let mut queued = 0;
        for (entry, lease) in self.leases() {
            let state = self.producer.state(entry, lease.sequence).map_err(violation)?;
            queued += usize::from(state == ClaimState::Published);
        }
        Ok(queued)
    }

    /// Revokes the oldest untaken frame among those in certain areas, and the delta units that
    /// depend on it. Returns an entry that became vacant.
    pub fn revoke_oldest(
        &mut self,
        ended: &mut Vec<AreaIndex>,
        may: impl Fn(AreaIndex) -> bool,
        now: &Now<S>,
    ) -> Result<Option<EntryIndex>, Ending> {
        let mut leases: Vec<_> = self.leases().collect();
        leases.sort_unstable_by_key(|(_, lease)| lease.sequence);
        for (at, (_, lease)) in leases.iter().enumerate().filter(|(_, (_, lease))| may(lease.area)) {
            let after = leases[at + 1..].iter();
            let dependent = match lease.unit {
                Unit::Whole => 0,
                Unit::Key | Unit::Delta => after.take_while(|(_, next)| next.unit == Unit::Delta).count(),
            };
            let run = &leases[at..=at + dependent];
            if let Some(entry) = self.revoke_run(run, ended)? {
                if at + run.len() == leases.len() {
                    self.note_loss(lease.unit, now);
                }
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Revokes the untaken frames of a run. The newest comes first: the reader takes the oldest,
    /// and so never one whose predecessor was revoked. Returns an entry that became vacant.
    fn revoke_run(
        &mut self,
        run: &[(EntryIndex, Lease)],
        ended: &mut Vec<AreaIndex>,
    ) -> Result<Option<EntryIndex>, Ending> {
        let mut vacant = None;
        for (entry, lease) in run.iter().rev() {
            if self.producer.revoke(*entry, lease.sequence).map_err(violation)? != Revocation::Revoked {
                break;
            }
            self.lost += 1;
            ended.push(lease.area);
            self.entries[entry.0] = None;
            vacant = Some(*entry);
        }
        Ok(vacant)
    }

    /// Records the loss of the newest unit: of an encoded stream, the reader gets the next key
    /// unit first.
    pub fn note_loss(&mut self, unit: Unit, now: &Now<S>) {
        if unit != Unit::Whole && !self.start.awaits_key() {
            self.start = Start::resume(now.get());
        }
    }

    /// The state of the reader's start.
    pub fn start(&mut self) -> &mut Start {
        &mut self.start
    }

    /// Records a frame that is not for the reader, which waits for its first key unit: it is not
    /// lost. Returns true if the reader needs a wake-up.
    pub fn pass_over(&mut self, sequence: Sequence) -> bool {
        self.next = sequence.next();
        self.producer.skip(sequence);
        self.producer.reader_sleeps()
    }

    /// The first frame that is neither published to the reader, lost, nor passed over.
    pub fn next(&self) -> Sequence {
        self.next
    }

    /// Records that the reader got kept units: until it takes its first frame, only its credit
    /// limits its queue.
    pub fn note_kept_units(&mut self) {
        self.reads_kept_units = true;
    }

    /// Returns whether the reader may still read kept units: it has got some, and has taken no live
    /// frame, before which it reads all of them.
    pub fn reads_kept_units(&mut self) -> Result<bool, Ending> {
        if self.reads_kept_units {
            self.reads_kept_units = self.queued()? as u64 == self.sent;
        }
        Ok(self.reads_kept_units)
    }
}
