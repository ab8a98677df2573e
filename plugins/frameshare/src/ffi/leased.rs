// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leased frames in host memory as `GstMemory`.
//!
//! The memory is read-only. An element that maps it for writing gets a copy from GStreamer, which
//! asks the memory's allocator for it; the allocators here count these copies. Memory whose file is
//! known is memory of a GstFdAllocator, so that unixfdsink passes the file on. A dma-buf is memory
//! of a GstDmaBufAllocator, so that elements of devices import it.
//!
//! # Safety
//!
//! The memory owns the frame: a box in its qdata, dropped with the last reference to it and to its
//! parts, and with it the lease. All pointers into the frame are derived from that box. The
//! functions of the allocators get memories of theirs only.
#![allow(unsafe_code)]

use frameshare::reader::Frame;
use glib::{prelude::*, subclass::prelude::*, translate::*};
use gst::subclass::prelude::*;
use std::{os::fd::AsRawFd, panic::catch_unwind, ptr, sync::LazyLock};

/// A frame in host memory that GStreamer keeps.
pub(crate) trait Leased: Send + Sync + 'static {
    fn frame(&self) -> &Frame;
    /// Notes that an element had its bytes copied.
    fn note_copy(&self);
}

/// The content of a memory: the frame, and its offset in the memory.
struct Held {
    offset: usize,
    lease: Box<dyn Leased>,
}

impl Held {
    /// The address to which offsets of the memory count; none if the CPU cannot read the frame.
    fn start(&self) -> Option<*const u8> {
        let bytes = self.lease.frame().as_ptr()?.as_ptr().cast_const();
        Some(bytes.wrapping_sub(self.offset))
    }
}

static MARK: LazyLock<glib::Quark> = LazyLock::new(|| glib::Quark::from_str("frameshare-leased"));

/// Returns memory that holds a frame until it is freed; none if the frame is not in host memory.
pub(crate) fn wrap(lease: Box<dyn Leased>) -> Option<gst::Memory> {
    let frame = lease.frame();
    if frame.is_on_gpu() {
        return None;
    }
    let size = frame.len();
    let dma_buf = frame.dma_buf().map(|dma_buf| (&DMA_BUFS, dma_buf));
    let file = dma_buf.or_else(|| Some((&FILES, frame.file()?)));
    let file =
        file.and_then(|(kind, (file, offset))| Some((kind, file.as_raw_fd(), usize::try_from(offset).ok()?)));
    let (memory, offset) = match file {
        Some((kind, file, offset)) => {
            let whole = offset.checked_add(size)?;
            // SAFETY: the file is open while the frame exists, which the memory owns; it is not
            // closed with the memory. The result is a new memory of `whole` bytes, or NULL.
            let memory = unsafe {
                let memory = gst_allocators::ffi::gst_fd_allocator_alloc(
                    kind.as_ptr(),
                    file,
                    whole,
                    gst_allocators::ffi::GST_FD_MEMORY_FLAG_DONT_CLOSE,
                );
                if memory.is_null() {
                    return None;
                }
                (*memory).mini_object.flags |= gst::ffi::GST_MEMORY_FLAG_READONLY;
                (*memory).offset = offset;
                (*memory).size = size;
                memory
            };
            (memory, offset)
        }
        // SAFETY: no parent; the frame has `size` bytes.
        None => (unsafe { new_memory(ptr::null_mut(), size, 0, size) }, 0),
    };
    let held = Box::into_raw(Box::new(Held { offset, lease }));
    // SAFETY: the memory is new, and not shared yet. Its destructor drops the box, once.
    unsafe {
        gst::ffi::gst_mini_object_set_qdata(memory.cast(), MARK.into_glib(), held.cast(), Some(release));
        Some(from_glib_full(memory))
    }
}

unsafe extern "C" fn release(held: glib::ffi::gpointer) {
    // A panic in the destructor must not unwind into C.
    // SAFETY: `wrap` made the pointer from a box and gave it to one memory, which calls this once.
    let _ = catch_unwind(|| drop(unsafe { Box::from_raw(held.cast::<Held>()) }));
}

/// Returns memory of the plain allocator.
///
/// # Safety
/// `parent` must be null or a memory of this allocator, in which the range lies.
unsafe fn new_memory(
    parent: *mut gst::ffi::GstMemory,
    maxsize: usize,
    offset: usize,
    size: usize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GstMemory is plain data for which zeros are valid; gst_memory_init() fills it in. It
    // refers to the allocator and to the parent.
    unsafe {
        let memory = Box::into_raw(Box::new(std::mem::zeroed::<gst::ffi::GstMemory>()));
        let flags = gst::ffi::GST_MEMORY_FLAG_READONLY;
        gst::ffi::gst_memory_init(memory, flags, PLAIN.as_ptr().cast(), parent, maxsize, 0, offset, size);
        memory
    }
}

/// Returns the content of a memory, or of the one that it is a part of.
///
/// # Safety
/// `memory` must be a memory that lives as long as the result.
unsafe fn held<'a>(memory: *mut gst::ffi::GstMemory) -> Option<&'a Held> {
    // SAFETY: parents live as long as their parts. Only `wrap` sets the mark.
    unsafe {
        let mut root = memory;
        while !(*root).parent.is_null() {
            root = (*root).parent;
        }
        gst::ffi::gst_mini_object_get_qdata(root.cast(), MARK.into_glib()).cast::<Held>().as_ref()
    }
}

unsafe extern "C" fn map(
    memory: *mut gst::ffi::GstMemory,
    _size: usize,
    flags: gst::ffi::GstMapFlags,
) -> glib::ffi::gpointer {
    // SAFETY: GStreamer maps a memory that it holds.
    let held = unsafe { held(memory) }.filter(|_| flags & gst::ffi::GST_MAP_WRITE == 0);
    held.and_then(Held::start).map_or(ptr::null_mut(), |start| start.cast_mut().cast())
}

unsafe extern "C" fn unmap(_memory: *mut gst::ffi::GstMemory) {}

/// Copies a part of a frame to memory of GStreamer's own.
unsafe extern "C" fn copy(
    memory: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer copies a memory that it holds. The range is checked against the memory's
    // own; the new memory has as many bytes, and is not shared yet.
    unsafe {
        let (whole, inside) = ((*memory).maxsize, (*memory).offset);
        let size = usize::try_from(size).unwrap_or((*memory).size.saturating_sub(offset.max(0) as usize));
        let begin = inside.checked_add_signed(offset);
        let range = begin.filter(|begin| begin.checked_add(size).is_some_and(|end| end <= whole));
        let (Some(held), Some(begin)) = (held(memory), range) else { return ptr::null_mut() };
        let Some(start) = held.start() else { return ptr::null_mut() };
        let copy = gst::ffi::gst_allocator_alloc(ptr::null_mut(), size, ptr::null_mut());
        let mut info = std::mem::zeroed::<gst::ffi::GstMapInfo>();
        if copy.is_null()
            || gst::ffi::gst_memory_map(copy, &mut info, gst::ffi::GST_MAP_WRITE) == glib::ffi::GFALSE
        {
            return copy;
        }
        ptr::copy_nonoverlapping(start.wrapping_add(begin), info.data, size);
        gst::ffi::gst_memory_unmap(copy, &mut info);
        let _ = catch_unwind(std::panic::AssertUnwindSafe(|| held.lease.note_copy()));
        copy
    }
}

unsafe extern "C" fn share(
    memory: *mut gst::ffi::GstMemory,
    offset: isize,
    size: isize,
) -> *mut gst::ffi::GstMemory {
    // SAFETY: GStreamer shares a memory that it holds, which becomes a parent or has one.
    unsafe {
        let parent = if (*memory).parent.is_null() { memory } else { (*memory).parent };
        let size = usize::try_from(size).unwrap_or((*memory).size.saturating_sub(offset.max(0) as usize));
        let Some(begin) = (*memory).offset.checked_add_signed(offset) else { return ptr::null_mut() };
        match begin.checked_add(size) {
            Some(end) if end <= (*memory).maxsize => new_memory(parent, (*memory).maxsize, begin, size),
            _ => ptr::null_mut(),
        }
    }
}

/// Allocator of frames without a file.
#[derive(Default)]
pub struct LeasedAllocator;

#[glib::object_subclass]
impl ObjectSubclass for LeasedAllocator {
    const NAME: &'static str = "GstFrameshareAllocator";
    type Type = Leases;
    type ParentType = gst::Allocator;
}

glib::wrapper! {
    /// Allocator of frames without a file.
    pub struct Leases(ObjectSubclass<LeasedAllocator>) @extends gst::Allocator, gst::Object;
}

impl ObjectImpl for LeasedAllocator {
    fn constructed(&self) {
        self.parent_constructed();
        let allocator = self.obj().as_ptr().cast::<gst::ffi::GstAllocator>();
        // SAFETY: the allocator is being made, and not shared yet. The functions stay valid.
        unsafe {
            (*allocator).mem_type = c"FrameshareMemory".as_ptr();
            (*allocator).mem_share = Some(share);
            set_common(allocator);
            (*allocator).object.flags |= gst::ffi::GST_ALLOCATOR_FLAG_CUSTOM_ALLOC;
        }
    }
}

impl GstObjectImpl for LeasedAllocator {}

// SAFETY: it allocates nothing by itself, and frees the memories that `new_memory` made.
unsafe impl AllocatorImpl for LeasedAllocator {
    unsafe fn alloc(&self, _size: usize, _params: &gst::AllocationParams) -> *mut gst::ffi::GstMemory {
        ptr::null_mut()
    }

    unsafe fn free(&self, memory: *mut gst::ffi::GstMemory) {
        // SAFETY: made from a box by `new_memory`; GStreamer frees it once.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// Sets what all allocators have in common: their functions, and that they live as long as the
/// process, which GStreamer's tracer of leaks need not report.
///
/// # Safety
/// `allocator` must be one that is not shared yet.
unsafe fn set_common(allocator: *mut gst::ffi::GstAllocator) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*allocator).mem_map = Some(map);
        (*allocator).mem_unmap = Some(unmap);
        // Those of a GstDmaBufAllocator would be called instead.
        (*allocator).mem_map_full = None;
        (*allocator).mem_unmap_full = None;
        (*allocator).mem_copy = Some(copy);
        (*allocator).object.flags |= gst::ffi::GST_OBJECT_FLAG_MAY_BE_LEAKED;
    }
}

static PLAIN: LazyLock<Leases> = LazyLock::new(glib::Object::new);

/// A GstFdAllocator whose memories are mapped already.
static FILES: LazyLock<gst::Allocator> = LazyLock::new(|| {
    // SAFETY: a new allocator of GStreamer's, which is not shared yet.
    unsafe { mapped(gst_allocators::ffi::gst_fd_allocator_new()) }
});

/// A GstDmaBufAllocator whose memories are mapped already. The engine announces accesses of the CPU
/// to the driver.
static DMA_BUFS: LazyLock<gst::Allocator> = LazyLock::new(|| {
    // SAFETY: as above.
    unsafe { mapped(gst_allocators::ffi::gst_dmabuf_allocator_new()) }
});

/// Makes a new allocator of descriptors one of leased frames.
///
/// # Safety
/// `allocator` must be a GstFdAllocator that is not shared yet, whose reference is given away.
unsafe fn mapped(allocator: *mut gst::ffi::GstAllocator) -> gst::Allocator {
    // SAFETY: guaranteed by the caller.
    unsafe {
        set_common(allocator);
        from_glib_full(
            glib::gobject_ffi::g_object_ref_sink(allocator.cast()).cast::<gst::ffi::GstAllocator>(),
        )
    }
}
