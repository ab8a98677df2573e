// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients of NVIDIA's multi-process service (MPS) among the peers. `tests/gpu/mps.sh` starts the
//! daemon and sets the variables.
//!
//! Runner and cases are never clients: after a fault the daemon starts another server only when
//! every client of the last one has ended.

use std::env;
use std::ffi::OsString;

/// Variable with the folder of the daemon's pipes for exporters.
const EXPORTERS: &str = "MPS_OF_EXPORTERS";
/// The same for all other peers.
const READERS: &str = "MPS_OF_READERS";

/// The peers that are clients of MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mps {
    /// None.
    None,
    /// All of them.
    All,
    /// All but exporters.
    Readers,
}

/// Returns the set-up of this program's environment.
#[must_use]
pub fn here() -> Mps {
    match (env::var_os(EXPORTERS), env::var_os(READERS)) {
        (Some(_), Some(_)) => Mps::All,
        (None, Some(_)) => Mps::Readers,
        _ => Mps::None,
    }
}

/// The variable that makes a peer a client of MPS, if it is to be one.
pub(crate) fn variable(is_exporter: bool) -> Option<(&'static str, OsString)> {
    Some(("CUDA_MPS_PIPE_DIRECTORY", env::var_os(if is_exporter { EXPORTERS } else { READERS })?))
}
