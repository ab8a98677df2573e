// SPDX-License-Identifier: MIT OR Apache-2.0

//! Channel to the exporter: shared by a connection, its imports and its outstanding frames.
//!
//! It outlives the connection while frames are held, and hangs up when the GPU work that reads them
//! is done.

use super::{
    deferred_release::Attempt,
    release::{Reads, ReleaseStreams, Released, is_deferrable},
};
use crate::{
    fence::{FenceError, ReaderFence},
    gpu::{self, DeferredDrop},
    service::Handle,
    sys::{ProcessLock, Socket, Wake, Words},
};
use frameshare_cuda::{context::Context, event::Event};
use frameshare_protocol::{
    EntryIndex, Sequence,
    message::{Reason, ToExporter},
};
use frameshare_queue::{Consumer, LastAccess};
use std::{
    any::Any,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// The shared state of one connection.
#[derive(Debug)]
pub(in crate::reader) struct Channel {
    /// The exporter's session, from its `Welcome`.
    session: u64,
    consumer: Consumer<Words>,
    /// Number of open leases.
    held: AtomicU32,
    // Fields are dropped in this order: work on the streams refers to the fence's events.
    /// `None` until the exporter uses a GPU.
    streams: OnceLock<ReleaseStreams>,
    fence: OnceLock<Arc<dyn ReaderFence>>,
    /// A fence could not be signaled: no held frame can ever be released.
    failure: OnceLock<FenceError>,
    /// The reason in the last close message.
    closed: Mutex<Option<Reason>>,
    watcher: OnceLock<Watcher>,
    last_access: Option<LastAccess<Words>>,
    // Dropped last: on the hang-up the exporter destroys the events that were opened here, and an
    // opened event is undefined after that.
    wake: Arc<Wake>,
    socket: Arc<Socket>,
    /// Shows the exporter that this process lives, while frames are held.
    _life: Option<ProcessLock>,
}

/// The watch of the exporter for the end of GPU waits.
#[derive(Debug)]
pub(in crate::reader) struct Watcher {
    /// Set when the channel is dropped.
    closed: Arc<AtomicBool>,
    task: Handle,
    /// The watcher's pending teardown from then on.
    teardown: Teardown,
}

/// Pending teardown of a watch, which it drops last.
pub(in crate::reader) type Teardown = Arc<Mutex<Option<DeferredDrop>>>;

impl Watcher {
    /// A watch that ends at its next turn once `closed` is set.
    pub fn new(closed: Arc<AtomicBool>, task: Handle, teardown: Teardown) -> Self {
        Self { closed, task, teardown }
    }

    /// Ends the watch, and counts it as a deferred drop until it has ended.
    fn close(&self) {
        *self.teardown.lock().unwrap_or_else(PoisonError::into_inner) = Some(DeferredDrop::new());
        self.closed.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Channel {
    /// A channel for frames in host memory; `life` is the lock that shows the exporter that this
    /// process lives.
    pub fn new(
        session: u64,
        consumer: Consumer<Words>,
        wake: Wake,
        socket: Socket,
        life: Option<ProcessLock>,
    ) -> Self {
        Self {
            session,
            last_access: Some(consumer.last_access()),
            consumer,
            held: AtomicU32::new(0),
            streams: OnceLock::new(),
            fence: OnceLock::new(),
            failure: OnceLock::new(),
            closed: Mutex::default(),
            watcher: OnceLock::new(),
            wake: Arc::new(wake),
            socket: Arc::new(socket),
            _life: life,
        }
    }

    /// Sets the context that frames are read in, and their fence, once.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn use_gpu(
        &self,
        context: &Arc<Context>,
        fence: Arc<dyn ReaderFence>,
    ) -> frameshare_cuda::Result<()> {
        let _ = self.streams.set(ReleaseStreams::new(context)?);
        let _ = self.fence.set(fence);
        Ok(())
    }

    /// Registers the watcher, to be notified when the channel is dropped.
    pub fn set_watcher(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    /// The exporter's session.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The reader's half of the queue.
    pub fn consumer(&self) -> &Consumer<Words> {
        &self.consumer
    }

    /// The wake-up socket.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// The control socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The context that frames are read in; `None` until the exporter uses a GPU.
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.streams.get().map(ReleaseStreams::context)
    }

    /// The fence; `None` until the exporter uses a GPU.
    pub fn fence(&self) -> Option<&Arc<dyn ReaderFence>> {
        self.fence.get()
    }

    /// Number of open leases.
    pub fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts a lease that was taken.
    pub fn add_lease(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a lease: on a fenced frame after the GPU work that reads it. The release is deferred
    /// while a stream that reads it is being captured; `mapped` is kept until then.
    ///
    /// # Errors
    /// The failure of the fence, or the error that deferred the release.
    pub(super) fn release(
        self: &Arc<Self>,
        entry: EntryIndex,
        sequence: Sequence,
        is_fenced: bool,
        reads: Reads,
        mapped: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<(), FenceError> {
        self.held.fetch_sub(1, Ordering::Relaxed);
        let Some((streams, released)) = self.fenced(entry, sequence).filter(|_| is_fenced) else {
            self.end_lease(entry, sequence);
            return Ok(());
        };
        let signaled = streams.signal(released, &reads);
        match &signaled {
            Ok(()) => self.end_lease(entry, sequence),
            Err(error) if is_deferrable(error) => {
                let channel = Arc::clone(self);
                streams.defer(Box::new(move || {
                    let _mapped = &mapped;
                    channel.release_blocking(entry, sequence, &reads)
                }));
            }
            Err(error) => self.fail(error.clone()),
        }
        signaled
    }

    /// Ends a lease from the deferred-release thread.
    fn release_blocking(&self, entry: EntryIndex, sequence: Sequence, reads: &Reads) -> Attempt {
        let Some((streams, released)) = self.fenced(entry, sequence) else { return Attempt::Done };
        match streams.signal_blocking(released, reads) {
            Ok(()) => self.end_lease(entry, sequence),
            Err(error) if is_deferrable(&error) => return Attempt::Retry,
            Err(error) => self.fail(error),
        }
        Attempt::Done
    }

    /// Returns events behind the work that reads the frames released so far; `None` if only an
    /// event behind the whole context covers it.
    pub fn trail(&self) -> Option<Vec<Event>> {
        self.streams.get().and_then(ReleaseStreams::trail)
    }

    /// The release streams, and the publication that they release; `None` until the exporter uses a
    /// GPU.
    fn fenced(&self, entry: EntryIndex, sequence: Sequence) -> Option<(&ReleaseStreams, Released<'_>)> {
        let (streams, fence) = (self.streams.get()?, self.fence.get()?.as_ref());
        Some((streams, Released { fence, entry, sequence }))
    }

    fn end_lease(&self, entry: EntryIndex, sequence: Sequence) {
        if self.consumer.release(entry, sequence) {
            self.wake.ring();
        }
    }

    /// Records that nothing can be released any more, and reports it to the exporter, which need
    /// not wait for a deadline.
    fn fail(&self, error: FenceError) {
        self.close(Reason::Failed, &error.to_string());
        let _ = self.failure.set(error);
    }

    /// The reason why nothing can be released any more, if there is one.
    pub fn failure(&self) -> Option<&FenceError> {
        self.failure.get()
    }

    /// Sends the close message (`Goodbye`). `Stopped` may be followed by `Failed`, never the
    /// reverse.
    pub fn close(&self, reason: Reason, text: &str) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed != Some(Reason::Failed) {
            *closed = Some(reason);
            self.send(&ToExporter::Goodbye { reason, text: text.into() });
        }
    }

    /// Sends a message. Failures are ignored: the exporter is dead then, and needs no message.
    pub fn send(&self, message: &ToExporter) {
        if let Ok(packet) = message.encode() {
            let _ = self.socket.send(&packet, &[]);
        }
    }
}

impl Drop for Channel {
    /// Hangs up when the work that reads frames is done: until then the exporter waits for release
    /// fences.
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.close();
        }
        if let Some(streams) = self.streams.take() {
            let (context, trail) = (streams.context().clone(), streams.trail());
            let (fence, last_access) = (self.fence.take(), self.last_access.take());
            let connected = (streams, fence, last_access, self.wake.clone(), self.socket.clone());
            gpu::drop_behind(&context, trail, connected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fence::{FenceFault, probe::Probe},
        sys::{Listener, Mapping, Received, Timeout, UntrustedFd, connect, is_ready, memfd, wait},
    };
    use frameshare_protocol::{
        FenceKind,
        page::{claims_size, queue_size},
    };
    use frameshare_queue::Producer;
    use rustix::event::{PollFd, PollFlags};
    use std::{sync::atomic::AtomicBool, thread, time::Duration};

    /// Takes a while to drop.
    #[derive(Debug)]
    struct Slow(Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(30));
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// A channel, and the exporter's ends of its sockets.
    fn connected() -> (Channel, Socket, UntrustedFd) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let socket = connect(&path).unwrap();
        let theirs = listener.accept().unwrap().unwrap();
        let (wake, their_wake) = Wake::pair(0).unwrap();
        let page =
            |size: usize| Words::from(Mapping::writable(memfd("test", size as u64).unwrap(), size).unwrap());
        let (queue, claims) = (page(queue_size(1)), page(claims_size(1)));
        Producer::new(queue.clone(), claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(queue, claims, 1).unwrap();
        (Channel::new(1, consumer, wake, socket, None), theirs, their_wake)
    }

    #[test]
    fn failed_close_follows_stopped_once() {
        let (channel, theirs, _wake) = connected();
        let error = FenceError { kind: FenceKind::None, cause: FenceFault::NoGpu };
        channel.close(Reason::Stopped, "it has stopped");
        channel.fail(error.clone());
        channel.fail(error);
        channel.close(Reason::Stopped, "it has stopped");
        drop(channel);
        let mut reasons = Vec::new();
        while let Received::Packet(packet, _) = theirs.receive().unwrap() {
            let ToExporter::Goodbye { reason, .. } = ToExporter::decode(&packet).unwrap() else { panic!() };
            reasons.push(reason);
        }
        assert_eq!(reasons, [Reason::Stopped, Reason::Failed]);
    }

    #[test]
    fn fence_is_dropped_before_hang_up() {
        let is_gone = Arc::new(AtomicBool::new(false));
        let (channel, theirs, their_wake) = connected();
        channel.fence.set(Arc::new(Probe::new(FenceKind::Event, Slow(is_gone.clone())))).unwrap();
        let dropping = thread::spawn(move || drop(channel));
        let mut fds = [PollFd::new(&theirs, PollFlags::IN), PollFd::new(&their_wake, PollFlags::IN)];
        wait(&mut fds, Timeout::Never).unwrap();
        assert!(
            fds.iter().any(is_ready) && is_gone.load(Ordering::SeqCst),
            "the exporter sees the hang-up too early"
        );
        dropping.join().unwrap();
    }
}
