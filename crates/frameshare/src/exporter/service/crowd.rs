// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bounds of connections that are not readers: per process, per user and in all.
//!
//! Beyond a bound the oldest connection is closed, never a newer one.

use crate::sys::{Peer, file_limit};

/// Maximum number of such connections of one process.
const MAX_OF_PROCESS: usize = 16;

/// Returns an eighth of the files that this process may open, within bounds: a connection takes
/// two.
pub fn max_of_all((least, most): (usize, usize)) -> usize {
    let files = file_limit().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (files / 8).clamp(least, most)
}

/// Returns the index of the connection to close after the last one was added, if any. The oldest
/// connection is first.
pub fn surplus(peers: &[&Peer], max_of_all: usize) -> Option<usize> {
    let newest = peers.last()?;
    let of_process = |peer: &Peer| is_same_process(peer, newest);
    let count_of_user = |uid: u32| peers.iter().filter(|peer| peer.uid == uid).count();
    let has_process = newest.gone.is_some() && newest.pid != 0;
    // Without a pidfd, processes of one user cannot be told apart reliably.
    let max_of_user = if has_process { max_of_all / 2 } else { max_of_all / 8 };
    if peers.iter().filter(|peer| of_process(peer)).count() > MAX_OF_PROCESS {
        return peers.iter().position(|peer| of_process(peer));
    }
    let crowded = if count_of_user(newest.uid) > max_of_user {
        newest.uid
    } else if peers.len() > max_of_all {
        peers.iter().map(|peer| peer.uid).max_by_key(|uid| count_of_user(*uid))?
    } else {
        return None;
    };
    peers.iter().position(|peer| peer.uid == crowded)
}

/// Returns whether both are of one process. A process with a pidfd lives as long as its pid
/// identifies it.
fn is_same_process(one: &Peer, other: &Peer) -> bool {
    one.gone.is_some() && other.gone.is_some() && one.pid != 0 && one.pid == other.pid
}
