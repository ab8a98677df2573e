// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prints each frame of several streams, read by one thread: `frameshare-tokio STREAM...`.

use anyhow::{Result, ensure};
use frameshare_tokio::AsyncFrames;
use tokio::{runtime::Builder, task::JoinSet};

async fn read(stream: String) -> Result<()> {
    let mut frames = AsyncFrames::open(&stream)?;
    while let Some(frame) = frames.next().await? {
        println!("{stream}: frame {}", frame.descriptor().sequence);
    }
    println!("{stream}: end of stream");
    Ok(())
}

fn main() -> Result<()> {
    let streams: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!streams.is_empty(), "usage: frameshare-tokio STREAM...");
    Builder::new_current_thread().enable_io().build()?.block_on(async {
        let mut readers: JoinSet<_> = streams.into_iter().map(read).collect();
        while let Some(read) = readers.join_next().await {
            read??;
        }
        Ok(())
    })
}
