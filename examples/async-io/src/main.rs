// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prints each frame of a stream to its end: `frameshare-async-io STREAM`.

use anyhow::{Context as _, Result};
use frameshare_async_io::AsyncFrames;

fn main() -> Result<()> {
    let stream = std::env::args().nth(1).context("usage: frameshare-async-io STREAM")?;
    async_io::block_on(async {
        let mut frames = AsyncFrames::open(&stream)?;
        while let Some(frame) = frames.next().await? {
            println!("frame {}", frame.descriptor().sequence);
        }
        Ok(())
    })
}
