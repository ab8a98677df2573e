//! Admitting a reader: from its Hello to its link.

use super::{
    link::Link,
    notice::{Notice, ReaderInfo},
    state::{Ending, State},
};
use crate::{
    fence::NoFence,
    queue::Producer,
    sys::{Mapping, Peer, SealedAgainst, Socket, Wake, Words, memfd, process_nonce},
};
use frameshare_protocol::{
    FenceKind, Policy,
    message::{Hello, Reason, ToReader, Welcome},
    page::{claims_size, queue_size},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

impl State {
    /// Admits a reader, or tells it and the owner why not.
    pub fn admit(&mut self, socket: Socket, peer: Peer, hello: &Hello) {
        let refusal = match self.grant(&peer, hello) {
            Ok(credit) => match self.welcome(&socket, hello, credit) {
                Ok((wake, producer)) => return self.link(socket, wake, peer, producer, hello, credit),
                Err(error) => {
                    Ending::new(Reason::Failed, format!("the exporter cannot serve another reader: {error}"))
                }
            },
            Err(refusal) => refusal,
        };
        self.refuse(&socket, &peer, &refusal);
    }

    /// Tells a reader that it is not admitted, and why.
    pub fn refuse(&mut self, socket: &Socket, peer: &Peer, refusal: &Ending) {
        let message = ToReader::Refused { reason: refusal.reason, text: refusal.text.clone() };
        if let Ok(packet) = message.encode() {
            // A reader that does not take this learns it from the hang-up.
            let _ = socket.send(&packet, &[]);
        }
        self.notices.push(Notice::ReaderRefused {
            pid: Some(peer.pid),
            uid: peer.uid,
            why: refusal.text.clone(),
        });
    }

    /// How much credit a reader gets.
    fn grant(&mut self, peer: &Peer, hello: &Hello) -> Result<u32, Ending> {
        if hello.policy == Policy::Lossless && !self.config.may_be_lossless(peer) {
            let text = "the exporter does not let this reader be lossless: use policy=latest, or set lossless-readers there";
            return Err(Ending::new(Reason::LosslessNotGranted, text));
        }
        let kind = self.allocator.kind();
        if !hello.memory.contains(&kind) || !hello.fences.contains(&FenceKind::None) {
            let text = format!("the stream's frames are in {kind} memory, which this reader cannot read");
            return Err(Ending::new(Reason::NothingInCommon, text));
        }
        self.reclaim();
        let left = self.credit_left();
        if left == 0 {
            let text = format!(
                "all {} slots are promised to other readers: raise max-slots on the exporter, or stop a reader",
                self.config.max_slots
            );
            return Err(Ending::new(Reason::NoCreditLeft, text));
        }
        Ok(hello.credit.min(self.config.max_held_limit).min(left))
    }

    /// Makes the pages that the two share, and sends them.
    fn welcome(
        &mut self,
        socket: &Socket,
        hello: &Hello,
        credit: u32,
    ) -> io::Result<(Wake, Producer<Words>)> {
        let entries = credit as usize;
        let (queue, queue_fd) =
            page("frameshare-queue", queue_size(entries), SealedAgainst::ResizingAndWriting)?;
        let (claims, claims_fd) = page("frameshare-claims", claims_size(entries), SealedAgainst::Resizing)?;
        let producer = Producer::new(queue, claims, entries, self.next);
        let (wake, their_wake) = Wake::pair()?;
        let welcome = ToReader::Welcome(Welcome {
            nonce: process_nonce(),
            session: self.session,
            policy: hello.policy,
            credit,
            fence: FenceKind::None,
            areas: self.config.max_slots,
            next: self.next,
        });
        let packet = welcome.encode().map_err(io::Error::other)?;
        let fds = [queue_fd.as_fd(), claims_fd.as_fd(), self.metadata_fd.as_fd(), their_wake.as_fd()];
        socket.send(&packet, &fds)?;
        Ok((wake, producer))
    }

    fn link(
        &mut self,
        socket: Socket,
        wake: Wake,
        peer: Peer,
        producer: Producer<Words>,
        hello: &Hello,
        credit: u32,
    ) {
        self.readers_total += 1;
        let info = ReaderInfo {
            id: self.readers_total,
            pid: peer.pid,
            uid: peer.uid,
            name: hello.name.clone(),
            policy: hello.policy,
            credit,
        };
        self.notices.push(Notice::ReaderAdded(info.clone()));
        self.links.push(Link::new(info, socket, wake, peer, producer, Box::new(NoFence)));
        self.links_changed = true;
        let newcomer = self.links.len() - 1;
        for message in self.introduction() {
            if let Err(ending) = self.links[newcomer].send(&message) {
                return self.end_link(newcomer, &ending);
            }
        }
    }
}

/// A fresh page, mapped by us and then sealed.
fn page(name: &str, size: usize, against: SealedAgainst) -> io::Result<(Words, OwnedFd)> {
    let fd = memfd(name, size as u64)?;
    let mapping = Mapping::writable(&fd, size)?;
    against.seal(&fd)?;
    Ok((mapping.into(), fd))
}
