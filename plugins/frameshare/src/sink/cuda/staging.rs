// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pinned host memory for uploads, which the driver copies without the CPU's help.

use crate::sync::lock;
use frameshare::DropWhenIdle;
use frameshare_cuda::{context::Context, host_buffer::HostBuffer};
use std::sync::{Arc, Mutex};

type Idle = Arc<Mutex<Vec<DropWhenIdle<HostBuffer>>>>;

/// Unused blocks.
pub(super) struct Staging {
    context: Arc<Context>,
    idle: Idle,
}

/// Memory of one holder; dropping it makes it available again.
pub(super) struct Block {
    /// Taken when this is dropped.
    buffer: Option<DropWhenIdle<HostBuffer>>,
    size: usize,
    idle: Idle,
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), idle: Arc::default() }
    }

    /// Returns a block of `size` bytes. Registering a new one takes some hundred µs, which ends
    /// once there are enough.
    pub(super) fn take(&self, size: usize) -> frameshare_cuda::Result<Block> {
        let block = |buffer| Block { buffer: Some(buffer), size, idle: self.idle.clone() };
        let mut small = Vec::new();
        {
            let mut idle = lock(&self.idle);
            if let Some(index) = idle.iter().position(|buffer| buffer.len() >= size) {
                return Ok(block(idle.swap_remove(index)));
            }
            // Frames have grown: smaller blocks are not needed again.
            small.append(&mut idle);
        }
        drop(small);
        Ok(block(DropWhenIdle::new(&self.context, HostBuffer::new(&self.context, size)?)))
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..self.size])
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..self.size])
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.idle).extend(self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_cuda::{device::Device, stream::Stream};
    use std::{io::Write as _, sync::mpsc, thread, time::Duration};

    #[test]
    fn blocks_are_given_up_without_waiting_for_a_stream_that_is_stuck() {
        let Ok(device) = Device::get(0) else {
            std::io::stdout().write_all(b"SKIP framesharesink/staging: there is no CUDA driver\n").unwrap();
            return;
        };
        let context = Context::create(&device).unwrap();
        let staging = Staging::new(&context);
        let block = staging.take(4096).unwrap();
        assert!(block.buffer.as_ref().is_some_and(|buffer| buffer.is_registered()));
        drop(block);
        let stream = Stream::new(&context).unwrap();
        let (done, stuck) = mpsc::channel::<()>();
        stream.call(move || _ = stuck.recv_timeout(Duration::from_secs(60))).unwrap();
        let (tell, told) = mpsc::channel();
        let gives_up = thread::spawn(move || {
            drop(staging.take(8192).unwrap());
            drop(staging);
            tell.send(()).unwrap();
        });
        let told = told.recv_timeout(Duration::from_secs(10));
        drop(done);
        gives_up.join().unwrap();
        assert!(told.is_ok(), "it waited for the stream");
    }
}
