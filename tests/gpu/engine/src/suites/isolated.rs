// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that share only the socket with the exporter, as containers do.

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::isolate;

use super::{Case, KINDS, Needs, SIZE, Setup, frames, to_the_end, whole};
use crate::job::{Publish, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-isolated";

pub const CASES: &[Case] =
    &[isolated("own-namespaces-and-shm", own_shm), isolated("own-namespaces-with-the-same-shm", same_shm)];

const fn isolated(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 90, needs: Needs::Namespaces, conduct }
}

fn read(setup: &Setup, readers: &[Peer]) -> Result<()> {
    let frames = (frames() / 20).max(20);
    let publish = Publish { frames, size: SIZE, slow: Slow::Sometimes(600), ..Publish::default() };
    for read in setup.run(readers, publish, |_| to_the_end())? {
        whole(&read, frames)?;
    }
    Ok(())
}

/// Returns the kinds of memory that can be imported here. An exporter on the simulated driver does
/// not answer in time when its legacy handles are opened from other namespaces, so that kind needs
/// a real driver.
fn kinds() -> impl Iterator<Item = MemoryKind> {
    let real = std::path::Path::new("/proc/driver/nvidia").exists();
    KINDS.into_iter().filter(move |kind| real || *kind != MemoryKind::Legacy)
}

/// Timeline fences work and are selected; a request for event fences fails with the reason.
fn own_shm(seed: u64) -> Result<String> {
    let readers = [Peer::isolated(isolate::FULL)?];
    let mut refusal = String::new();
    for kind in kinds() {
        let setup = Setup::new(kind, seed)?;
        let asked = setup.lossless(0, Some(FenceKind::Event));
        let Err(refused) = readers[0].connect(asked) else {
            anyhow::bail!("{kind}: opening events succeeded")
        };
        refusal = format!("{refused:#}");
        ensure!(refusal.contains("/dev/shm"), "{kind}: {refusal}");
        let setup = Setup::new(kind, seed)?;
        setup.join(&readers, |number| setup.lossless(number, None)).with_context(|| kind.to_string())?;
        let stats = setup.exporter.stats()?;
        ensure!(stats.readers[0].fence.starts_with("timeline"), "{kind}: {}", stats.readers[0].fence);
        read(&setup, &readers).with_context(|| kind.to_string())?;
    }
    Ok(refusal)
}

/// With a shared /dev/shm, event fences work too.
fn same_shm(seed: u64) -> Result<String> {
    let readers = [Peer::isolated(isolate::SAME_SHM)?];
    for kind in kinds() {
        let setup = Setup::new(kind, seed)?;
        setup.join(&readers, |number| setup.lossless(number, Some(FenceKind::Event)))?;
        read(&setup, &readers).with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}
