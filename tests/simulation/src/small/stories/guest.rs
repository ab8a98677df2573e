// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader of which a story makes each step.

use super::Stage;
use crate::{
    stream::{
        channel::{Channel, File, Received},
        exporter::Request,
        gpu::Fences,
        process::{self, EXPORTER},
        reader::{Behaviour, hello},
        words::SharedPage,
    },
    task::block,
};
use frameshare_core::exporter::peer::Peer;
use frameshare_protocol::{Descriptor, EntryIndex, message::ToReader};
use frameshare_queue::Consumer;

/// The reader. Dropping it ends its process.
pub struct Guest {
    pub channel: Channel,
    pub consumer: Consumer<SharedPage>,
    pub fences: Fences,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.channel.exit_reader();
    }
}

impl Guest {
    /// Joins as reader `number`: the exporter counts them in the same order, from 1.
    pub fn join(stage: &Stage, number: u32, behaviour: Behaviour) -> Self {
        let (process, channel) = (EXPORTER + number, Channel::new(behaviour.room));
        let hello = hello(process, &behaviour);
        let peer = Peer { pid: process::pid_of(process), ..behaviour.peer };
        stage.exporter.connect(Request { channel: channel.clone(), peer, hello });
        block("wait for the answer", None, || channel.peek_from_exporter());
        let Received::Message((message, files)) = channel.receive_from_exporter() else {
            panic!("no answer")
        };
        let Ok(ToReader::Welcome(welcome)) = ToReader::decode(&message) else { panic!("it was refused") };
        let Some(File::Welcome(shares)) = files.into_iter().next() else { panic!("no pages") };
        let consumer = Consumer::new(shares.queue, shares.claims, welcome.credit as usize).unwrap();
        Self { channel, consumer, fences: shares.fences }
    }

    /// Receives all messages.
    pub fn receive(&self) -> Vec<ToReader> {
        let mut messages = Vec::new();
        while let Received::Message((message, _)) = self.channel.receive_from_exporter() {
            messages.extend(ToReader::decode(&message));
        }
        messages
    }

    /// Takes the oldest frame, if there is one.
    pub fn take(&self) -> Option<(EntryIndex, Descriptor)> {
        let taken = self.consumer.oldest()?.unwrap();
        assert!(self.consumer.claim(taken.entry, taken.descriptor.sequence), "it was revoked");
        Some((taken.entry, taken.descriptor))
    }
}
