// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peer process: executes the commands of its case in order.

use anyhow::{Context as _, Result};
use frameshare_gpu_harness::{Link, obey};

use crate::apart;
use crate::job::{Command, Reply};
use crate::playing::{self, Playing};
use crate::reading::Reading;
use crate::receiving;

/// State of a peer.
#[derive(Default)]
struct Worker {
    playing: Option<Playing>,
    reading: Option<Reading>,
}

/// Executes commands until the other end of the link closes.
pub fn serve(link: &Link) -> Result<()> {
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    let mut worker = Worker::default();
    obey(link, |command, _| Ok((worker.work(command)?, None)))
}

impl Worker {
    fn work(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Play { pipeline } => {
                drop(self.playing.take());
                self.playing = Some(Playing::start(&pipeline)?);
            }
            Command::Checksums { pipeline } => return playing::checksums(&pipeline).map(Reply::Numbers),
            Command::Receive(receive) => return receiving::receive(&receive).map(Reply::Received),
            Command::ReadApart(read) => return apart::read(&read).map(Reply::Received),
            Command::HasElement { name } => {
                return Ok(Reply::Number(gst::ElementFactory::find(&name).is_some().into()));
            }
            Command::Connect(connect) => {
                drop(self.reading.take());
                self.reading = Some(Reading::connect(&connect)?);
            }
            Command::Read(read) => {
                return self.reading.as_mut().context("the peer has no reader")?.read(&read).map(Reply::Read);
            }
            Command::ReleaseHeld => {
                self.reading.as_mut().context("the peer has no reader")?.release_held()?
            }
            Command::Disconnect => drop(self.reading.take()),
            other => return self.playing.as_mut().context("the peer has no pipeline")?.work(other),
        }
        Ok(Reply::Done)
    }
}
