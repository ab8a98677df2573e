// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies and memsets.
//!
//! As with CUDA, an "asynchronous" copy from pageable host memory reads its source before it
//! returns, and one into pageable memory returns only when it is complete. Memory that is allocated
//! by the driver or registered with it is accessed in stream order. The calls without "Async" run
//! on the NULL stream. They block until they are complete, except for memsets and copies between
//! device addresses.

use crate::api::{Answer, INVALID_VALUE, In, NOT_SUPPORTED};
use crate::context::{self, submit};
use crate::stream;
use crate::work::{Part, Source, Work, span};

/// Location of one side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    Device,
    /// Determined from the address.
    Unified,
}

/// Rows at an address.
#[derive(Clone, Copy, Debug)]
struct Rows {
    side: Side,
    address: usize,
    pitch: usize,
}

impl Rows {
    fn line(side: Side, address: u64, len: usize) -> Rows {
        Rows { side, address: address as usize, pitch: len }
    }
}

/// Whether the call returns before the work is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returns {
    AtOnce,
    Done,
}

fn copy(to: Rows, from: Rows, width: usize, height: usize, stream: usize, returns: Returns) -> Answer {
    let stream = stream::find(stream)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    context::current()?.wait_for_frees();
    if to.address == 0 || from.address == 0 || (height > 1 && (to.pitch < width || from.pitch < width)) {
        return Err(INVALID_VALUE);
    }
    let seen = |rows: Rows| super::known(rows.address, span(rows.pitch, width, height));
    let (to_device, from_device) = (seen(to), seen(from));
    if (to.side == Side::Device && !to_device) || (from.side == Side::Device && !from_device) {
        return Err(INVALID_VALUE);
    }
    let source = if from_device {
        Source::At { address: from.address, device: true }
    } else if returns == Returns::AtOnce && to_device {
        Source::Staged(stage(from, width, height))
    } else {
        Source::At { address: from.address, device: false }
    };
    let from_pitch = if matches!(source, Source::Staged(_)) { width } else { from.pitch };
    let work =
        Work { to: to.address, to_pitch: to.pitch, to_device, from: source, from_pitch, width, height };
    let point = queue(&stream, work)?;
    if returns == Returns::Done || !to_device {
        point.wait(|| false);
        stream.state.check()?;
    }
    Ok(())
}

/// Returns a copy of the caller's rows, without padding.
fn stage(from: Rows, width: usize, height: usize) -> Box<[u8]> {
    let mut bytes = vec![0u8; width * height].into_boxed_slice();
    let work = Work {
        to: bytes.as_mut_ptr() as usize,
        to_pitch: width,
        to_device: false,
        from: Source::At { address: from.address, device: false },
        from_pitch: from.pitch,
        width,
        height,
    };
    work.run(Part::All);
    bytes
}

fn queue(
    stream: &std::sync::Arc<crate::queue::Stream>,
    work: Work,
) -> Result<crate::queue::Point, crate::api::Code> {
    let ranges = work.written().into_iter().chain(work.read()).collect();
    submit(stream, crate::queue::Op::Work(work), Vec::new(), ranges)
}

fn set(
    address: u64,
    pitch: usize,
    value: u32,
    size: usize,
    count: usize,
    height: usize,
    stream: usize,
) -> Answer {
    let stream = stream::find(stream)?;
    let width = count.checked_mul(size).ok_or(INVALID_VALUE)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    context::current()?.wait_for_frees();
    let address = address as usize;
    if !address.is_multiple_of(size) || (height > 1 && pitch < width) {
        return Err(INVALID_VALUE);
    }
    if !super::known(address, span(pitch, width, height)) {
        return Err(INVALID_VALUE);
    }
    // Measured: a memset of a read-only mapping is refused. A kernel, which copies stand for here,
    // fails when it runs and poisons the context.
    if super::read_only(stream.state.device, address, span(pitch, width, height)) {
        return Err(INVALID_VALUE);
    }
    let from = Source::Pattern { value, size };
    queue(
        &stream,
        Work { to: address, to_pitch: pitch, to_device: true, from, from_pitch: 0, width, height },
    )?;
    Ok(())
}

/// CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: u32,
    from_host: usize,
    from_device: u64,
    _from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: u32,
    to_host: usize,
    to_device: u64,
    _to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl Copy2d {
    fn queue(&self, stream: usize, returns: Returns) -> Answer {
        let rows = |kind, host: usize, device: u64, pitch: usize, x: usize, y: usize| {
            let (side, base) = match kind {
                1 => (Side::Host, host),
                2 => (Side::Device, device as usize),
                4 => (Side::Unified, device as usize),
                3 => return Err(NOT_SUPPORTED),
                _ => return Err(INVALID_VALUE),
            };
            // A pitch of 0 means rows without padding.
            let pitch = if pitch == 0 { self.width + x } else { pitch };
            Ok(Rows { side, address: base + y * pitch + x, pitch })
        };
        let from = rows(
            self.from_kind,
            self.from_host,
            self.from_device,
            self.from_pitch,
            self.from_x,
            self.from_y,
        )?;
        let to = rows(self.to_kind, self.to_host, self.to_device, self.to_pitch, self.to_x, self.to_y)?;
        copy(to, from, self.width, self.height, stream, returns)
    }

    /// Returns whether the synchronous call returns before the work is complete.
    fn returns(&self) -> Returns {
        if self.from_kind == 2 && self.to_kind == 2 { Returns::AtOnce } else { Returns::Done }
    }
}

crate::export! {
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize) {
        let (to, from) = (Rows::line(Side::Device, to, len), Rows::line(Side::Host, from as u64, len));
        copy(to, from, len, 1, 0, Returns::Done)
    }

    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize) {
        let (to, from) = (Rows::line(Side::Host, to as u64, len), Rows::line(Side::Device, from, len));
        copy(to, from, len, 1, 0, Returns::Done)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        let (to, from) = (Rows::line(Side::Device, to, len), Rows::line(Side::Device, from, len));
        copy(to, from, len, 1, 0, Returns::AtOnce)
    }

    fn cuMemcpy(to: u64, from: u64, len: usize) {
        let (to, from) = (Rows::line(Side::Unified, to, len), Rows::line(Side::Unified, from, len));
        copy(to, from, len, 1, 0, Returns::Done)
    }

    fn cuMemcpyPeer(to: u64, _to_context: usize, from: u64, _from_context: usize, len: usize) {
        let (to, from) = (Rows::line(Side::Device, to, len), Rows::line(Side::Device, from, len));
        copy(to, from, len, 1, 0, Returns::AtOnce)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: usize) {
        let from = Rows::line(Side::Host, from as u64, len);
        copy(Rows::line(Side::Device, to, len), from, len, 1, stream, Returns::AtOnce)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, len: usize, stream: usize) {
        let to = Rows::line(Side::Host, to as u64, len);
        copy(to, Rows::line(Side::Device, from, len), len, 1, stream, Returns::AtOnce)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        let (to, from) = (Rows::line(Side::Device, to, len), Rows::line(Side::Device, from, len));
        copy(to, from, len, 1, stream, Returns::AtOnce)
    }

    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: usize) {
        let (to, from) = (Rows::line(Side::Unified, to, len), Rows::line(Side::Unified, from, len));
        copy(to, from, len, 1, stream, Returns::AtOnce)
    }

    fn cuMemcpyPeerAsync(
        to: u64, _to_context: usize, from: u64, _from_context: usize, len: usize, stream: usize,
    ) {
        let (to, from) = (Rows::line(Side::Device, to, len), Rows::line(Side::Device, from, len));
        copy(to, from, len, 1, stream, Returns::AtOnce)
    }

    fn cuMemcpy2D_v2(arguments: In<Copy2d>) {
        let arguments = arguments.get()?;
        arguments.queue(0, arguments.returns())
    }

    fn cuMemcpy2DUnaligned_v2(arguments: In<Copy2d>) {
        let arguments = arguments.get()?;
        arguments.queue(0, arguments.returns())
    }

    fn cuMemcpy2DAsync_v2(arguments: In<Copy2d>, stream: usize) {
        arguments.get()?.queue(stream, Returns::AtOnce)
    }

    fn cuMemsetD8_v2(address: u64, value: u8, count: usize) {
        set(address, count, value.into(), 1, count, 1, 0)
    }

    fn cuMemsetD16_v2(address: u64, value: u16, count: usize) {
        set(address, 2 * count, value.into(), 2, count, 1, 0)
    }

    fn cuMemsetD32_v2(address: u64, value: u32, count: usize) {
        set(address, 4 * count, value, 4, count, 1, 0)
    }

    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: usize) {
        set(address, count, value.into(), 1, count, 1, stream)
    }

    fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: usize) {
        set(address, 2 * count, value.into(), 2, count, 1, stream)
    }

    fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: usize) {
        set(address, 4 * count, value, 4, count, 1, stream)
    }

    fn cuMemsetD2D8_v2(address: u64, pitch: usize, value: u8, width: usize, height: usize) {
        set(address, pitch, value.into(), 1, width, height, 0)
    }

    fn cuMemsetD2D16_v2(address: u64, pitch: usize, value: u16, width: usize, height: usize) {
        set(address, pitch, value.into(), 2, width, height, 0)
    }

    fn cuMemsetD2D32_v2(address: u64, pitch: usize, value: u32, width: usize, height: usize) {
        set(address, pitch, value, 4, width, height, 0)
    }

    fn cuMemsetD2D8Async(address: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize) {
        set(address, pitch, value.into(), 1, width, height, stream)
    }

    fn cuMemsetD2D16Async(
        address: u64, pitch: usize, value: u16, width: usize, height: usize, stream: usize,
    ) {
        set(address, pitch, value.into(), 2, width, height, stream)
    }

    fn cuMemsetD2D32Async(
        address: u64, pitch: usize, value: u32, width: usize, height: usize, stream: usize,
    ) {
        set(address, pitch, value, 4, width, height, stream)
    }
}
