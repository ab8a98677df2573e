// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile readers with access to GPU memory.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{EntryIndex, FenceKind, MemoryKind, Policy, Reason, Sequence};
use frameshare_cuda::memory::vmm;
use frameshare_protocol::message::{EVENT_HANDLE, Hello, ToExporter};
use frameshare_protocol::page::{Claim, ClaimState, claim_at, claims, release_at, timeline, timeline_size};
use frameshare_tests::random::Random;
use frameshare_tests::raw::{Page, RawReader, encoded, foreign};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use super::{PATIENCE, TIMELINE, WAKE, is_refused_by_kernel};
use crate::gpu::Gpu;

/// Required result at the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The exporter rejects the reader.
    Refused,
    /// The exporter disconnects the reader, for a reason that contains this text.
    Removed(&'static str),
    /// No reaction until the reader leaves.
    Leaves,
}
use Fate::{Leaves, Refused, Removed};

type Harm = fn(&Intruder) -> Result<()>;

/// All attacks.
pub const ATTACKS: &[(&str, Fate, Harm)] = &[
    ("release-word-ahead", Removed("the release word"), word_ahead),
    ("release-word-half-of-all-numbers-ahead", Removed("the release word"), word_half_ahead),
    ("release-word-never-written", Removed("fence timeout"), word_never),
    ("release-word-of-another-entry", Removed("fence timeout"), word_elsewhere),
    ("release-word-before-the-frame", Leaves, word_before),
    ("page-scribbled", Removed("the release word"), scribbled),
    ("page-punched", Leaves, punched),
    ("claim-of-another-frame", Removed("claim"), another_claim),
    ("claims-flicker", Removed("claim"), flicker),
    ("retires-unasked", Removed("not asked to"), retires),
    ("sends-gpu-memory", Removed("descriptors"), sends_memory),
    ("lingering-over-wake", Removed("descriptors"), lingering_over_wake),
    ("leaves-with-fences-pending", Leaves, leaves_pending),
    ("gpus-that-are-not-there", Leaves, other_gpus),
    ("no-fence-in-common", Refused, no_fence),
    ("no-memory-in-common", Refused, no_memory),
    ("nonce-of-the-exporter", Leaves, double),
];

/// A hostile reader.
pub struct Intruder {
    gpu: Gpu,
    path: PathBuf,
}

/// Resources received by an admitted reader.
struct Admitted {
    raw: RawReader,
    words: Page,
}

impl Intruder {
    pub fn new(path: &str, device: usize) -> Result<Intruder> {
        Ok(Intruder { gpu: Gpu::open(device)?, path: path.into() })
    }

    /// Joins a stream and attacks its exporter. Returns false if the kernel refused a descriptor on
    /// the sender's side.
    pub fn harm(&self, attack: &str) -> Result<bool> {
        let (.., harm) = ATTACKS.iter().find(|(name, ..)| *name == attack).context("unknown attack")?;
        match harm(self) {
            Err(error) if is_refused_by_kernel(&error) => Ok(false),
            harmed => harmed.map(|()| true),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            nonce: [7; 16],
            name: "intruder".into(),
            policy: Policy::Lossless,
            credit: 4,
            max_queued: 4,
            memory: vec![MemoryKind::Vmm],
            fences: vec![FenceKind::Timeline],
            gpus: vec![self.gpu.context.device().uuid().0],
            context: 1,
            host_fallback: false,
            max_gop_bytes: 0,
        }
    }

    fn join(&self) -> Result<Admitted> {
        Admitted::join(self, self.hello())
    }
}

impl Admitted {
    fn join(intruder: &Intruder, hello: Hello) -> Result<Admitted> {
        let raw = RawReader::join(&intruder.path, hello)?;
        let page = raw.fds.get(TIMELINE).context("the exporter sent no timeline page")?;
        let words = Page::writable(page, timeline_size(raw.welcome.credit as usize))?;
        Ok(Admitted { raw, words })
    }

    /// Takes a frame.
    fn take(&self) -> Result<(usize, u64)> {
        let until = Instant::now() + PATIENCE;
        loop {
            for entry in 0..self.raw.welcome.credit as usize {
                let word = &self.raw.claims[claim_at(EntryIndex(entry))];
                let (found, claim) =
                    (word.load(Ordering::Acquire), Claim::decode(word.load(Ordering::Acquire)));
                let taken = Claim { state: ClaimState::Taken, ..claim }.encode();
                if claim.state == ClaimState::Published
                    && word.compare_exchange(found, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    return Ok((entry, claim.sequence.0));
                }
            }
            ensure!(Instant::now() < until, "no frame arrived in time");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Marks a frame as released, regardless of its release fence.
    fn release(&self, entry: usize, sequence: u64) {
        let released = Claim { sequence: Sequence(sequence), state: ClaimState::Released };
        self.raw.claims[claim_at(EntryIndex(entry))].store(released.encode(), Ordering::SeqCst);
    }

    /// Takes a frame and releases it immediately, with this release value.
    fn release_with(&self, word: impl Fn(u64) -> u64) -> Result<()> {
        let (entry, sequence) = self.take()?;
        self.words[release_at(EntryIndex(entry))].store(word(sequence), Ordering::SeqCst);
        self.release(entry, sequence);
        Ok(())
    }

    /// Waits until the exporter disconnects the reader.
    fn is_cut_off(&self) -> Result<()> {
        ensure!(self.raw.channel.hangs_up(PATIENCE), "the exporter did not disconnect the reader");
        Ok(())
    }
}

fn word_ahead(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    reader.release_with(|sequence| sequence + 1000)?;
    reader.is_cut_off()
}

fn word_half_ahead(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    reader.release_with(|sequence| sequence.wrapping_add(1 << 63))?;
    reader.is_cut_off()
}

fn word_never(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    reader.release_with(|_| 0)?;
    reader.is_cut_off()
}

fn word_elsewhere(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let (entry, sequence) = reader.take()?;
    let another = (entry + 1) % reader.raw.welcome.credit as usize;
    reader.words[release_at(EntryIndex(another))].store(sequence, Ordering::SeqCst);
    reader.release(entry, sequence);
    reader.is_cut_off()
}

/// Releases each frame before it is written.
fn word_before(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    (0..20).try_for_each(|_| reader.release_with(|sequence| sequence))
}

/// Overwrites the timeline values of both sides continuously.
fn scribbled(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        reader.words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
    reader.words[timeline::READY].store(0, Ordering::Relaxed);
    reader.release_with(|_| u64::MAX)?;
    reader.is_cut_off()
}

/// Punches a hole under both sides' mappings of the timeline page, then continues to release
/// frames.
fn punched(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let page = &reader.raw.fds[TIMELINE];
    ensure!(ftruncate(page, 0).is_err(), "the page was truncated");
    fallocate(page, hole, 0, timeline_size(reader.raw.welcome.credit as usize) as u64)?;
    (0..20).try_for_each(|_| reader.release_with(|sequence| sequence))
}

fn another_claim(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let (entry, sequence) = reader.take()?;
    let claim = Claim { sequence: Sequence(sequence + 5), state: ClaimState::Taken };
    reader.raw.claims[claim_at(EntryIndex(entry))].store(claim.encode(), Ordering::SeqCst);
    reader.is_cut_off()
}

fn flicker(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let until = Instant::now() + PATIENCE;
    let mut random = Random::new(0);
    while !reader.raw.channel.hangs_up(Duration::ZERO) {
        ensure!(Instant::now() < until, "the exporter did not disconnect the reader");
        for _ in 0..10_000 {
            let number = random.word();
            reader.raw.claims[claims::ENTRIES + number as usize % 4].store(number >> 8, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn retires(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    reader.take()?;
    reader.raw.channel.send(&encoded(ToExporter::Retired { generation: 1 }.encode()), &[])?;
    reader.is_cut_off()
}

fn sends_memory(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    let memory = vmm::Allocation::new(&intruder.gpu.context, 2 << 20)?.export()?;
    let goodbye = ToExporter::Goodbye { reason: Reason::Stopped, text: String::new() };
    reader.raw.channel.send(&encoded(goodbye.encode()), &[memory.as_fd()])?;
    reader.is_cut_off()
}

/// The exporter is waiting for this reader, which is at its credit limit, when the descriptor
/// arrives.
fn lingering_over_wake(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    (0..reader.raw.welcome.credit).try_for_each(|_| reader.take().map(|_| ()))?;
    let fd = foreign::lingering()?;
    let sent = foreign::send(&reader.raw.fds[WAKE], &[fd.as_fd()]);
    fd.sent();
    sent?;
    reader.is_cut_off()
}

fn leaves_pending(intruder: &Intruder) -> Result<()> {
    let reader = intruder.join()?;
    (0..reader.raw.welcome.credit).try_for_each(|_| reader.release_with(|_| 0))
}

fn other_gpus(intruder: &Intruder) -> Result<()> {
    let reader = Admitted::join(intruder, Hello { gpus: vec![[0x5a; 16]; 16], ..intruder.hello() })?;
    (0..20).try_for_each(|_| reader.release_with(|sequence| sequence))
}

fn is_refused(intruder: &Intruder, hello: Hello, why: &str) -> Result<()> {
    let Err(error) = RawReader::join(&intruder.path, hello) else {
        bail!("the exporter admitted the reader")
    };
    ensure!(error.to_string().contains(why), "{error}");
    Ok(())
}

fn no_fence(intruder: &Intruder) -> Result<()> {
    is_refused(intruder, Hello { fences: vec![FenceKind::None], ..intruder.hello() }, "no kind of fence")
}

fn no_memory(intruder: &Intruder) -> Result<()> {
    is_refused(intruder, Hello { memory: vec![MemoryKind::Pool], ..intruder.hello() }, "cannot read")
}

/// Possession of the exporter's nonce does not prove that a peer is the exporter's own process:
/// such a peer gets only descriptors that any process can import.
fn double(intruder: &Intruder) -> Result<()> {
    let nonce = intruder.join()?.raw.welcome.nonce;
    let hello = Hello { nonce, fences: vec![FenceKind::Event], ..intruder.hello() };
    let raw = RawReader::join(&intruder.path, hello)?;
    let (handles, _) = raw.welcome.events.as_chunks::<EVENT_HANDLE>();
    if handles.is_empty() || handles.iter().any(|handle| handle.iter().all(|byte| *byte == 0)) {
        bail!("the exporter treats the peer as part of its own process");
    }
    Ok(())
}
