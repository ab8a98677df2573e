// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that create, query, capture and destroy streams.

use crate::api::{Answer, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Out};
use crate::context::{self, submit};
use crate::queue::{HostFunction, Kind, Op, Stream, handles};
use crate::{capture, device};
use std::ffi::c_void;
use std::sync::Arc;

/// Handles of the NULL stream and of the per-thread default stream.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// Returns the stream with this handle, for 0 the NULL stream of the current context, for 2 the
/// calling thread's. As with the
/// real driver, fails if no context is current, or if the stream's context has failed or is
/// destroyed.
pub fn find(handle: usize) -> Result<Arc<Stream>, Code> {
    let context = context::current()?;
    let stream = match handle {
        0 | LEGACY => context.streams().null.clone(),
        PER_THREAD => context.per_thread(),
        _ => handles::find(handle).ok_or(INVALID_HANDLE)?,
    };
    stream.state.check()?;
    Ok(stream)
}

fn create(out: Out<usize>, flags: u32, priority: i32) -> Answer {
    out.check()?;
    let context = context::current()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    context.wait_for_frees();
    let kind = if flags == 1 { Kind::NonBlocking } else { Kind::Blocking };
    let handle = handles::take();
    let (priority, state) = (priority.clamp(-5, 0), context.state.clone());
    let stream = Stream::new(handle, kind, flags, priority, context.handle, state);
    context.streams().own.push(stream.clone());
    handles::add(stream);
    out.set(handle)
}

/// Blocks until all work in the stream is complete. For the NULL stream that includes the work of
/// blocking streams.
fn synchronize(stream: &Arc<Stream>) -> Answer {
    let end = match stream.kind {
        Kind::Null => submit(stream, Op::Marker, Vec::new(), Vec::new())?,
        _ => stream.end(),
    };
    end.wait(|| false);
    stream.state.check()
}

crate::export! {
    fn cuStreamCreate(out: Out<usize>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<usize>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    // Does not block: queued work continues, and a blocked stream can be destroyed.
    fn cuStreamDestroy_v2(handle: usize) {
        context::current()?.wait_for_frees();
        let stream = handles::remove(handle).ok_or(INVALID_HANDLE)?;
        if let Ok(context) = context::find(stream.context) {
            context.streams().destroy(handle);
        }
        handles::release(handle);
        stream.close();
        Ok(())
    }

    fn cuStreamSynchronize(handle: usize) {
        synchronize(&find(handle)?)
    }

    fn cuStreamQuery(handle: usize) {
        let stream = find(handle)?;
        let idle = match stream.kind {
            Kind::Null => {
                let context = context::current()?;
                let streams = context.streams();
                let blocking = streams.all().filter(|other| other.kind == Kind::Blocking);
                streams.null.end().observe() && blocking.into_iter().all(|other| other.end().observe())
            }
            _ => stream.end().observe(),
        };
        // Checked again after the queue: a stream is also idle because its context has just failed.
        stream.state.check()?;
        if idle { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamGetCtx(handle: usize, out: Out<usize>) {
        let stream = find(handle)?;
        out.set(stream.context)
    }

    fn cuStreamGetCtx_v2(handle: usize, out: Out<usize>, green: Out<usize>) {
        let stream = find(handle)?;
        green.set_if_wanted(0);
        out.set(stream.context)
    }

    fn cuStreamGetFlags(handle: usize, out: Out<u32>) {
        out.set(find(handle)?.flags)
    }

    fn cuStreamGetPriority(handle: usize, out: Out<i32>) {
        out.set(find(handle)?.priority)
    }

    fn cuStreamGetId(handle: usize, out: Out<u64>) {
        out.set(find(handle)?.handle as u64)
    }

    fn cuStreamGetDevice(handle: usize, out: Out<i32>) {
        let device = find(handle)?.state.device;
        out.set(device::ordinal(device).ok_or(INVALID_HANDLE)?)
    }

    fn cuLaunchHostFunc(handle: usize, call: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let (stream, call) = (find(handle)?, call.ok_or(INVALID_VALUE)?);
        context::current()?.wait_for_frees();
        let function = HostFunction::Plain { call, data: data as usize };
        submit(&stream, Op::Host(function), Vec::new(), Vec::new())?;
        Ok(())
    }

    fn cuStreamAddCallback(
        handle: usize,
        call: Option<extern "C" fn(usize, i32, *mut c_void)>,
        data: *mut c_void,
        _flags: u32,
    ) {
        let (stream, call) = (find(handle)?, call.ok_or(INVALID_VALUE)?);
        let function = HostFunction::Callback { call, stream: handle, data: data as usize };
        submit(&stream, Op::Host(function), Vec::new(), Vec::new())?;
        Ok(())
    }

    fn cuStreamAttachMemAsync(_stream: usize, _address: u64, _len: usize, _flags: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuStreamBeginCapture_v2(handle: usize, mode: i32) {
        capture::begin(find(handle)?, mode)
    }

    fn cuStreamEndCapture(handle: usize, graph: Out<usize>) {
        graph.check()?;
        graph.set(0)?;
        capture::end(&find(handle)?)?;
        graph.set(crate::handles::unused())
    }

    fn cuGraphDestroy(_graph: usize) {
        Ok(())
    }

    fn cuStreamIsCapturing(handle: usize, status: Out<i32>) {
        status.set(capture::status(&find(handle)?)?)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        mode.set(capture::exchange_mode(mode.get()?)?)
    }
}
