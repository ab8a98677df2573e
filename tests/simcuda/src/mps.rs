// SPDX-License-Identifier: MIT OR Apache-2.0

//! Multi-process service: a fatal error of one client reaches the contexts of all clients.
//!
//! The daemon is a folder with a file `control`, as in the pipe folder of the real one, and the
//! length of its file `faults` is the number of faults so far.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The pipe folder, if this process is a client.
static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let folder = PathBuf::from(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")?);
    folder.join("control").exists().then_some(folder)
});

/// Returns whether this process is a client.
pub fn is_client() -> bool {
    FOLDER.is_some()
}

/// Number of faults of all clients so far.
pub fn faults() -> u64 {
    let file = FOLDER.as_ref().map(|folder| folder.join("faults"));
    file.and_then(|file| file.metadata().ok()).map_or(0, |file| file.len())
}

/// Reports a fault of this process to all clients.
pub fn fault() {
    let Some(folder) = &*FOLDER else { return };
    let file = OpenOptions::new().create(true).append(true).open(folder.join("faults"));
    if let Err(error) = file.and_then(|mut file| file.write_all(b"!")) {
        eprintln!("simcuda: cannot report a fault in {}: {error}", folder.display());
    }
}
