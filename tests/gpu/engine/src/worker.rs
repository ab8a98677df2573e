// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peer process: executes the commands of its case in order.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_cuda::event::Event;
use frameshare_gpu_harness::{Link, obey};

use crate::crowd::{Crowd, Rings};
use crate::exporting::{Exporting, Owners};
use crate::gpu::{self, Gpu};
use crate::graphs::Graphs;
use crate::hostile::{exporter::Harmer, reader::Intruder};
use crate::job::{Command, Reply, misplaced};
use crate::reading::Reading;
use crate::rogue::Rogue;

/// State of a peer.
#[derive(Default)]
struct Worker {
    exporting: Option<Exporting>,
    reading: Option<Reading>,
    rogue: Option<Rogue>,
    harmer: Option<Harmer>,
    intruder: Option<Intruder>,
    graphs: Option<Graphs>,
    crowd: Option<Crowd>,
    rings: Option<Rings>,
    events: Vec<Event>,
    owners: Option<Owners>,
}

/// Executes commands until the case closes the link.
pub fn serve(link: &Link) -> Result<()> {
    let mut worker = Worker::default();
    obey(link, |command, _| Ok((worker.work(command)?, None)))?;
    // Dropping the worker may wait for work that never completes; process exit does not wait.
    std::mem::forget(worker);
    Ok(())
}

impl Worker {
    fn crowd(&mut self) -> Result<&mut Crowd> {
        self.crowd.as_mut().context("the peer has no crowd")
    }

    fn work(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Bind(bind) => {
                // Free the memory of the previous exporter first.
                drop(self.exporting.take());
                self.exporting = Some(Exporting::bind(&bind)?);
                Ok(Reply::Done)
            }
            Command::Connect(connect) => {
                drop(self.reading.take());
                let reading = Reading::connect(&connect)?;
                let reply = reading.connected();
                self.reading = Some(reading);
                Ok(reply)
            }
            Command::Rogue(connect) => {
                self.rogue = Some(Rogue::connect(&connect)?);
                Ok(Reply::Done)
            }
            Command::RecordOver { us } => {
                self.rogue.as_mut().context("the peer has no rogue reader")?.record_over(us)?;
                Ok(Reply::Done)
            }
            Command::AcknowledgeAndKeep { ms } => {
                let rogue = self.rogue.as_mut().context("the peer has no rogue reader")?;
                rogue.acknowledge_and_keep(Duration::from_millis(ms))?;
                Ok(Reply::Done)
            }
            Command::Harmer { path } => {
                drop(self.harmer.take());
                self.harmer = Some(Harmer::open(&path, 0)?);
                Ok(Reply::Done)
            }
            Command::Intruder { path } => {
                self.intruder = Some(Intruder::new(&path, 0)?);
                Ok(Reply::Done)
            }
            Command::Harm { attack } => {
                let harmed = match (&mut self.harmer, &self.intruder) {
                    (Some(harmer), _) => harmer.harm(&attack).map(|()| true)?,
                    (None, Some(intruder)) => intruder.harm(&attack)?,
                    (None, None) => bail!("the peer has no hostile exporter or reader"),
                };
                Ok(if harmed { Reply::Done } else { Reply::Refused })
            }
            Command::AwaitIdle { ms } => {
                let patience = Duration::from_millis(ms);
                gpu::await_idle(&Gpu::open(0)?, patience)?;
                ensure!(frameshare::wait_for_deferred_drops(patience), "not all memory is freed");
                Ok(Reply::Done)
            }
            Command::Resume => {
                gpu::resume();
                Ok(Reply::Done)
            }
            Command::TakeEvents { count } => {
                let gpu = Gpu::open(0)?;
                for _ in 0..count {
                    self.events.push(Event::new_shared(&gpu.context)?);
                }
                Ok(Reply::Done)
            }
            Command::Capture(job) => {
                self.graphs = Some(Graphs::start(&gpu::context(0)?, job)?);
                Ok(Reply::Done)
            }
            Command::EndCapture => {
                // Deferred drops belong to the frames that were read beside the captures.
                frameshare::wait_for_deferred_drops(frameshare_gpu_harness::GIVEN_UP);
                self.graphs.take().context("the peer captures nothing")?.end().map(Reply::Captured)
            }
            Command::ConnectHere(connect) => {
                let context = self.exporting.as_ref().context("the peer has no exporter")?.context();
                let reading = Reading::connect_in(&connect, context)?;
                let reply = reading.connected();
                self.reading = Some(reading);
                Ok(reply)
            }
            Command::LoseContext => match (&mut self.exporting, &mut self.reading) {
                (_, Some(reading)) => reading.work(command),
                (Some(exporting), None) => exporting.work(command),
                (None, None) => misplaced(&command),
            },
            Command::Unbind => {
                let exporting = self.exporting.take().context("the peer has no exporter")?;
                exporting.unbind().map(Reply::Number)
            }
            Command::UnbindAdopted { ms } => {
                if let Some(exporting) = self.exporting.take() {
                    self.owners = Some(exporting.owners());
                    exporting.unbind()?;
                }
                frameshare::wait_for_deferred_drops(Duration::from_millis(ms));
                self.owners.as_ref().context("no memory was adopted")?.notified().map(Reply::Number)
            }
            Command::Returned => {
                self.owners.as_ref().context("no memory was adopted")?.returned().map(Reply::Number)
            }
            Command::Crowd { connect, readers } => {
                self.crowd = Some(Crowd::connect(&connect, readers)?);
                Ok(Reply::Done)
            }
            Command::TakeEach { ms } => self.crowd()?.take(ms).map(Reply::Crowded),
            Command::SettleCrowd => self.crowd()?.settle().map(Reply::Number),
            Command::EndCrowd => {
                let begin = Instant::now();
                drop(self.crowd.take());
                Ok(Reply::Number(begin.elapsed().as_millis() as u64))
            }
            Command::Rings { paths } => {
                self.rings = Some(Rings::bind(&paths)?);
                Ok(Reply::Done)
            }
            Command::Relay { befores, begins, rounds, seed } => {
                let rings = self.rings.as_mut().context("the peer is no link")?;
                rings.relay(&befores, begins, rounds, seed).map(Reply::Number)
            }
            Command::AwaitReaders { .. }
            | Command::Publish(_)
            | Command::Soil { .. }
            | Command::HoldSlots { .. }
            | Command::Stall { .. }
            | Command::Format { .. }
            | Command::EndOfStream
            | Command::Drain { .. }
            | Command::ExporterStats
            | Command::Notices
            | Command::Adopt { .. }
            | Command::Circulate(_)
            | Command::DropAfter { .. }
            | Command::DropAfterInCapture
            | Command::DropRegistered { .. }
            | Command::HostMemory { .. }
            | Command::PublishHeld
            | Command::LimitFiles { .. }
            | Command::RegisterHostSlots { .. }
            | Command::RetireAdopted { .. } => {
                self.exporting.as_mut().context("the peer has no exporter")?.work(command)
            }
            Command::Read(_)
            | Command::ReadInCapture
            | Command::ReleaseHeld { .. }
            | Command::CheckHeld
            | Command::Disconnect
            | Command::StallReading { .. }
            | Command::LongKernels { .. } => {
                self.reading.as_mut().context("the peer has no reader")?.work(command)
            }
        }
    }
}
