// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connections until their Hello or Observe.

use super::{
    handshake::admit,
    observers::Observers,
    open::Open,
    pending::{Connection, PendingConnections},
};
use crate::{
    exporter::state::Shared,
    sys::{Peer, Received, may_accept, may_connect, note_on_user, too_many_parked},
};
use frameshare_core::exporter::ending::Ending;
use frameshare_protocol::message::{DecodeError, Reason, ToExporter, ToReader};
use std::io;

/// Maximum number of connections accepted at once: connected readers are served in between.
const MAX_ACCEPTED: usize = 64;

/// Accepts waiting connections.
pub fn accept(shared: &Shared, open: &mut Open, pending: &mut PendingConnections, observers: &mut Observers) {
    for _ in 0..MAX_ACCEPTED {
        if !may_accept() {
            // They wait until some parked descriptors are closed.
            return open.pause();
        }
        match open.listener.accept() {
            Ok(Some(socket)) => match Peer::of(&socket) {
                Ok(peer) if !may_connect(peer.uid) => {
                    let refusal = Ending::new(Reason::LimitExceeded, too_many_parked(peer.uid));
                    shared.with(|state| state.refuse(&socket, &peer, &refusal));
                }
                Ok(peer) => await_hello(shared, Connection::new(socket, peer), pending, observers),
                Err(error) => drop(socket.send(&no_room(&error), &[])),
            },
            Ok(None) => break,
            // Out of descriptors, for example: connected readers continue, and further ones are
            // refused.
            Err(error) => {
                open.listener.turn_away(&no_room(&error));
                return open.pause();
            }
        }
    }
}

/// The refusal of a connection that cannot even be accepted.
fn no_room(error: &io::Error) -> Vec<u8> {
    let text = format!("the exporter cannot take another connection: {error} (see ulimit -n there)");
    (ToReader::Refused { reason: Reason::Failed, text }).encode().unwrap_or_default()
}

/// Waits for the Hello of a peer that may read; refuses another one at once.
fn await_hello(
    shared: &Shared,
    connection: Connection,
    pending: &mut PendingConnections,
    observers: &mut Observers,
) {
    let Connection { socket, peer, .. } = &connection;
    if !shared.with(|state| state.config().may_read(peer)) {
        let text = format!(
            "permission denied: user {}{} may not read this stream",
            peer.uid,
            note_on_user(peer.uid, "the exporter's")
        );
        let refusal = Ending::new(Reason::PermissionDenied, text);
        return shared.with(|state| state.refuse(socket, peer, &refusal));
    }
    if let Some(oldest) = pending.add(connection) {
        receive_hello(shared, oldest, observers, "there are too many connections that send no Hello");
    }
}

/// Admits a reader by its Hello or an observer by its Observe, or refuses it: for the reason
/// `silent` if nothing has arrived.
pub fn receive_hello(shared: &Shared, connection: Connection, observers: &mut Observers, silent: &str) {
    let Connection { socket, peer, .. } = connection;
    let refusal = match socket.receive() {
        Ok(Received::Nothing) => Ending::new(Reason::LimitExceeded, silent),
        Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
            Ok(ToExporter::Hello(hello)) => {
                return admit(shared, socket, peer, &hello);
            }
            Ok(ToExporter::Observe(observe)) => return observers.admit(shared, socket, peer, observe),
            Ok(_) => Ending::new(Reason::Violation, "it began with neither Hello nor Observe"),
            Err(error @ DecodeError::Version(_)) => Ending::new(Reason::NothingInCommon, error.to_string()),
            Err(error) => Ending::new(Reason::Violation, error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Ending::new(Reason::Violation, error.to_string())
        }
        // The peer hung up: a refusal would reach no one.
        _ => return,
    };
    shared.with(|state| state.refuse(&socket, &peer, &refusal));
}
