// SPDX-License-Identifier: MIT OR Apache-2.0

//! Legacy memory handles (cuIpcGetMemHandle): whole allocations, opened with 64 bytes.
//!
//! The bytes name the exporter's IPC server and the allocation. The server sends the allocation's
//! file. A number in the file tells whether the file still belongs to the same allocation.

use super::plain::StatusPage;
use super::{Kind, READ_WRITE, Region, ipc_server};
use crate::api::{Answer, Blob, Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Out};
use crate::queue::wait_until_unused;
use crate::sys::{self, Mapping, PAGE};
use crate::{config, context, event};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// An open handle.
pub struct Import {
    exporter: u64,
    nonce: u64,
    status: StatusPage,
    /// Number of opens.
    count: AtomicU64,
    /// The memory. Holds the lock that tells the exporter that it is in use.
    file: OwnedFd,
}

impl Import {
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub fn is_freed(&self) -> bool {
        self.status.is_freed()
    }
}

/// Serializes opening and closing.
static OPENING: Mutex<()> = Mutex::new(());

fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(sys::random)
}

fn export(address: usize) -> Result<Blob, Code> {
    let region = super::starting_at(address).ok_or(INVALID_VALUE)?;
    // Mapped, pooled and imported memory has no legacy handle.
    let Kind::Plain(block) = &region.kind else { return Err(INVALID_VALUE) };
    ipc_server::start(process())?;
    Ok(Blob::pack(&[process(), block.nonce, region.len as u64, region.size as u64, region.device.into()]))
}

fn open(blob: &Blob) -> Result<usize, Code> {
    let [exporter, nonce, len, size, device, ..] = blob.unpack();
    let context = context::current()?;
    if exporter == process() {
        return Err(INVALID_CONTEXT);
    }
    let (len, size) = (len as usize, size as usize);
    if len == 0 || !len.is_multiple_of(sys::GRANULE) || size > len || device >= crate::device::MAX as u64 {
        return Err(INVALID_HANDLE);
    }
    let device = device as u32;
    let _opening = OPENING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for region in super::regions().values() {
        let Kind::Imported(import) = &region.kind else { continue };
        if import.exporter == exporter && region.device == device && region.context != context.handle {
            // Only one context of a process may open the handles of an exporter's device. The code
            // is measured.
            return Err(INVALID_HANDLE);
        }
        if import.nonce == nonce {
            import.count.fetch_add(1, Ordering::Relaxed);
            return Ok(region.start);
        }
    }
    let file = ipc_server::request_file(exporter, nonce)?;
    if sys::size_of(file.as_raw_fd()).ok() != Some((len + PAGE) as u64) {
        return Err(INVALID_HANDLE);
    }
    let status = StatusPage::of(&file, len)?;
    if status.nonce() != nonce || status.is_freed() {
        return Err(INVALID_HANDLE);
    }
    let mapping = Mapping::of_file(file.as_raw_fd(), 0, len)?;
    let file = File::from(file);
    sys::mark_in_use(&file, 0, true);
    let import = Import { exporter, nonce, status, count: AtomicU64::new(1), file: file.into() };
    let region = Region::new(mapping, size, device, context.handle, Kind::Imported(import), READ_WRITE);
    Ok(super::insert(region).start)
}

fn close(address: usize) -> Answer {
    let region = super::starting_at(address).ok_or(INVALID_VALUE)?;
    let Kind::Imported(import) = &region.kind else { return Err(INVALID_VALUE) };
    wait_until_unused(region.start, region.len);
    let _opening = OPENING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if import.count.fetch_sub(1, Ordering::Relaxed) == 1 {
        super::remove(address);
    }
    Ok(())
}

fn supported() -> Answer {
    if config::withheld(event::IPC) { Err(NOT_SUPPORTED) } else { Ok(()) }
}

crate::export! {
    fn cuIpcGetMemHandle(out: Out<Blob>, address: u64) {
        context::current()?;
        supported()?;
        out.set(export(address as usize)?)
    }

    fn cuIpcOpenMemHandle_v2(out: Out<u64>, blob: Blob, flags: u32) {
        out.check()?;
        supported()?;
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        out.set(open(&blob)? as u64)
    }

    fn cuIpcOpenMemHandle(out: Out<u64>, blob: Blob, flags: u32) {
        out.check()?;
        supported()?;
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        out.set(open(&blob)? as u64)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        context::current()?;
        close(address as usize)
    }
}
