// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private system memory for frames that are copied.

use gst::prelude::*;

/// Pool of system memory; it grows with the buffers that downstream keeps.
#[derive(Default)]
pub(super) struct CopyPool {
    pool: Option<(gst::BufferPool, usize)>,
}

impl CopyPool {
    /// Returns a buffer of `size` bytes.
    pub fn acquire(&mut self, size: usize) -> Result<gst::Buffer, glib::BoolError> {
        let pool = match &self.pool {
            Some((pool, of_size)) if *of_size == size => pool,
            _ => {
                self.clear();
                &self.pool.insert((new_pool(size)?, size)).0
            }
        };
        let mut buffer = pool
            .acquire_buffer(None)
            .map_err(|error| glib::bool_error!("no buffer of {size} bytes: {error}"))?;
        // The pool allocates at least one byte; an empty frame has none.
        buffer.make_mut().set_size(size);
        Ok(buffer)
    }

    /// Frees unused buffers; buffers in use are freed when they are dropped.
    pub fn clear(&mut self) {
        if let Some((pool, _)) = self.pool.take() {
            let _ = pool.set_active(false);
        }
    }
}

impl Drop for CopyPool {
    fn drop(&mut self) {
        self.clear();
    }
}

fn new_pool(size: usize) -> Result<gst::BufferPool, glib::BoolError> {
    let bytes = u32::try_from(size.max(1))
        .map_err(|_| glib::bool_error!("a frame of {size} bytes exceeds the 32-bit size limit"))?;
    let pool = gst::BufferPool::new();
    let mut config = pool.config();
    config.set_params(None, bytes, 0, 0);
    // Alignment to cache lines, which also suits vector instructions downstream.
    let parameters = gst::AllocationParams::new(gst::MemoryFlags::empty(), 63, 0, 0);
    config.set_allocator(None::<&gst::Allocator>, Some(&parameters));
    pool.set_config(config)?;
    pool.set_active(true)?;
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquire_returns_requested_size_and_reuses_buffers() {
        gst::init().unwrap();
        let mut copy_pool = CopyPool::default();
        let first = copy_pool.acquire(1000).unwrap();
        assert_eq!(first.size(), 1000);
        let address = first.map_readable().unwrap().as_ptr();
        drop(first);
        assert_eq!(copy_pool.acquire(1000).unwrap().map_readable().unwrap().as_ptr(), address);
        assert_eq!(copy_pool.acquire(0).unwrap().size(), 0);
        assert_eq!(copy_pool.acquire(2000).unwrap().size(), 2000);
    }
}
