// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands that every peer executes, in any program.

use anyhow::{Context as _, Result};
use frameshare_cuda::{context::Context, device::Device, memory::legacy};
use serde::{Deserialize, Serialize};

/// User ID without privileges.
pub const NOBODY: u32 = 65534;

/// Pieces in which memory is allocated: from the largest down to the smallest.
const PIECES: [usize; 2] = [1 << 36, 2 << 20];

/// A command of a program's own, or one of [`Common`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Message<C> {
    Own(C),
    Common(Common),
}

/// A common command. The result is a number; 0 if there is none to report.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Common {
    /// Switches to an unprivileged user.
    BecomeNobody,
    /// Reports how many bytes of GPU memory are allocated, by all processes.
    TakenMemory,
    /// Allocates all remaining GPU memory and keeps it. Reports the number of bytes.
    TakeMemory,
    /// Frees the memory allocated by [`Common::TakeMemory`].
    GiveMemoryBack,
}

/// GPU memory that a peer holds so that no process can allocate it.
#[derive(Default)]
pub struct Taken(Vec<legacy::Allocation>);

impl Taken {
    /// Executes a common command.
    pub fn work(&mut self, command: Common) -> Result<u64> {
        match command {
            Common::BecomeNobody => become_nobody().map(|()| 0),
            Common::TakenMemory => {
                let (free, total) = Context::primary(&Device::get(0)?)?.memory_left()?;
                Ok(total - free)
            }
            Common::TakeMemory => self.take(),
            Common::GiveMemoryBack => {
                self.0.clear();
                Ok(0)
            }
        }
    }

    fn take(&mut self) -> Result<u64> {
        let context = Context::primary(&Device::get(0)?)?;
        let ([mut size, smallest], mut taken) = (PIECES, 0);
        while size >= smallest {
            match legacy::Allocation::new(&context, size) {
                Ok(piece) => {
                    taken += piece.size() as u64;
                    self.0.push(piece);
                }
                Err(error) if error.is_out_of_memory() => size /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(taken)
    }
}

/// Switches this thread, which does all work of a peer, to an unprivileged user. Loads the driver
/// before: its files may not be readable by that user.
fn become_nobody() -> Result<()> {
    Device::all()?;
    let nobody = rustix::process::Uid::from_raw(NOBODY);
    rustix::thread::set_thread_uid(nobody).context("cannot switch to the unprivileged user")?;
    crate::die_with_parent()
}
