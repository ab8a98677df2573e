// SPDX-License-Identifier: MIT OR Apache-2.0

//! The needs of an exporter: the system and the GPU.

use super::{
    accounts::{MemoryFile, Purpose},
    ending::Ending,
    shortage::Unsendable,
};
use frameshare_protocol::{
    AreaIndex, Descriptor, EntryIndex, FenceKind, MemoryKind, Plane, Sequence, SlotId,
};
use frameshare_queue::{Page, Sleeper};
use std::{
    fmt::{Debug, Display},
    sync::Arc,
    time::Instant,
};

/// Where downloads of the present frame begin: behind the work that writes it.
type Present<S> = <<S as System>::Signals as Signals>::Present;

/// The system and the GPU of one exporter. The engine implements it by system calls and calls of
/// the driver, the simulator by plain values. No method waits.
pub trait System: Sized + 'static {
    /// A slot, from the view of a holder.
    type Slot: Slot<Attachment = Self::Attachment, File = Self::File>;
    /// Memory of a slot: allocated for it, or adopted.
    type Memory;
    /// The source of a generation's memory.
    type Allocator: Allocator<Attachment = Self::Attachment>;
    /// The identity of an adopted allocation, which no other one has while it is adopted.
    type AdoptedId: Copy + Debug + Ord;
    /// The reason why there is no memory.
    type MemoryError: Debug;
    /// A descriptor that belongs to a message.
    type Attachment: Attachment<File = Self::File>;
    /// The connection to a reader.
    type Connection: Connection<Attachment = Self::Attachment, Sleepers = Self::Sleepers>;
    /// Readers that are to be woken.
    type Sleepers: Default;
    /// A page of a reader's queue.
    type Page: Page + Debug + Send + 'static;
    /// A memory file.
    type File: MemoryFile;
    /// The account of a reader's user.
    type Account: Account<File = Self::File>;
    /// Wakes one waiting thread.
    type Waiter: Waiter;
    /// The GPU that frames are written on.
    type Gpu: Gpu<Error = Self::GpuError>;
    /// The reason why a GPU has failed.
    type GpuError: Debug + Display;
    /// The signals of one frame to all readers.
    type Signals: Signals<Error = Self::GpuError>;
    /// The fence of one reader.
    type Fence: Fence<Signals = Self::Signals>;
    /// Makes downloads.
    type Copier: Copier<Slot = Self::Slot, Written = Present<Self>, Error = Self::GpuError>;
    /// GPU work that uses something.
    type Work: Work;
    /// Work of devices on a dma-buf.
    type DeviceWork;
    /// A format of raw video.
    type Video: Video;

    /// The present time, for what happens in this process.
    fn now() -> Instant;
    /// The present time in ns of `CLOCK_MONOTONIC`, which all processes share.
    fn now_ns() -> u64;

    /// The GPU that frames are written on, if there is one.
    fn gpu(&self) -> Option<&Self::Gpu>;
    /// Returns a source of memory of this kind.
    ///
    /// # Errors
    /// The reason why there is none.
    fn allocator(&self, kind: MemoryKind) -> Result<Self::Allocator, Self::MemoryError>;
    /// Makes a slot in this memory.
    fn slot(&self, id: SlotId, is_overflow: bool, memory: Self::Memory) -> Self::Slot;
    /// Lets readers of this process, which cannot import a slot, use it in place.
    fn share_within_process(&self, slot: &Self::Slot);
    /// Bytes of memory that is kept, since users that are not trusted may have it.
    fn kept_bytes(&self) -> u64;
    /// Returns whether the exporter uses its GPU through a server that other processes share.
    fn is_mps_client(&self) -> bool;
    /// Writes a payload that is too long for a message to a file: one that is used again if some
    /// reader `is_charged` for memory.
    ///
    /// # Errors
    /// [`Unsendable`].
    fn payload(&self, bytes: &[u8], is_charged: bool) -> Result<Self::Attachment, Unsendable>;
    /// Stores the metadata of a publication if an area takes it. Returns the length for the
    /// descriptor.
    fn store_metadata(&mut self, area: AreaIndex, metadata: &[u8]) -> Option<u32>;
    /// Loads metadata of this length that was stored.
    fn load_metadata(&self, area: AreaIndex, length: u32) -> Vec<u8>;
    /// The file of the large metadata areas and their number, if there are some.
    fn large_areas(&self) -> Option<(Self::Attachment, u32)>;
    /// Returns what makes downloads, if there is a GPU.
    ///
    /// # Errors
    /// The driver's error.
    fn copier(&self) -> Result<Option<Self::Copier>, Self::GpuError>;
    /// Takes back what showed the end of GPU work.
    fn recycle(&mut self, work: Self::Work);
    /// Returns the work of devices on the dma-buf of a slot, if there is any.
    fn device_work(&self, slot: &Self::Slot) -> Option<Self::DeviceWork>;
    /// Returns whether that work is done.
    fn is_settled(&self, slot: &Self::Slot, work: &mut Self::DeviceWork) -> bool;
    /// Returns whether a device still writes the dma-buf of a slot.
    fn is_written_by_device(&self, slot: &Self::Slot) -> bool;
}

/// A slot, from the view of a holder. A clone keeps it from being used for another frame.
pub trait Slot: Clone + Debug + Send + 'static {
    /// A descriptor that belongs to a message.
    type Attachment;
    /// A memory file.
    type File: MemoryFile;
    /// Its number.
    fn id(&self) -> SlotId;
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Returns whether the CPU can read it.
    fn is_in_host(&self) -> bool;
    /// Returns whether it is a dma-buf.
    fn is_dma_buf(&self) -> bool;
    /// Its file, if its memory is one.
    fn file(&self) -> Option<&Arc<Self::File>>;
    /// Returns whether a charged user was given its memory.
    fn is_given(&self) -> bool {
        self.file().is_some_and(|file| file.is_given())
    }
    /// Returns whether a GPU writes it without the CPU's help, if it is in host memory.
    fn is_registered(&self) -> bool;
    /// Returns whether this is its only holder. All accesses of former ones are then over.
    fn is_free(&mut self) -> bool;
    /// The number of its holders.
    fn holders(&self) -> usize;
    /// The bytes by which a reader imports it, and the descriptor if there is one.
    fn handle(&self) -> (Vec<u8>, Option<Self::Attachment>);
}

/// The source of a generation's memory.
pub trait Allocator: Clone + Debug {
    /// A descriptor that belongs to a message.
    type Attachment;
    /// The descriptor that importers need once for all slots, if there is one.
    fn shared(&self) -> Option<Self::Attachment>;
}

/// A descriptor that belongs to a message, by its owner.
pub trait Attachment: Clone + Debug + Send + 'static {
    /// A memory file.
    type File: MemoryFile;
    /// Returns whether dropping this frees memory, of a GPU for example.
    fn frees_memory(&self) -> bool;
    /// The file, if it is one of a payload.
    fn payload(&self) -> Option<&Arc<Self::File>>;
}

/// The outcome of an attempt to send a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Whole,
    /// The reader has to receive others first; the system reports when.
    Full,
    /// Descriptors or memory have run out; nothing reports when there are some.
    Short,
    /// The connection has ended, for this reason.
    HungUp(String),
}

/// The connection to a reader. Dropping it ends it.
pub trait Connection: Debug + Send + 'static {
    /// A descriptor that belongs to a message.
    type Attachment;
    /// Readers that are to be woken.
    type Sleepers;
    /// Sends a message and its descriptors.
    fn send(&mut self, message: &[u8], attachments: &[Self::Attachment]) -> Sent;
    /// Ends the connection, which this side keeps: the reader receives what was sent, and then the
    /// end.
    fn shut_down(&self);
    /// Number of descriptors that the reader is not known to have received.
    fn in_flight(&self) -> usize;
    /// Asks whether the reader has received everything.
    fn has_received_all(&mut self) -> bool;
    /// Returns whether so many more descriptors may be in flight, with those of all connections of
    /// this process.
    fn has_share(&self, descriptors: usize) -> bool;
    /// Adds the reader, which sleeps on this, to those that are woken.
    fn add_to(&self, sleepers: &mut Self::Sleepers, sleeper: Option<Sleeper>);
    /// Returns whether the system reports the end of the reader's process.
    fn reports_exit(&self) -> bool;
    /// Time of the next check of the process, if the system does not report its end.
    fn check_at(&self) -> Option<Instant>;
    /// Returns whether the process has ended although the connection is open.
    fn has_died(&mut self) -> bool;
}

/// The account of a reader's user.
pub trait Account: Debug + Send + 'static {
    /// A memory file.
    type File: MemoryFile;
    /// Returns whether the user is charged. Otherwise its account is never full.
    fn is_charged(&self) -> bool;
    /// Records that the user is given a file, before the file is sent.
    ///
    /// # Errors
    /// The reason, for people, if the account is full.
    fn give(&self, file: &Arc<Self::File>, purpose: Purpose) -> Result<(), String>;
    /// Records that the reader may go on reading a file.
    fn lose(&self, file: &Arc<Self::File>);
    /// Frees the pages of the reader's claims, which stay mapped. Returns whether they are free.
    fn free_claims(&self) -> bool;
    /// Charges the user for the reader's claims.
    fn charge_claims(&self);
}

/// Wakes one waiting thread.
pub trait Waiter: Clone + Debug {
    /// Wakes it, or keeps its next sleep from beginning.
    fn wake(&self);
    /// Forgets former wake-ups, before it checks once more and sleeps.
    fn clear(&self);
}

/// A GPU.
pub trait Gpu: Clone {
    /// The driver's error.
    type Error;
    /// The GPU is the present one of this thread while this lives.
    type Current<'a>
    where
        Self: 'a;
    /// Makes it the present one of this thread.
    ///
    /// # Errors
    /// The driver's error.
    fn enter(&self) -> Result<Self::Current<'_>, Self::Error>;
}

/// The signals of one frame to all readers.
pub trait Signals {
    /// The driver's error.
    type Error;
    /// The writer of a frame.
    type Written<'a>: Copy;
    /// The work that writes a frame.
    type Writing: Send;
    /// Something that follows the work that writes the present frame.
    type Present;
    /// Returns whether the frame is complete.
    fn is_complete(written: Self::Written<'_>) -> bool;
    /// Begins the signals of a frame. Returns the work that writes it, unless that is the CPU's.
    ///
    /// # Errors
    /// The driver's error.
    fn begin(&mut self, written: Self::Written<'_>) -> Result<Option<Self::Writing>, Self::Error>;
    /// Has later signals of the present frame wait for its work.
    ///
    /// # Errors
    /// The driver's error, for people.
    fn hold(&self) -> Result<(), String>;
    /// Begins the signals of frames that were held before.
    ///
    /// # Errors
    /// The driver's error.
    fn begin_earlier(&mut self) -> Result<(), Self::Error>;
    /// Signals all readers of the present frame behind its work.
    ///
    /// # Errors
    /// The driver's error, for people.
    fn flush(&mut self, writing: Option<&mut Self::Writing>) -> Result<(), String>;
    /// Returns whether the work that writes a frame is under way.
    fn is_writing(&self, writing: &Self::Writing) -> bool;
    /// Something that follows the work that writes the present frame.
    fn present(&self) -> Option<Self::Present>;
}

/// The fence of one reader.
pub trait Fence: Debug + Send + 'static {
    /// The signals of one frame to all readers.
    type Signals;
    /// Its kind.
    fn kind(&self) -> FenceKind;
    /// Signals the ready fence behind the work that writes the frame.
    ///
    /// # Errors
    /// The end of the reader.
    fn signal_ready(
        &mut self,
        entry: EntryIndex,
        sequence: Sequence,
        signals: &mut Self::Signals,
    ) -> Result<(), Ending>;
    /// Returns whether the reader's work on a frame that it has released is done.
    ///
    /// # Errors
    /// The end of the reader.
    fn is_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<bool, Ending>;
}

/// Makes downloads.
pub trait Copier {
    /// A slot.
    type Slot;
    /// Something that follows the work that writes the frame.
    type Written;
    /// The end of a copy.
    type Done: Debug;
    /// The driver's error.
    type Error;
    /// Starts a copy of the frame of this descriptor behind the work that writes it. Both slots are
    /// held until it is done.
    ///
    /// # Errors
    /// The reason, for people.
    fn start(
        &mut self,
        written: Self::Written,
        from: &Self::Slot,
        to: &Self::Slot,
        frame: &Descriptor,
    ) -> Result<Self::Done, String>;
    /// Returns the end of a copy, if it has ended: the reason why it failed, if it did.
    ///
    /// # Errors
    /// The driver's error, if the GPU has failed.
    fn ended(&self, done: &Self::Done) -> Result<Option<Result<(), String>>, Self::Error>;
    /// Takes back what showed the end of a copy.
    fn recycle(&mut self, done: Self::Done);
}

/// GPU work.
pub trait Work: Debug {
    /// Returns whether it is done, or has failed.
    fn is_done(&self) -> bool;
}

/// A format of raw video.
pub trait Video: Debug + Sized {
    /// Returns the format of caps, if its planes are known.
    fn of_caps(caps: &str) -> Option<Self>;
    /// Returns the duration of a frame in ns, if the caps tell it.
    fn period_ns(caps: &str) -> Option<u64>;
    /// Returns the first of these planes whose rows overlap.
    fn overlapping_plane(&self, planes: &[Plane]) -> Option<usize>;
}
