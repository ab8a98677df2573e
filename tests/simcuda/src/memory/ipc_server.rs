// SPDX-License-Identifier: MIT OR Apache-2.0

//! IPC server: a socket in /tmp from which other processes get the files of this process's
//! allocations, by their numbers.
//!
//! The real driver finds another process's memory in the kernel, across all namespaces. A socket
//! that is found by its path is a close approximation: it works between PID, network and mount
//! namespaces with a common /tmp. The socket file is removed when the process exits, and by the
//! post-mortem helper when the process is killed.
//!
//! # Safety
//!
//! The helper calls [`remove`], which reads a path that never changes and makes one system call.

use super::Kind;
use crate::api::{Code, INVALID_HANDLE, OUT_OF_MEMORY};
use crate::{queue, sys};
use std::ffi::CString;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Timeout after which a silent process is treated as dead.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Path of the socket, set once the socket exists.
static PATH: OnceLock<CString> = OnceLock::new();

fn path(process: u64) -> String {
    format!("/tmp/simcuda.{process:016x}")
}

/// Starts the server of this process, if it is not running yet.
pub fn start(process: u64) -> Result<(), Code> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if PATH.get().is_some() {
        return Ok(());
    }
    let path = path(process);
    let listener = UnixListener::bind(&path).map_err(|_| OUT_OF_MEMORY)?;
    let _ = PATH.set(CString::new(path.as_str()).map_err(|_| OUT_OF_MEMORY)?);
    // SAFETY: the handler uses only the static above.
    unsafe { libc::atexit(remove_at_exit) };
    // As with the real driver, any process with the bytes of a handle may open it.
    let _ = std::fs::set_permissions(&path, Permissions::from_mode(0o666));
    let serve = move || {
        queue::block_signals();
        for client in listener.incoming().flatten() {
            // After an error the connection is closed: the client has exited, or requested freed
            // memory.
            let _ = respond(client);
        }
    };
    std::thread::Builder::new().name("simcuda-ipc".into()).spawn(serve).map_err(|_| OUT_OF_MEMORY)?;
    Ok(())
}

fn respond(mut client: UnixStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    let mut nonce = [0; 8];
    client.read_exact(&mut nonce)?;
    let nonce = u64::from_ne_bytes(nonce);
    let file = super::regions().values().find_map(|region| match &region.kind {
        Kind::Plain(block) if block.nonce == nonce => sys::duplicate(block.file.as_raw_fd()).ok(),
        _ => None,
    });
    match file {
        Some(file) => sys::send_fd(&client, &file),
        None => Ok(()),
    }
}

/// Returns the file of another process's allocation, reopened, so that its locks are distinct from
/// the exporter's.
pub fn request_file(process: u64, nonce: u64) -> Result<OwnedFd, Code> {
    let request = || {
        let mut exporter = UnixStream::connect(path(process))?;
        exporter.set_read_timeout(Some(TIMEOUT))?;
        exporter.write_all(&nonce.to_ne_bytes())?;
        sys::reopen(sys::receive_fd(&exporter)?.as_raw_fd())
    };
    request().map(OwnedFd::from).map_err(|_| INVALID_HANDLE)
}

/// Removes the socket file.
pub fn remove() {
    if let Some(path) = PATH.get() {
        // SAFETY: a valid C string with static lifetime.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

extern "C" fn remove_at_exit() {
    // A forked child that exits leaves the parent's socket in place.
    if crate::device::ready().is_ok() {
        remove();
    }
}
