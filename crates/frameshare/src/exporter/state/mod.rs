// SPDX-License-Identifier: MIT OR Apache-2.0

//! The state of an exporter: its decisions, with the system that they are made for.

mod admission;
mod adoption;
mod guard;
mod route;
mod routes;
mod snapshot;
#[cfg(test)]
mod tests;
mod udmabuf;
mod unpublished;

pub use admission::{Promise, Shares};
pub use guard::Shared;
pub use route::Route;
pub use routes::Wanting;

use super::{
    config::{Config, History},
    error::SetupError,
    resources::{LargeAreas, Resources},
};
use crate::{
    fence::Signals,
    memory,
    sys::{self, Label, Peer},
};
use frameshare_core::exporter::{peer, state};
use frameshare_cuda::{context::Context, event::Event, stream::Stream};
use std::{
    any::Any,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// The state of an exporter: the decisions of `frameshare-core`, and those that depend on the kinds
/// of memory, the users and the GPUs of this machine.
pub struct State {
    decisions: state::State<Resources>,
    /// The reason to refuse every reader of another user, if there is one.
    refusal_of_others: Option<String>,
}

impl Deref for State {
    type Target = state::State<Resources>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.decisions
    }
}

impl DerefMut for State {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.decisions
    }
}

impl State {
    /// The state of the exporter with this number.
    pub fn new(exporter: u64, config: Config, label: Label) -> Result<Self, SetupError> {
        let others = udmabuf::decide(&config, sys::udmabuf);
        let memory = memory::select::select(config.memory, config.gpu.as_ref())?;
        let (limits, signals) = (config.limits(), Signals::new(config.gpu.as_ref())?);
        let resources = Resources::new(exporter, config, label)?;
        let mut decisions = state::State::new(resources, limits, memory, signals);
        others.notice.into_iter().for_each(|notice| decisions.reports_mut().tell(notice));
        Ok(Self { decisions, refusal_of_others: others.refusal })
    }

    pub fn config(&self) -> &Config {
        self.system().config()
    }

    pub fn label(&self) -> &Label {
        self.system().label()
    }

    /// The context that frames are written in, if there is one.
    pub fn gpu(&self) -> Option<&Arc<Context>> {
        self.system().context()
    }

    /// The permissions of a reader's process and user by the configuration.
    pub fn peer(&self, peer: &Peer) -> peer::Peer {
        let config = self.config();
        peer::Peer {
            pid: peer.pid,
            uid: peer.uid,
            is_own: peer.is_own(),
            is_own_or_root: peer.is_own_or_root(),
            is_in_this_process: peer.is_in_this_process(),
            is_trusted: config.trusts_with_memory(peer),
            may_have_gpu_memory: config.may_have_gpu_memory(peer),
            may_queue: peer.is_own_or_root() || config.queue_for_other_users,
        }
    }

    /// Sets the treatment of lossless readers without credit.
    pub fn set_slow_readers(&mut self, slow_readers: super::SlowReaders) {
        self.system_mut().config_mut().slow_readers = slow_readers;
        self.decisions.set_slow_readers(slow_readers);
    }

    /// Sets what is kept for readers that join later.
    pub fn set_history(&mut self, history: History) {
        self.system_mut().config_mut().history = history;
        self.decisions.set_history(history.keeps_frames());
    }

    /// Drops `what` when the work queued on `stream` so far is done, or soon if that cannot be
    /// recorded.
    ///
    /// # Errors
    /// As [`Resources::record`].
    pub fn drop_after(&mut self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        // An exporter without a GPU has no context of its own.
        let context = self.gpu().unwrap_or(stream.context()).clone();
        match self.system_mut().record(stream, &context) {
            Ok(work) => {
                self.decisions.drop_after(work, what);
                Ok(())
            }
            Err(error) => {
                // Foreign code: with the state unlocked.
                self.deferred_mut().drop_user_data([what]);
                Err(error)
            }
        }
    }

    /// Keeps an event for the frames in a new slot, unless there is one for each slot.
    pub fn keep_event(&mut self, event: Event) {
        let slots = self.count_gpu_slots();
        self.signals_mut().keep_event(event, slots);
    }

    /// Returns the number of large areas to make for metadata of this length, if they are needed
    /// and missing.
    pub fn wants_large_areas(&self, metadata: usize) -> Option<u32> {
        let count = self.system().metadata().missing_large_areas(metadata, self.config().max_slots);
        count.filter(|_| self.has_metadata_readers())
    }

    /// Hands large areas to all readers, unless there are some already.
    pub fn add_large_areas(&mut self, areas: LargeAreas) {
        if self.system_mut().metadata_mut().add_large_areas(areas) {
            self.send_large_areas();
        }
    }
}
