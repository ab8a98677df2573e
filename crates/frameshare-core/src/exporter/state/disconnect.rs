// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader disconnection: graceful close, eviction and peer death, at once or after the frames that
//! the reader holds are released.

use super::State;
use crate::exporter::{
    ending::Ending,
    frees_imports_first,
    link::{Link, Presence},
    notice::Notice,
    now::Now,
    system::System,
};
use frameshare_protocol::message::Reason;
use std::fmt::Display;

/// Maximum number of links that are kept only for their messages while the stream goes on.
const MAX_DRAINING: usize = 64;

impl<S: System> State<S> {
    /// Ends a link. A slow reader, and one that the exporter cannot serve any more, may still be
    /// reading: it keeps the frames that it has taken. A reader that broke the rules, or has hung
    /// up, loses all leases at once.
    pub fn drop_link(&mut self, index: usize, ending: &Ending) {
        match ending.reason {
            Reason::TooSlow | Reason::LimitExceeded | Reason::Disconnected | Reason::Failed => {
                self.evict(index, ending);
            }
            _ => self.end_link(index, ending),
        }
    }

    /// Disconnects a reader on request. Returns false if there is none of this number.
    pub fn disconnect(&mut self, id: u64, why: &str) -> bool {
        let Some(index) = self.readers.position(id) else { return false };
        self.drop_link(index, &Ending::new(Reason::Disconnected, why));
        true
    }

    /// Ends all leases of a reader, and disconnects it unless it was before. Returns false if no
    /// reader of this number is present or holds anything.
    pub fn revoke(&mut self, id: u64, why: &str) -> bool {
        if let Some(index) = self.readers.position(id) {
            self.end_link(index, &Ending::new(Reason::TooSlow, why));
            return true;
        }
        let holds = |link: &Link<S>| link.info.id == id && !link.leases.is_empty();
        let Some(link) = self.readers.remove_draining(holds) else { return false };
        self.release_link(link);
        true
    }

    /// Ends the link of a reader that is dead or untrusted: all its leases end at once.
    fn end_link(&mut self, index: usize, ending: &Ending) {
        let mut link = self.readers.remove(index);
        link.outbox.clear();
        let lost = link.lose_backlog(self.publications.next());
        self.end_leases(lost);
        link.send_close(ending, S::now());
        if link.presence() >= Presence::HungUp {
            link.shut_down();
        }
        self.reports.note_removal(&link.info, ending, S::now_ns());
        self.release_link(link);
    }

    /// Publishes no further frame to a reader and lets it release its taken frames in its own time.
    pub fn evict(&mut self, index: usize, ending: &Ending) {
        let mut link = self.readers.remove(index);
        if ending.reason == Reason::LimitExceeded {
            // The reader that owns the backlog loses it, and gets the reason instead.
            link.outbox.clear();
        }
        let mut ended = link.lose_backlog(self.publications.next());
        link.send_close(ending, S::now());
        self.reports.note_removal(&link.info, ending, S::now_ns());
        let revoked = link.leases.revoke_untaken(&mut ended, &Now::default());
        self.end_leases(ended);
        self.waiters.note_change();
        match revoked {
            Ok(pending) if !link.leases.is_empty() => {
                if pending {
                    self.polling.note_pending_fence();
                }
                self.readers.drain(link);
            }
            _ => self.release_link(link),
        }
    }

    /// Ends all leases of a link without a backlog. The link is kept only while memory waits for
    /// the reader to drop its imports, or, for a few seconds, while messages wait for the reader.
    pub fn release_link(&mut self, mut link: Link<S>) {
        self.end_leases(link.leases.take_all());
        self.waiters.note_change();
        let now = Now::<S>::default();
        let draining = self.readers.draining().iter().filter(|other| other.is_flushing(&now)).count();
        let drains = link.is_flushing(&now) && (self.closed || draining < MAX_DRAINING);
        if self.awaits(&link) || drains {
            self.readers.drain(link);
        } else {
            if link.is_to_wake() {
                link.take_wake(self.released_sleepers.get_or_insert_default());
            }
            self.deferred.drop_resource(link);
        }
    }

    /// Returns whether memory cannot be freed before this reader has dropped its imports or died,
    /// or events not be destroyed before it has hung up.
    pub fn awaits(&self, link: &Link<S>) -> bool {
        let kind_of = |id: u32| self.slots.generation(id).map(|one| one.kind);
        // An opened event is undefined once its creator has destroyed it.
        let shares_events = link.leases.has_events() && link.presence() < Presence::HungUp;
        shares_events
            || link.may_import()
                && link.imports.generations().any(|id| kind_of(id).is_some_and(frees_imports_first))
    }

    /// Handles the end of a reader's connection or process.
    pub fn end_link_of(&mut self, id: u64, ending: &Ending, process_is_gone: bool) {
        if let Some(index) = self.readers.position(id) {
            self.readers[index].hang_up(process_is_gone);
            self.end_link(index, ending);
        } else if let Some(mut link) = self.readers.remove_draining(|link| link.info.id == id) {
            link.hang_up(process_is_gone);
            link.shut_down();
            if link.leases.are_stranded() && link.presence() < Presence::Exited {
                self.polling.note_pending_fence();
                self.readers.drain(link);
            } else {
                self.release_link(link);
            }
        }
    }

    /// Handles a reader's close message (`Goodbye`): the reader wants no further frame. One that
    /// failed, since its GPU context is lost for example, will never release the frames that it
    /// holds: they return when its process ends, or after the fence timeout.
    pub fn closed_by_reader(&mut self, id: u64, ending: &Ending) {
        if let Some(index) = self.readers.position(id) {
            self.readers[index].note_close();
            if ending.reason == Reason::Failed {
                self.readers[index].leases.note_failure(S::now());
            }
            self.evict(index, ending);
        } else if let Some(link) = self.readers.find_draining(id) {
            let again = link.note_close();
            if ending.reason == Reason::Failed && !link.leases.is_empty() {
                link.leases.note_failure(S::now());
                self.polling.note_pending_fence();
            } else if again {
                // A disconnected reader sends its close message once.
                self.end_link_of(id, &Ending::new(Reason::Violation, "it sent two close messages"), false);
            }
        }
    }

    /// Checks a link at the time that it named: its messages and its reader's process.
    pub fn check_link(&mut self, id: u64) {
        if self.readers.find(id).is_some_and(Link::has_died) {
            self.end_link_of(id, &Ending::new(Reason::Stopped, "its process is gone"), true);
        } else {
            self.flush(id);
        }
    }

    /// Closes the stream since the engine has failed, and reports it to the owner.
    pub fn fail(&mut self, why: &str) {
        self.failure.get_or_insert_with(|| why.into());
        self.reports.tell(Notice::Failed { why: why.into() });
        self.close(Reason::Failed, &format!("the exporter has failed: {why}"));
    }

    /// Closes the stream since the exporter's GPU has failed.
    pub fn close_without_gpu(&mut self, error: &dyn Display) {
        self.close(Reason::Failed, &format!("the exporter's GPU has failed: {error}"));
    }

    /// The failure of the engine that closed the stream, if one did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Closes the stream. Published frames can still be taken and read: their slots are not used
    /// again. Memory that readers must drop first is not written by its owners either, until it is
    /// released or its readers are dead.
    pub fn close(&mut self, reason: Reason, text: &str) {
        self.closed = true;
        self.forget_last();
        self.slots.retire_all();
        let ending = Ending { reason, text: text.into() };
        for mut link in self.readers.take_present() {
            let lost = link.lose_backlog(self.publications.next());
            self.end_leases(lost);
            link.send_close(&ending, S::now());
            self.reports.note_removal(&link.info, &ending, S::now_ns());
            self.readers.drain(link);
        }
        self.waiters.note_change();
        // Keep the leases of readers that still pin memory or events. Leases alone do not keep the
        // exporter alive.
        for link in self.readers.take_draining() {
            if self.awaits(&link) {
                self.readers.drain(link);
            } else {
                self.release_link(link);
            }
        }
    }
}
