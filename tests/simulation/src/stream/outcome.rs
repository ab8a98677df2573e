// SPDX-License-Identifier: MIT OR Apache-2.0

//! The outcomes that runs of a stream are meant to reach.

use frameshare_core::exporter::notice::Notice;
use frameshare_protocol::message::Reason;

crate::outcomes! {
    /// Outcomes of a stream.
    pub enum Outcome {
        Joined = "reader: joined",
        RefusedCredit = "reader: refused, no credit left",
        RefusedMemory = "reader: refused, no GPU memory left",
        RefusedAccount = "reader: refused, the account of its user is full",
        Left = "reader: left",
        EvictedSlow = "reader: evicted, too slow",
        EvictedLimit = "reader: evicted, beyond a limit",
        EvictedViolation = "reader: evicted, broke the rules",
        EvictedFailed = "reader: evicted, a failure",
        Disconnected = "reader: disconnected on request",
        Revoked = "reader: its frames were taken back",
        Died = "reader: killed",
        DiedHolding = "reader: killed with frames",
        Took = "reader: took a frame",
        TookOnGpu = "reader: took a frame on a GPU",
        Lost = "reader: lost frames",
        RevokedAtClaim = "reader: a frame was revoked at its claim",
        Kept = "reader: got the kept frame",
        KeptUnits = "reader: got kept units",
        Skipped = "reader: was told of frames that were not for it",
        Retired = "reader: dropped the imports of a generation",
        RetiredLater = "reader: a retirement waited for frames",
        RetiredSlot = "reader: dropped the import of a slot",
        CannotImport = "reader: could not import",
        FellBack = "reader: got downloads, since it could not import",
        Oversized = "reader: got oversized metadata",
        GotEvent = "reader: got an event",
        GotFormat = "reader: got a format",
        GotEnd = "reader: got the end of the stream",
        EndStopped = "reader: the exporter stopped",
        EndCutOff = "reader: was cut off",
        EndHungUp = "reader: the exporter hung up",
        SleptOnFutex = "reader: slept on the futex",
        SleptOnSocket = "reader: slept on the socket",
        SleptToBound = "reader: slept to the bound of the futex",
        ReceivedFirst = "reader: received messages before a frame",
        Lied = "reader: lied",
        Published = "exporter: published",
        PublishedAdopted = "exporter: published adopted memory",
        RefusedAdopted = "exporter: did not publish adopted memory",
        RefusedRetired = "exporter: did not publish retired memory",
        WaitedForRoom = "exporter: waited for room",
        WaitedForSlot = "exporter: waited for a slot",
        NoSlot = "exporter: got no slot",
        Pooled = "exporter: got a slot for a pool",
        FoundSlot = "exporter: a slot became free in time",
        NoMemory = "exporter: could not allocate",
        Backlog = "exporter: a frame joined a backlog",
        Blocking = "exporter: reported a blocking reader",
        KeyWanted = "exporter: asked for a key unit",
        Renewed = "exporter: began a generation",
        Trimmed = "exporter: trimmed slots",
        Downloaded = "exporter: downloaded a frame",
        DownloadFailed = "exporter: a download failed",
        GpuFailed = "exporter: its GPU failed",
        UsedAgain = "exporter: used kept memory again",
        AccountFull = "exporter: an account was full",
        GpuBusy = "exporter: GPU work was under way",
        Unwritten = "exporter: a frame without readers was being written",
        Shortage = "exporter: a message waited for descriptors",
        SocketFull = "exporter: a message waited for room",
        Drained = "exporter: waited until readers had read all",
        ExporterDied = "exporter: killed",
        Draining = "exporter: a reader that had left held frames",
        LateWakeUp = "a sleep ended by itself, in time",
    }
}

/// Counts a notice.
pub fn note(notice: &Notice) {
    match notice {
        Notice::ReaderAdded(_) => Outcome::Joined.reach(),
        Notice::ReaderRemoved { reason, .. } => match reason {
            Reason::Stopped => Outcome::Left.reach(),
            Reason::TooSlow => Outcome::EvictedSlow.reach(),
            Reason::LimitExceeded => Outcome::EvictedLimit.reach(),
            Reason::Violation => Outcome::EvictedViolation.reach(),
            Reason::Disconnected => Outcome::Disconnected.reach(),
            _ => Outcome::EvictedFailed.reach(),
        },
        Notice::ReaderRefused { why, .. } if why.contains("promised") => Outcome::RefusedCredit.reach(),
        Notice::ReaderBlocking { .. } => Outcome::Blocking.reach(),
        Notice::KeyUnitWanted => Outcome::KeyWanted.reach(),
        _ => {}
    }
}
