//! A peer: does the jobs of its case, one after the other.

use anyhow::{Context as _, Result};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::job::{Command, Reply};
use crate::link::Link;
use crate::playing::{self, Playing};
use crate::reading::Reading;
use crate::receiving;

/// What a peer is, as far as it has been told.
#[derive(Default)]
struct Worker {
    playing: Option<Playing>,
    reading: Option<Reading>,
}

/// Works until the other end of the socket closes.
pub fn serve(socket: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let link = Link::inherited(socket)?;
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    let mut worker = Worker::default();
    while let Some((command, _)) = link.receive()? {
        let reply = worker.work(command);
        let reply = reply.unwrap_or_else(|error| Reply::Failed { text: format!("{error:#}") });
        link.send(&reply, &[])?;
    }
    Ok(())
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
            Command::HasElement { name } => {
                return Ok(Reply::Number(gst::ElementFactory::find(&name).is_some().into()));
            }
            Command::Connect(connect) => {
                drop(self.reading.take());
                self.reading = Some(Reading::connect(&connect)?);
            }
            Command::Read(read) => {
                return self.reading.as_mut().context("no reader is here")?.read(&read).map(Reply::Read);
            }
            Command::LetGo => self.reading.as_mut().context("no reader is here")?.let_go(),
            Command::Disconnect => drop(self.reading.take()),
            Command::BecomeNobody => {
                // The driver is found before: it may lie where that user cannot look.
                frameshare::cuda::device::Device::all()?;
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_uid(nobody).context("becoming another user")?;
                set_parent_process_death_signal(Some(Signal::KILL))?;
            }
            other => return self.playing.as_mut().context("no pipeline is here")?.work(other),
        }
        Ok(Reply::Done)
    }
}
