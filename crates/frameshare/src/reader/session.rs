//! What the frames that are out share with their connection: the way back to the exporter.

use super::waits::Waits;
use crate::{
    fence::{FenceError, FenceFault, none::NoFence},
    idle::{self, InHand},
    queue::Consumer,
    sys::{Interrupt, SignOfLife, Socket, Wake, Words},
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

/// One session, as its frames need it.
#[derive(Debug)]
pub(super) struct Session {
    pub id: u64,
    pub consumer: Consumer<Words>,
    pub held: AtomicU32,
    // Fields are dropped in this order: work on the stream refers to the fence's events.
    gpu: OnceLock<Gpu>,
    /// Those of host frames, until the exporter uses a GPU.
    first_waits: Arc<Waits>,
    waits: OnceLock<Arc<Waits>>,
    /// A fence could not be signalled: nothing that is held will ever be released.
    failure: OnceLock<String>,
    /// The last goodbye.
    said: Mutex<Option<Reason>>,
    watch: OnceLock<Watch>,
    // Last: when they hang up, the exporter destroys the events that were opened here, and what an opened one does then is
    // undefined.
    pub wake: Arc<Wake>,
    pub socket: Arc<Socket>,
    /// Tells the exporter that this process lives, as long as frames are held.
    life: Option<SignOfLife>,
}

/// Leads to the thread that watches the exporter.
#[derive(Debug)]
pub(super) struct Watch {
    /// Set when the session is over.
    pub over: Interrupt,
    /// What it has in hand from then on.
    pub leaving: Arc<Mutex<Option<InHand>>>,
}

/// What releases are signalled with.
#[derive(Debug)]
struct Gpu {
    context: Arc<Context>,
    lane: Mutex<Lane>,
    /// For the thread below, which may wait while it has it: others release meanwhile.
    late_lane: Mutex<Lane>,
    /// Leads to the thread that does what this one may not, once there is one.
    late: Mutex<Option<Sender<Late>>>,
}

/// A stream of our own: the streams that read frames never touch anything that is shared.
#[derive(Debug)]
struct Lane {
    /// Stands for all work of the context, on whatever stream.
    read: Event,
    stream: Stream,
}

/// A release that could not be signalled where the frame was let go.
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

    /// Keeps this fence from now on, once.
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

    /// The fence, and who waits for it.
    pub fn waits(&self) -> &Arc<Waits> {
        self.waits.get().unwrap_or(&self.first_waits)
    }

    /// Holds the lock by which the exporter sees that this process lives, to the end of the session.
    pub fn with_life(mut self, life: SignOfLife) -> Self {
        self.life = Some(life);
        self
    }

    /// Has `watch` told when the session is over.
    pub fn watched_by(&self, watch: Watch) {
        let _ = self.watch.set(watch);
    }

    /// The context that frames are read in.
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.gpu.get().map(|gpu| &gpu.context)
    }

    /// Ends a lease: on a fenced frame once all GPU work of the context on the frame is done, and that of the streams that
    /// the app named.
    pub fn release(self: &Arc<Self>, entry: usize, sequence: u64, is_fenced: bool, used: Vec<Stream>) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        let Some(gpu) = self.gpu.get().filter(|_| is_fenced) else {
            return self.end_lease(entry, sequence);
        };
        // Made current once for all the calls; what fails here fails below as well, where it is dealt with.
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

    /// Ends a lease once the work put on one stream so far is done. Where that fails the lease stays open.
    pub fn release_on(&self, entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        match self.gpu.get() {
            // What is to be unmapped waits for the work of the reader's own context alone: so that has to wait for this.
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

    /// Signals a release on a stream that was made to wait for what has to be done before.
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

    /// Leaves a release to a thread that may wait: late, never wrong.
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
        // Without the thread the lease stays open, and the exporter takes the slot back with the connection.
        if let Some(sender) = &*sender {
            let _ = sender.send(late);
        }
    }

    /// Nothing can be released any more: the exporter is told, and need not wait for a deadline.
    fn fail(&self, error: &FenceError) {
        let text = error.to_string();
        self.say_goodbye(Reason::Failed, &text);
        let _ = self.failure.set(text);
    }

    /// Tells the exporter that no more frames are wanted. Who has left may still fail; who has failed has nothing to add.
    pub fn say_goodbye(&self, reason: Reason, text: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != Some(Reason::Failed)
            && let Ok(packet) = (ToExporter::Goodbye { reason, text: text.into() }).encode()
        {
            *said = Some(reason);
            // An exporter that is gone does not need to know.
            let _ = self.socket.send(&packet, &[]);
        }
    }

    /// Why nothing can be released any more, if so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

impl Drop for Session {
    /// Hangs up when the work that reads frames is done: until then the exporter waits for the fences of what was released.
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            *watch.leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(InHand::new());
            watch.over.set();
        }
        if let Some(gpu) = self.gpu.take() {
            let context = gpu.context.clone();
            let connected = (gpu, self.waits().clone(), self.wake.clone(), self.socket.clone());
            idle::drop_when_idle(&context, connected);
        }
    }
}

impl Lane {
    fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Mutex<Self>> {
        Ok(Mutex::new(Self { read: Event::new(gpu)?, stream: Stream::new(gpu)? }))
    }

    /// Has the stream wait for what was put on others so far.
    fn wait_for(&self, others: &[Stream]) -> frameshare_cuda::Result<()> {
        others.iter().try_for_each(|other| {
            let read = Event::new(other.context())?;
            read.record(other)?;
            self.stream.wait(&read)
        })
    }
}

/// Whether a release only has to wait: for the end of a stream capture, or to be out of a host callback.
fn may_be_late(error: &FenceError) -> bool {
    match &error.cause {
        FenceFault::Driver(frameshare_cuda::Error::Missing { .. }) => true,
        FenceFault::Driver(error) => error.is_deferrable(),
        FenceFault::Violation { .. } | FenceFault::WentBack { .. } | FenceFault::NoGpu => false,
    }
}

/// The life of the thread for late releases: ends with the session.
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
        sys::{Foreign, Listener, Mapping, Received, Timeout, connect, is_ready, memfd, wait},
    };
    use frameshare_protocol::page::{claims_size, queue_size};
    use rustix::event::{PollFd, PollFlags};
    use std::sync::atomic::AtomicBool;

    /// Takes a while to go.
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

    /// A session with this fence, and the exporter's ends of what connects the two.
    fn connected(fence: Box<dyn ReaderFence>) -> (Session, Socket, Foreign) {
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
    fn who_fails_says_goodbye_once_more_and_that_is_the_last() {
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
    fn who_hangs_up_has_let_go_of_the_fence() {
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
