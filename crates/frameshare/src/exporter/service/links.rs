// SPDX-License-Identifier: MIT OR Apache-2.0

//! The readers of a stream, as its background work watches them.

use crate::{
    exporter::{resources::Resources, state::Shared},
    sys::{Interest, Received, Socket, Wake},
};
use frameshare_core::exporter::{
    link::Link,
    service::{self, Watched},
};
use frameshare_protocol::message::ToExporter;
use std::{os::fd::OwnedFd, sync::Arc};

/// What is waited for at a reader, and its descriptors.
pub struct WatchedLink {
    pub watched: Watched,
    pub socket: Arc<Socket>,
    /// Readable when the process has ended.
    pub gone: Option<Arc<OwnedFd>>,
    pub wake: Arc<Wake>,
}

impl WatchedLink {
    pub fn of(link: &Link<Resources>, watched: Watched) -> Self {
        let connection = link.connection();
        let (socket, gone, wake) = (connection.socket(), connection.pidfd(), connection.wake());
        Self { watched, socket: socket.clone(), gone: gone.cloned(), wake: wake.clone() }
    }

    /// The events of the socket to wait for.
    pub fn interest(&self) -> Interest {
        if self.watched.room { Interest::InputAndRoom } else { Interest::Input }
    }

    /// Handles a message of the reader, and sends it waiting ones.
    pub fn receive(&self, shared: &Shared) {
        let received = match self.socket.receive() {
            Ok(Received::Nothing) => service::Received::Nothing,
            Ok(Received::HungUp) => service::Received::HungUp,
            Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
                Ok(message) => service::Received::Message(message),
                Err(error) => service::Received::Invalid(error.to_string()),
            },
            Err(error) => service::Received::Invalid(error.to_string()),
        };
        shared.with(|state| state.receive(self.watched.id, received));
    }

    /// Takes a wake-up of the reader, which frames wait for; the rest of the turn delivers them.
    pub fn take_wake_up(&self, shared: &Shared) {
        if self.watched.wake {
            let drained = self.wake.drain();
            shared.with(|state| state.note_wake_up(self.watched.id, drained));
        }
    }
}
