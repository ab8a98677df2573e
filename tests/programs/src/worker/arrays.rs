// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stand-in for array libraries: memory from a cache, freed as early as real libraries may.
//!
//! | library | when an array is dropped |
//! | --- | --- |
//! | `torch` (PyTorch, CuPy) | its memory is used again in the order of the stream that it was allocated on |
//! | `jax` | its memory is used again at once, in the order of the library's own stream |
//! | `numba` | its memory is freed with a call that synchronizes |

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use frameshare_cuda::DevicePtr;
use frameshare_cuda::memory::private::Allocation;
use frameshare_cuda::stream::Stream;

use super::{gpu, report};

/// The caches of a thread.
#[derive(Default)]
pub struct Library {
    cache: Arc<Mutex<Vec<Block>>>,
    own: Option<Arc<Stream>>,
}

/// Freed memory of a library, and the stream in whose order it is used again.
struct Block {
    memory: Allocation,
    size: u64,
    stream: Arc<Stream>,
}

/// An array.
pub struct Array {
    memory: Option<Allocation>,
    size: u64,
    /// The stream in whose order its memory is used again; `None` if it is freed.
    stream: Option<Arc<Stream>>,
    /// The library overwrites the memory when the array is dropped.
    soils: bool,
    cache: Arc<Mutex<Vec<Block>>>,
}

impl Library {
    /// Allocates an array that is used on a stream.
    pub fn array(&mut self, library: &str, stream: &Arc<Stream>, size: u64) -> Result<Array> {
        let used_again_on = match library {
            "numba" => None,
            "jax" => Some(match &self.own {
                Some(own) if own.context().as_raw() == stream.context().as_raw() => own.clone(),
                _ => self.own.insert(Arc::new(Stream::new(stream.context())?)).clone(),
            }),
            _ => Some(stream.clone()),
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache.iter().position(|block| {
            block.size == size && Some(block.stream.as_raw()) == used_again_on.as_ref().map(|on| on.as_raw())
        });
        let memory = match found.filter(|_| library == "torch") {
            Some(index) => cache.swap_remove(index).memory,
            None => Allocation::new(stream.context(), size as usize)?,
        };
        let (cache, soils) = (self.cache.clone(), library == "jax");
        Ok(Array { memory: Some(memory), size, stream: used_again_on, soils, cache })
    }
}

impl Array {
    pub fn start(&self) -> DevicePtr {
        self.memory.as_ref().map_or(0, Allocation::ptr)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let (Some(stream), Some(memory)) = (self.stream.take(), self.memory.take()) else { return };
        if self.soils
            && let Err(error) = gpu::fill(&stream, memory.ptr(), self.size, 0xee)
        {
            report(&format!("a library cannot use its memory again: {error}"));
        }
        let block = Block { memory, size: self.size, stream };
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}
