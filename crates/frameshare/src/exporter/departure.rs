// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader disconnection: graceful close, eviction and peer death, at once or after the frames that
//! the reader holds are released.

use super::{link::Link, notice::Notice, state::State};
use crate::memory::frees_imports_first;
use frameshare_protocol::{
    MemoryKind,
    message::{Reason, ToReader},
};
use std::mem;

/// Maximum number of links that are kept only for their messages while the stream goes on.
const MAX_DRAINING: usize = 64;

/// The reason why a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub reason: Reason,
    pub text: String,
}

impl Ending {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

impl State {
    /// Ends a link. A slow reader may still be reading: it keeps the frames that it has taken. A
    /// reader that broke the rules, or whose connection failed, loses all leases at once.
    pub fn drop_link(&mut self, index: usize, ending: &Ending) {
        match ending.reason {
            Reason::TooSlow | Reason::LimitExceeded => self.dismiss(index, ending),
            _ => self.end_link(index, ending),
        }
    }

    /// Ends the link of a reader that is dead or untrusted: all its leases end at once.
    fn end_link(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        link.outbox().clear();
        link.say_goodbye(ending);
        self.note_removal(&link, ending);
        self.forget(link);
    }

    /// Publishes no further frame to a reader and lets it release its taken frames in its own time.
    fn dismiss(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        if ending.reason == Reason::LimitExceeded {
            // The reader that owns the backlog loses it, and gets the reason instead.
            link.outbox().clear();
        }
        link.say_goodbye(ending);
        self.note_removal(&link, ending);
        let mut ended = Vec::new();
        let revoked = link.revoke_untaken(&mut ended);
        self.end_leases(ended);
        self.links_changed = true;
        match revoked {
            Ok(_) if !link.holds_nothing() => self.leaving.push(link),
            _ => self.forget(link),
        }
    }

    fn note_removal(&mut self, link: &Link, ending: &Ending) {
        let (reader, why) = (link.info.clone(), ending.text.clone());
        self.notices.push(Notice::ReaderRemoved { reader, reason: ending.reason, why });
    }

    /// Ends all leases of a link. The link is kept only while memory waits for the reader to drop
    /// its imports, or, for a few seconds, while messages wait for the reader.
    pub fn forget(&mut self, mut link: Link) {
        self.end_leases(link.take_leases());
        self.links_changed = true;
        let draining = self.leaving.iter().filter(|other| other.is_draining()).count();
        let drains = link.is_draining() && (self.closed || draining < MAX_DRAINING);
        if self.awaits(&link) || drains {
            self.leaving.push(link);
        } else {
            self.trash.push(Box::new(link));
        }
    }

    /// Returns whether memory cannot be freed before this reader has dropped its imports or died,
    /// or events not be destroyed before it has hung up.
    pub fn awaits(&self, link: &Link) -> bool {
        let kind_of = |id: u32| self.generations.iter().find(|one| one.id == id).map(|one| one.kind);
        // An opened event is undefined once its creator has destroyed it.
        let shares_events = link.has_events() && !link.hung_up;
        shares_events
            || !link.process_is_gone && link.knows().any(|id| kind_of(id).is_some_and(frees_imports_first))
    }

    /// Handles the end of a reader's connection or process.
    pub fn end_link_of(&mut self, id: u64, ending: &Ending, process_is_gone: bool) {
        if let Some(link) = self.links.iter_mut().find(|link| link.info.id == id) {
            link.hung_up(process_is_gone);
        }
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.end_link(index, ending);
        } else if let Some(index) = self.leaving.iter().position(|link| link.info.id == id) {
            let mut link = self.leaving.remove(index);
            link.hung_up(process_is_gone);
            self.forget(link);
        }
    }

    /// Handles a reader's close message (`Goodbye`): the reader wants no further frame.
    pub fn let_go(&mut self, id: u64, ending: &Ending) {
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.links[index].said_goodbye = true;
            match ending.reason {
                // Its GPU context is lost, for example: the frames that it holds will never be
                // released.
                Reason::Failed => self.end_link(index, ending),
                _ => self.dismiss(index, ending),
            }
        } else if let Some(index) = self.leaving.iter().position(|link| link.info.id == id) {
            let link = &mut self.leaving[index];
            let again = mem::replace(&mut link.said_goodbye, true);
            if ending.reason == Reason::Failed && !link.holds_nothing() {
                let link = self.leaving.remove(index);
                self.forget(link);
            } else if again {
                // A disconnected reader sends its close message once.
                self.end_link_of(id, &Ending::new(Reason::Violation, "it sent two close messages"), false);
            }
        }
    }

    /// Checks a link at the time that it named: its messages and its reader's process.
    pub fn look_after(&mut self, id: u64) {
        let mut links = self.links.iter_mut().chain(&mut self.leaving);
        if links.any(|link| link.info.id == id && link.has_died()) {
            self.end_link_of(id, &Ending::new(Reason::Stopped, "its process is gone"), true);
        } else {
            self.flush(id);
        }
    }

    /// Sends a reader its waiting messages. For a draining reader, one of them may be the reason of
    /// its eviction.
    pub fn flush(&mut self, id: u64) {
        self.each_link(|link| if link.info.id == id { link.catch_up() } else { Ok(()) });
        let mut leaving = self.leaving.iter_mut().filter(|link| link.info.id == id);
        if let Some(ending) = leaving.find_map(|link| link.catch_up().err()) {
            self.end_link_of(id, &ending, false);
        }
    }

    /// Handles a reader's acknowledgement that it has dropped its imports of a generation.
    pub fn acknowledge(&mut self, id: u64, generation: u32) {
        let mut links = self.links.iter_mut().chain(&mut self.leaving);
        let link = links.find(|link| link.info.id == id);
        if link.is_some_and(|link| !link.forget_generation(generation)) {
            let text = format!("it gives up generation {generation}, which it was not asked to");
            return self.end_link_of(id, &Ending::new(Reason::Violation, text), false);
        }
        self.links_changed = true;
    }

    /// Handles a reader that cannot import a generation. Adopted memory is copied for all readers
    /// from now on; instead of the exporter's own GPU memory the reader gets downloads, if it
    /// accepts host memory.
    pub fn cannot_import(&mut self, id: u64, generation: u32, text: String) {
        let Some(index) = self.links.iter().position(|link| link.info.id == id) else { return };
        let known = self.links[index].knows().any(|known| known == generation);
        let kind =
            self.generations.iter().find(|one| one.id == generation).map(|one| (one.kind, one.is_foreign()));
        let ending = match (known, kind) {
            // The generation is retired by now.
            (true, None) => return,
            (true, Some((_, true))) => {
                self.links[index].cannot_adopt = Some(text);
                return;
            }
            (true, Some((MemoryKind::Legacy | MemoryKind::Vmm | MemoryKind::Pool, false)))
                if self.links[index].hello.host_fallback =>
            {
                match self.download_for(index) {
                    Ok(()) => return,
                    Err(ending) => ending,
                }
            }
            _ => {
                let text =
                    format!("it refuses generation {generation}, which it must import or was never sent");
                Ending::new(Reason::Violation, text)
            }
        };
        self.end_link_of(id, &ending, false);
    }

    /// Downloads frames for this reader from now on.
    fn download_for(&mut self, index: usize) -> Result<(), Ending> {
        self.begin_downloads()?;
        let link = &mut self.links[index];
        if std::mem::replace(&mut link.downloads, true) {
            return Ok(());
        }
        let (before, format) = (self.next, self.format.clone());
        format.map_or(Ok(()), |format| {
            link.send(&ToReader::Format { before, memory: MemoryKind::Host, format })
        })
    }

    /// Closes the stream. Published frames can still be taken and read: their slots are not used
    /// again. Memory that readers must drop first is not written by its owners either, until it is
    /// released or its readers are dead.
    pub fn close(&mut self, reason: Reason, text: &str) {
        self.closed = true;
        for generation in &mut self.generations {
            generation.retired = true;
        }
        let ending = Ending { reason, text: text.into() };
        for mut link in mem::take(&mut self.links) {
            link.say_goodbye(&ending);
            self.note_removal(&link, &ending);
            self.leaving.push(link);
        }
        self.links_changed = true;
        // Keep the leases of readers that still pin memory or events. Leases alone do not keep the
        // exporter alive.
        for link in mem::take(&mut self.leaving) {
            if self.awaits(&link) {
                self.leaving.push(link);
            } else {
                self.forget(link);
            }
        }
    }
}
