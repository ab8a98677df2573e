// SPDX-License-Identifier: MIT OR Apache-2.0

//! Contexts, the context stack of each thread, and the order between the streams of a context.

use crate::api::{
    Answer, CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Out,
    PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED,
};
use crate::context_state::ContextState;
use crate::queue::{self, Kind, Op, Point, Stream};
use crate::{capture, config, device, handles, memory, order, strict};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Maximum time for which destroying a context waits for its streams, so that a blocked stream does
/// not block the program.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A context.
pub struct Context {
    pub handle: usize,
    pub state: Arc<ContextState>,
    flags: u32,
    streams: Mutex<Streams>,
    /// Locked for writing while a call waits for all work of the context to free memory, and for
    /// reading by the calls that cannot go on meanwhile.
    freeing: RwLock<()>,
    peers: Mutex<HashSet<usize>>,
}

/// The streams of a context. The lock on this struct orders their submissions.
pub struct Streams {
    pub null: Arc<Stream>,
    /// Per-thread default streams, also those of threads that have ended.
    per_thread: HashMap<ThreadId, Arc<Stream>>,
    /// For ordered work of the driver itself, such as a context-wide record of an interprocess
    /// event.
    pub internal: Arc<Stream>,
    pub own: Vec<Arc<Stream>>,
    /// Destroyed streams, until their work is complete. In a trace they stay, since a wait for the
    /// context is what tells the program that their work was complete.
    ending: Vec<Arc<Stream>>,
}

impl Streams {
    pub fn all(&self) -> impl Iterator<Item = &Arc<Stream>> {
        [&self.null].into_iter().chain(self.per_thread.values()).chain(&self.own).chain(&self.ending)
    }

    /// Removes a stream that is destroyed. Its work still counts as work of the context (measured
    /// on an H200, driver 580).
    pub fn destroy(&mut self, handle: usize) {
        let destroyed = self.own.extract_if(.., |stream| stream.handle == handle);
        self.ending.extend(destroyed);
        self.ending.retain(|stream| order::is_on() || !stream.is_idle());
    }
}

static CONTEXTS: RwLock<Option<HashMap<usize, Arc<Context>>>> = RwLock::new(None);
/// Handles of destroyed contexts, which are not used again here.
static DESTROYED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
/// Primary contexts by device, with their use counts.
static PRIMARY: Mutex<Option<HashMap<u32, (usize, usize)>>> = Mutex::new(None);

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the context with this handle, even if it has failed.
pub fn find(handle: usize) -> Result<Arc<Context>, Code> {
    let contexts = CONTEXTS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    contexts.as_ref().and_then(|contexts| contexts.get(&handle)).cloned().ok_or(INVALID_CONTEXT)
}

/// As [`find`], for a call that makes the context current. With a destroyed one, driver 580 answers
/// CUDA_SUCCESS and corrupts the program's memory (measured on an H200).
fn find_to_push(handle: usize) -> Result<Arc<Context>, Code> {
    let destroyed = DESTROYED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if destroyed.contains(&handle) {
        strict::violation("a destroyed context is made current: the driver corrupts memory");
    }
    find(handle)
}

/// Returns the current context, even if it has failed.
fn top() -> Result<Arc<Context>, Code> {
    device::ready()?;
    match STACK.with_borrow(|stack| stack.last().copied()) {
        None | Some(0) => Err(INVALID_CONTEXT),
        Some(handle) => find(handle).map_err(|_| CONTEXT_IS_DESTROYED),
    }
}

/// Returns the current context. Fails if there is none, or with the sticky error of the context.
pub fn current() -> Result<Arc<Context>, Code> {
    let context = top()?;
    context.state.check()?;
    Ok(context)
}

/// Returns the context with this handle, unless it has a sticky error or is destroyed.
pub fn alive(handle: usize) -> Result<Arc<Context>, Code> {
    let context = find(handle)?;
    context.state.check()?;
    Ok(context)
}

/// Creates a stream that has no handle of its own.
fn default_stream(kind: Kind, context: usize, state: &Arc<ContextState>) -> Arc<Stream> {
    Stream::new(0, kind, 0, 0, context, state.clone())
}

impl Context {
    fn create(device: u32, flags: u32) -> Arc<Context> {
        let state = Arc::new(ContextState::new(device));
        let handle = handles::unused();
        let stream = |kind| default_stream(kind, handle, &state);
        let context = Arc::new(Context {
            handle,
            flags,
            streams: Mutex::new(Streams {
                null: stream(Kind::Null),
                per_thread: HashMap::new(),
                internal: stream(Kind::NonBlocking),
                own: Vec::new(),
                ending: Vec::new(),
            }),
            freeing: RwLock::new(()),
            peers: Mutex::new(HashSet::new()),
            state,
        });
        let mut contexts = CONTEXTS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        contexts.get_or_insert_default().insert(context.handle, context.clone());
        context
    }

    /// Returns the per-thread default stream of the calling thread.
    pub fn per_thread(&self) -> Arc<Stream> {
        let mut streams = self.streams();
        let new = || default_stream(Kind::Blocking, self.handle, &self.state);
        streams.per_thread.entry(thread::current().id()).or_insert_with(new).clone()
    }

    pub fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the current ends of all streams of the context.
    pub fn ends(&self) -> Vec<Point> {
        self.streams().all().map(Stream::end).collect()
    }

    /// Blocks until all work of the context is complete, destroyed streams included, and holds up
    /// other threads in [`Self::wait_for_frees`]: so does the real driver when it frees or
    /// unregisters memory (measured on an H200, driver 580).
    pub fn wait_to_free(&self) {
        let _freeing = self.freeing.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for point in self.ends() {
            point.wait(|| self.state.is_unusable());
        }
    }

    /// Blocks while another thread is in [`Self::wait_to_free`]: most calls do so that create, end
    /// or queue something (measured on an H200, driver 580).
    pub fn wait_for_frees(&self) {
        drop(self.freeing.read().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn destroy(&self) {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        for point in self.ends() {
            point.wait(|| Instant::now() > deadline || self.state.check().is_err());
        }
        self.state.destroy();
        {
            let mut contexts = CONTEXTS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            contexts.get_or_insert_default().remove(&self.handle);
        }
        DESTROYED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(self.handle);
        let mut streams = self.streams();
        for stream in streams.own.drain(..) {
            queue::handles::remove(stream.handle);
            queue::handles::release(stream.handle);
            stream.close();
        }
        streams.per_thread.values().chain([&streams.null, &streams.internal]).for_each(|one| one.close());
        drop(streams);
        memory::release_context(self.handle);
    }
}

/// Queues an item after `dependencies` and after the items that the kind of the stream requires.
pub fn submit(
    stream: &Arc<Stream>,
    op: Op,
    mut dependencies: Vec<Point>,
    ranges: Vec<(usize, usize)>,
) -> Result<Point, Code> {
    stream.wait_for_capacity();
    stream.state.check()?;
    capture::check_null(stream)?;
    let context = find(stream.context).map_err(|_| CONTEXT_IS_DESTROYED)?;
    let streams = context.streams();
    if capture::is_capturing(stream) {
        // Captured work would go into a graph; graphs do not run here.
        return Ok(Point { stream: stream.clone(), seq: 0 });
    }
    match stream.kind {
        Kind::Null => {
            let blocking = streams.all().filter(|other| other.kind == Kind::Blocking);
            dependencies.extend(blocking.map(Stream::end));
        }
        Kind::Blocking => dependencies.push(streams.null.end()),
        Kind::NonBlocking => {}
    }
    let point = stream.push(op, dependencies, ranges);
    drop(streams);
    point.run_ahead();
    Ok(point)
}

fn push(handle: usize) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

fn create(out: Out<usize>, flags: u32, ordinal: i32) -> Answer {
    out.check()?;
    let context = Context::create(device::physical(ordinal)?, flags);
    push(context.handle);
    out.set(context.handle)
}

fn set_primary<T>(
    ordinal: i32,
    change: impl FnOnce(&mut HashMap<u32, (usize, usize)>, u32) -> Result<T, Code>,
) -> Result<T, Code> {
    let device = device::physical(ordinal)?;
    let mut primary = PRIMARY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    change(primary.get_or_insert_default(), device)
}

crate::export! {
    fn cuCtxCreate_v2(context: Out<usize>, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(context: Out<usize>, _affinity: *const c_void, _count: i32, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<usize>, _parameters: *const c_void, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxDestroy_v2(handle: usize) {
        device::ready()?;
        find(handle)?.destroy();
        STACK.with_borrow_mut(|stack| if stack.last() == Some(&handle) { stack.pop(); });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(handle: usize) {
        device::ready()?;
        find_to_push(handle)?;
        push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<usize>) {
        device::ready()?;
        let handle = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        out.set_if_wanted(handle);
        Ok(())
    }

    fn cuCtxSetCurrent(handle: usize) {
        device::ready()?;
        if handle != 0 {
            find_to_push(handle)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if handle != 0 {
                stack.push(handle);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<usize>) {
        device::ready()?;
        out.set(STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0)))
    }

    fn cuCtxGetDevice(out: Out<i32>) {
        out.set(device::ordinal(top()?.state.device).ok_or(INVALID_DEVICE)?)
    }

    fn cuCtxGetDevice_v2(out: Out<i32>, handle: usize) {
        let context = if handle == 0 { top()? } else { find(handle)? };
        out.set(device::ordinal(context.state.device).ok_or(INVALID_DEVICE)?)
    }

    fn cuCtxGetFlags(out: Out<u32>) {
        out.set(current()?.flags)
    }

    fn cuCtxGetId(handle: usize, out: Out<u64>) {
        let context = if handle == 0 { current()? } else { find(handle)? };
        out.set(context.handle as u64)
    }

    fn cuCtxGetApiVersion(handle: usize, out: Out<u32>) {
        if handle == 0 { current()? } else { find(handle)? };
        out.set(3020)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: i32) {
        current()?;
        value.set(if limit == 0 { 1024 } else { 0 })
    }

    fn cuCtxSetLimit(_limit: i32, _value: usize) {
        current()?;
        Ok(())
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        capture::check_context(context.handle)?;
        for point in context.ends() {
            point.wait(|| false);
        }
        context.state.check()
    }

    fn cuCtxEnablePeerAccess(peer: usize, flags: u32) {
        let (context, peer) = (current()?, find(peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let (from, to) = (context.state.device, peer.state.device);
        if from == to || !device::reaches(from, to) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let mut peers = context.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if peers.insert(peer.handle) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: usize) {
        let context = current()?;
        let mut peers = context.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if peers.remove(&peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }

    fn cuDevicePrimaryCtxRetain(out: Out<usize>, device: i32) {
        out.check()?;
        let handle = set_primary(device, |primary, device| {
            let entry = primary.entry(device).or_insert_with(|| (Context::create(device, 0).handle, 0));
            entry.1 += 1;
            Ok(entry.0)
        })?;
        out.set(handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let last = set_primary(device, |primary, device| {
            let entry = primary.get_mut(&device).ok_or(INVALID_CONTEXT)?;
            entry.1 -= 1;
            Ok(if entry.1 == 0 { primary.remove(&device) } else { None })
        })?;
        if let Some((handle, _)) = last {
            find(handle)?.destroy();
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        let entry = set_primary(device, |primary, device| Ok(primary.remove(&device)))?;
        if let Some((handle, _)) = entry {
            find(handle)?.destroy();
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let is_active = set_primary(device, |primary, device| Ok(primary.contains_key(&device)))?;
        flags.set(0)?;
        active.set(is_active.into())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) {
        device::physical(device)?;
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = current()?;
        let memory = config::get().memory;
        free.set(memory.saturating_sub(memory::used(context.state.device)) as usize)?;
        total.set(memory as usize)
    }
}
