// SPDX-License-Identifier: MIT OR Apache-2.0

//! Watch of this process's own context, where other processes can take it down.
//!
//! Under NVIDIA's multi-process service (MPS) a fatal error of one client reaches the contexts of
//! all clients. Releases that were queued before then never signal, and a reader that sleeps makes
//! no call that would report the error. One thread polls the contexts of all connections and tells
//! the exporters, which would otherwise wait until their fence timeout.

use crate::{
    gpu::poller::{Polled, Poller},
    reader::lease::Channel,
    sys::PerProcess,
};
use frameshare_cuda::context::Context;
use std::{
    sync::{Arc, Weak},
    time::Instant,
};

/// The context of one connection.
struct Watched {
    channel: Weak<Channel>,
    since: Instant,
}

static POLLER: PerProcess<Poller<Watched>> = PerProcess::new(|| Poller::new("frameshare-mps"));

/// Watches the context of a connection for as long as it is open, if this process is a client of
/// MPS.
pub(super) fn watch(channel: &Arc<Channel>, context: &Context) {
    if context.device().is_mps_client() {
        POLLER.add(Watched { channel: Arc::downgrade(channel), since: Instant::now() });
    }
}

impl Polled for Watched {
    fn is_pending(&mut self) -> bool {
        self.channel.upgrade().is_some_and(|channel| !channel.report_lost_context())
    }

    fn quiet_since(&self) -> Instant {
        self.since
    }
}
