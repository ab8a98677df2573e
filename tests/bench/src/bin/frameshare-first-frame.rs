// SPDX-License-Identifier: MIT OR Apache-2.0

//! Process that first-frame.py times: makes a CUDA context, or takes one frame with the engine.
//!
//! `frameshare-first-frame context|host|cuda [SOCKET]` prints the CLOCK_MONOTONIC of each step in
//! ns, as a line of JSON.

use anyhow::{Context as _, Result, bail};
use frameshare::reader::{Config, Frames};
use frameshare_cuda::{context::Context, device::Device};
use rustix::time::{ClockId, clock_gettime};
use std::env;

/// Times of the steps.
struct Steps(Vec<String>);

impl Steps {
    fn reach(&mut self, step: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        self.0.push(format!("\"{step}\": {}", now.tv_sec * 1_000_000_000 + now.tv_nsec));
    }
}

fn main() -> Result<()> {
    let mut steps = Steps(Vec::new());
    steps.reach("main");
    let mut arguments = env::args().skip(1);
    let (job, socket) = (arguments.next().unwrap_or_default(), arguments.next());
    let gpu = match job.as_str() {
        "context" | "cuda" => Some(Context::primary(&Device::find("0")?)?),
        "host" => None,
        _ => bail!("usage: frameshare-first-frame context|host|cuda [SOCKET]"),
    };
    if gpu.is_some() {
        steps.reach("context");
    }
    if job != "context" {
        let socket = socket.context("which socket?")?;
        let mut frames = Frames::open(&socket, Config::default().gpu(gpu))?;
        steps.reach("connected");
        let frame = frames.next().context("the stream has ended")??;
        steps.reach("frame");
        drop(frame);
        drop(frames);
        steps.reach("closed");
    }
    println!("{{{}}}", steps.0.join(", "));
    Ok(())
}
