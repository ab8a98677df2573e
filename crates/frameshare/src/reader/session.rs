// SPDX-License-Identifier: MIT OR Apache-2.0

//! State shared by outstanding frames and their connection; signals and publishes releases.

use super::waits::Waits;
use crate::{
    fence::{FenceError, FenceFault, none::NoFence},
    gpu::{self, DeferredDrop},
    queue::Consumer,
    sys::{Interrupt, ProcessLock, Socket, Wake, Words},
};
use frameshare_cuda::{context::Context, event::Event, stream::Stream};
use frameshare_protocol::{
    FenceKind,
    message::{Reason, ToExporter},
};
use std::{
    slice,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// The part of a session that frames need.
#[derive(Debug)]
pub(super) struct Session {
    pub id: u64,
    pub consumer: Consumer<Words>,
    pub held: AtomicU32,
    // Fields are dropped in this order: work on the stream refers to the fence's events.
    gpu: OnceLock<Gpu>,
    /// Waits of host frames, until the exporter uses a GPU.
    first_waits: Arc<Waits>,
    waits: OnceLock<Arc<Waits>>,
    /// A fence could not be signaled: no held frame can ever be released.
    failure: OnceLock<String>,
    /// The reason in the last close message.
    said: Mutex<Option<Reason>>,
    watch: OnceLock<Watch>,
    // Dropped last: on the hang-up the exporter destroys the events that were opened here, and an
    // opened event is undefined after that.
    pub wake: Arc<Wake>,
    pub socket: Arc<Socket>,
    /// Shows the exporter that this process lives, while frames are held.
    life: Option<ProcessLock>,
}

/// Connection to the thread that watches the exporter.
#[derive(Debug)]
pub(super) struct Watch {
    /// Set when the session has ended.
    pub over: Interrupt,
    /// Its pending teardown from then on.
    pub leaving: Arc<Mutex<Option<DeferredDrop>>>,
}

/// GPU resources that signal releases.
#[derive(Debug)]
struct Gpu {
    context: Arc<Context>,
    lane: Mutex<Lane>,
    /// Deferred-release stream, for the thread below, which may wait while it holds the lock: other
    /// threads release meanwhile.
    late_lane: Mutex<Lane>,
    /// Channel to the thread for deferred releases, once there is one.
    late: Mutex<Option<Sender<Late>>>,
}

/// A release stream: the streams that read frames never touch shared state.
#[derive(Debug)]
struct Lane {
    /// Recorded behind all work of the context, on every stream.
    read: Event,
    stream: Stream,
}

/// A release that could not be signaled on the thread that dropped the frame.
struct Late {
    session: Arc<Session>,
    entry: usize,
    sequence: u64,
    /// Streams of other contexts that the frame was read on.
    used: Vec<Stream>,
}

impl Session {
    pub fn new(
        id: u64,
        consumer: Consumer<Words>,
        wake: Wake,
        socket: Socket,
        waits: Waits,
    ) -> frameshare_cuda::Result<Self> {
        let session = Self {
            id,
            consumer,
            wake: Arc::new(wake),
            socket: Arc::new(socket),
            life: None,
            first_waits: Arc::new(Waits::new(Box::new(NoFence), None)),
            waits: OnceLock::new(),
            held: AtomicU32::new(0),
            gpu: OnceLock::new(),
            failure: OnceLock::new(),
            said: Mutex::default(),
            watch: OnceLock::new(),
        };
        session.use_gpu(waits)?;
        Ok(session)
    }

    /// Sets the fence of the session, once.
    pub fn use_gpu(&self, waits: Waits) -> frameshare_cuda::Result<()> {
        if let Some(context) = waits.gpu.clone().filter(|_| waits.fence.kind() != FenceKind::None) {
            let (lane, late_lane) = (Lane::new(&context)?, Lane::new(&context)?);
            let _ = self.gpu.set(Gpu { context, lane, late_lane, late: Mutex::new(None) });
        }
        if waits.fence.kind() != FenceKind::None {
            let _ = self.waits.set(Arc::new(waits));
        }
        Ok(())
    }

    /// The fence, and the waits for it.
    pub fn waits(&self) -> &Arc<Waits> {
        self.waits.get().unwrap_or(&self.first_waits)
    }

    /// Holds the lock that shows the exporter that this process lives, until the session ends.
    pub fn with_life(mut self, life: ProcessLock) -> Self {
        self.life = Some(life);
        self
    }

    /// Registers `watch`, to be notified of the end of the session.
    pub fn watched_by(&self, watch: Watch) {
        let _ = self.watch.set(watch);
    }

    /// The context that frames are read in.
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.gpu.get().map(|gpu| &gpu.context)
    }

    /// Ends a lease: on a fenced frame after all GPU work of the context on the frame, and the work
    /// on the streams that the application named.
    pub fn release(self: &Arc<Self>, entry: usize, sequence: u64, is_fenced: bool, used: Vec<Stream>) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        let Some(gpu) = self.gpu.get().filter(|_| is_fenced) else {
            return self.end_lease(entry, sequence);
        };
        // Made current once for all the calls; a failure here repeats below, where it is handled.
        let _current = gpu.context.push();
        let signalled = self.signal(&gpu.lane, entry, sequence, |lane| {
            lane.read.record_context()?;
            lane.stream.wait(&lane.read)?;
            lane.wait_for(&used)
        });
        match signalled {
            Ok(()) => self.end_lease(entry, sequence),
            Err(error) if may_be_late(&error) => {
                self.release_late(gpu, Late { session: self.clone(), entry, sequence, used });
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Ends a lease after the work queued on one stream so far. On failure the lease stays open.
    pub fn release_on(&self, entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        match self.gpu.get() {
            // Unmapping waits for the work of the reader's own context only, which therefore has to
            // wait for this stream.
            Some(gpu) if stream.context().as_raw() != gpu.context.as_raw() => {
                self.signal(&gpu.lane, entry, sequence, |lane| lane.wait_for(slice::from_ref(stream)))?;
            }
            Some(_) => self.waits().fence.signal_released(entry, sequence, stream)?,
            None => {}
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.end_lease(entry, sequence);
        Ok(())
    }

    /// Signals a release on a stream that waits for the work before it.
    fn signal(
        &self,
        lane: &Mutex<Lane>,
        entry: usize,
        sequence: u64,
        wait: impl FnOnce(&Lane) -> frameshare_cuda::Result<()>,
    ) -> Result<(), FenceError> {
        let lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
        wait(&lane).map_err(|error| FenceError { kind: self.waits().fence.kind(), cause: error.into() })?;
        self.waits().fence.signal_released(entry, sequence, &lane.stream)
    }

    fn end_lease(&self, entry: usize, sequence: u64) {
        if self.consumer.release(entry, sequence) {
            self.wake.ring();
        }
    }

    /// Defers a release to a thread that may wait: late, never wrong.
    fn release_late(&self, gpu: &Gpu, late: Late) {
        let mut sender = gpu.late.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            let (new, receiver) = channel();
            if thread::Builder::new()
                .name("frameshare-late".into())
                .spawn(move || release_when_possible(&receiver))
                .is_ok()
            {
                *sender = Some(new);
            }
        }
        // Without the thread the lease stays open, and the exporter reclaims the slot at the end of
        // the connection.
        if let Some(sender) = &*sender {
            let _ = sender.send(late);
        }
    }

    /// Records that nothing can be released any more, and reports it to the exporter, which need
    /// not wait for a deadline.
    fn fail(&self, error: &FenceError) {
        let text = error.to_string();
        self.say_goodbye(Reason::Failed, &text);
        let _ = self.failure.set(text);
    }

    /// Sends the close message (`Goodbye`). `Stopped` may be followed by `Failed`, never the
    /// reverse.
    pub fn say_goodbye(&self, reason: Reason, text: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != Some(Reason::Failed)
            && let Ok(packet) = (ToExporter::Goodbye { reason, text: text.into() }).encode()
        {
            *said = Some(reason);
            // It fails if the exporter is dead, which needs no message.
            let _ = self.socket.send(&packet, &[]);
        }
    }

    /// The reason why nothing can be released any more, if there is one.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

impl Drop for Session {
    /// Hangs up when the work that reads frames is done: until then the exporter waits for release
    /// fences.
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            *watch.leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(DeferredDrop::new());
            watch.over.set();
        }
        if let Some(gpu) = self.gpu.take() {
            let context = gpu.context.clone();
            let connected = (gpu, self.waits().clone(), self.wake.clone(), self.socket.clone());
            gpu::drop_when_idle(&context, connected);
        }
    }
}

impl Lane {
    fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Mutex<Self>> {
        Ok(Mutex::new(Self { read: Event::new(gpu)?, stream: Stream::new(gpu)? }))
    }

    /// Makes the stream wait for the work queued on other streams so far.
    fn wait_for(&self, others: &[Stream]) -> frameshare_cuda::Result<()> {
        others.iter().try_for_each(|other| {
            let read = Event::new(other.context())?;
            read.record(other)?;
            self.stream.wait(&read)
        })
    }
}

/// Returns whether a release only has to wait: for the end of a stream capture, or of a host
/// callback.
fn may_be_late(error: &FenceError) -> bool {
    match &error.cause {
        FenceFault::Driver(frameshare_cuda::Error::Missing { .. }) => true,
        FenceFault::Driver(error) => error.is_deferrable(),
        FenceFault::Violation { .. } | FenceFault::WentBack { .. } | FenceFault::NoGpu => false,
    }
}

/// Main loop of the thread for deferred releases; ends with the session.
fn release_when_possible(late: &Receiver<Late>) {
    while let Ok(Late { session, entry, sequence, used }) = late.recv() {
        let Some(gpu) = session.gpu.get() else { continue };
        loop {
            let signalled = session.signal(&gpu.late_lane, entry, sequence, |lane| {
                lane.read.record_context_blocking(&lane.stream)?;
                lane.stream.wait(&lane.read)?;
                lane.wait_for(&used)
            });
            match signalled {
                Ok(()) => break session.end_lease(entry, sequence),
                Err(error) if may_be_late(&error) => thread::sleep(Duration::from_millis(1)),
                Err(error) => break session.fail(&error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fence::{FenceState, ReaderFence, Rescue, none::NoFence},
        queue::Producer,
        sys::{Listener, Mapping, Received, Timeout, UntrustedFd, connect, is_ready, memfd, wait},
    };
    use frameshare_protocol::page::{claims_size, queue_size};
    use rustix::event::{PollFd, PollFlags};
    use std::sync::atomic::AtomicBool;

    /// Fence that takes a while to drop.
    #[derive(Debug)]
    struct Slow(Arc<AtomicBool>);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(30));
            self.0.store(true, Ordering::SeqCst);
        }
    }

    impl ReaderFence for Slow {
        fn kind(&self) -> FenceKind {
            FenceKind::None
        }

        fn poll_ready(&self, entry: usize, sequence: u64) -> Result<FenceState, FenceError> {
            NoFence.poll_ready(entry, sequence)
        }

        fn wait_ready(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn signal_released(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn check(&self) -> Result<(), FenceError> {
            Ok(())
        }

        fn rescue(&self) -> Rescue {
            NoFence.rescue()
        }
    }

    /// A session with this fence, and the exporter's ends of its sockets.
    fn connected(fence: Box<dyn ReaderFence>) -> (Session, Socket, UntrustedFd) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let socket = connect(&path).unwrap();
        let theirs = listener.accept().unwrap().unwrap();
        let (wake, their_wake) = Wake::pair(0).unwrap();
        let page =
            |size: usize| Words::from(Mapping::writable(memfd("test", size as u64).unwrap(), size).unwrap());
        let (queue, claims) = (page(queue_size(1)), page(claims_size(1)));
        Producer::new(queue.clone(), claims.clone(), 1, 1);
        let consumer = Consumer::new(queue, claims, 1).unwrap();
        let session = Session::new(1, consumer, wake, socket, Waits::new(fence, None)).unwrap();
        (session, theirs, their_wake)
    }

    #[test]
    fn failed_close_follows_stopped_once() {
        let (session, theirs, _wake) = connected(Box::new(NoFence));
        let error = FenceError { kind: FenceKind::None, cause: FenceFault::NoGpu };
        session.say_goodbye(Reason::Stopped, "it has stopped");
        session.fail(&error);
        session.fail(&error);
        session.say_goodbye(Reason::Stopped, "it has stopped");
        drop(session);
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
        let (session, theirs, their_wake) = connected(Box::new(Slow(is_gone.clone())));
        let leaves = thread::spawn(move || drop(session));
        let mut fds = [PollFd::new(&theirs, PollFlags::IN), PollFd::new(&their_wake, PollFlags::IN)];
        wait(&mut fds, Timeout::Never).unwrap();
        assert!(
            fds.iter().any(is_ready) && is_gone.load(Ordering::SeqCst),
            "the exporter hears of it too early"
        );
        leaves.join().unwrap();
    }
}
