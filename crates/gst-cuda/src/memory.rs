// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA memory: access to existing memory, and reusable memory that is wrapped once and loaned
//! repeatedly.
//!
//! # Safety
//! This file uses raw pointers into GStreamer's C structures. A borrow keeps a reference to the
//! memory it accesses. The data attached to wrapped memory is freed by `free`, together with the
//! memory; [`Reusable`] describes the owner of the single reference to idle memory.
#![allow(unsafe_code)]

use crate::{
    Address, Context, Stream,
    ffi::{GstCudaMemory, MAP_CUDA, NEED_DOWNLOAD, NEED_SYNC, NEED_UPLOAD},
    library,
};
use glib::translate::*;
use gst::ffi;
use gst_video::VideoInfo;
use std::{
    any::Any,
    fmt,
    mem::MaybeUninit,
    ptr,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

/// Borrowed memory of the CUDA allocator.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a>(&'a gst::MemoryRef);

impl<'a> Memory<'a> {
    /// Returns a view of the memory if it is CUDA memory.
    #[must_use]
    pub fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        let library = library::loaded()?;
        // SAFETY: the memory is borrowed and only read.
        let is = unsafe { (library.gst_is_cuda_memory)(memory.as_ptr().cast_mut()) };
        (is != glib::ffi::GFALSE).then_some(Self(memory))
    }

    fn raw(self) -> *mut GstCudaMemory {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Returns the context that the memory was allocated in.
    #[must_use]
    pub fn context(self) -> Context {
        // SAFETY: a public field that is set once, before the memory is shared.
        unsafe { from_glib_none((*self.raw()).context) }
    }

    /// Returns the stream that the memory is written on, as recorded in it; `None` for the
    /// context's NULL stream. The record may be stale: decoders return memory with a stream that
    /// they no longer use.
    #[must_use]
    pub fn stream(self) -> Option<Stream> {
        // SAFETY: the memory is borrowed; the result is borrowed from it, and gets its own
        // reference here.
        unsafe { from_glib_none((library::library().gst_cuda_memory_get_stream)(self.raw())) }
    }

    /// Returns the layout of the frame in the memory.
    #[must_use]
    pub fn info(self) -> VideoInfo {
        // SAFETY: a public field that is set once, before the memory is shared.
        unsafe { from_glib_none(&raw const (*self.raw()).info) }
    }

    /// Returns whether the owner, such as a decoder, may take the memory back. Such memory must not
    /// be kept for long.
    #[must_use]
    pub fn is_from_fixed_pool(self) -> bool {
        // SAFETY: the memory is borrowed and only read.
        unsafe {
            (library::library().gst_cuda_memory_is_from_fixed_pool)(self.raw().cast()) != glib::ffi::GFALSE
        }
    }

    /// Returns whether writes on the memory's stream may still be incomplete.
    #[must_use]
    pub fn is_pending(self) -> bool {
        // SAFETY: the memory is borrowed; its flags are a plain word, which only `sync` changes
        // concurrently.
        unsafe { (*self.raw()).memory.mini_object.flags & NEED_SYNC != 0 }
    }

    /// Blocks the CPU until writes on the memory's stream are complete.
    pub fn sync(self) {
        // SAFETY: the memory is borrowed, and the call takes its lock.
        unsafe { (library::library().gst_cuda_memory_sync)(self.raw()) }
    }

    /// Maps the memory for reading on the GPU. CPU writes are uploaded first, on the memory's
    /// stream. `None` if the memory is mapped for writing elsewhere.
    #[must_use]
    pub fn map(self) -> Option<Mapped<'a>> {
        Mapped::new(self.0, ffi::GST_MAP_READ)
    }
}

/// Maps exclusively owned memory for reading and writing on the GPU; `None` if it is not CUDA
/// memory.
#[must_use]
pub fn map_writable(memory: &mut gst::MemoryRef) -> Option<Mapped<'_>> {
    Memory::of(memory)?;
    Mapped::new(memory, ffi::GST_MAP_READ | ffi::GST_MAP_WRITE)
}

/// A GPU mapping of CUDA memory. The address does not change while any reference to the memory
/// exists.
#[derive(Debug)]
pub struct Mapped<'a> {
    memory: &'a gst::MemoryRef,
    info: ffi::GstMapInfo,
}

impl<'a> Mapped<'a> {
    fn new(memory: &'a gst::MemoryRef, access: ffi::GstMapFlags) -> Option<Self> {
        let mut info = MaybeUninit::uninit();
        // SAFETY: the memory is borrowed until the unmap; `info` is initialized if the call
        // succeeds.
        unsafe {
            let mapped =
                ffi::gst_memory_map(memory.as_ptr().cast_mut(), info.as_mut_ptr(), access | MAP_CUDA);
            (mapped != glib::ffi::GFALSE).then(|| Self { memory, info: info.assume_init() })
        }
    }

    /// Returns the GPU address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.info.data as Address
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.info.size
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        // SAFETY: undoes the map done by `new`.
        unsafe { ffi::gst_memory_unmap(self.memory.as_ptr().cast_mut(), &mut self.info) }
    }
}

/// Allocates memory with the library's allocator for a frame of this layout; `None` if the driver
/// fails.
#[must_use]
pub fn allocate(context: &Context, stream: Option<&Stream>, info: &VideoInfo) -> Option<gst::Memory> {
    let allocate = library::library().gst_cuda_allocator_alloc;
    // SAFETY: all three are alive, and a null allocator means the default one; the result is NULL
    // or a new reference.
    unsafe {
        from_glib_full(allocate(
            ptr::null_mut(),
            context.to_glib_none().0,
            stream.to_glib_none().0,
            info.to_glib_none().0,
        ))
    }
}

/// Restrictions on the use of wrapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The memory must not be written.
    pub read_only: bool,
    /// The owner takes the memory back: cudadownload copies it at once, and other elements do not
    /// export it again.
    pub fixed_pool: bool,
}

/// A GPU memory region that is wrapped once as a GstCudaMemory and loaned repeatedly. Resources
/// that elements attach to the memory, such as textures and registrations, are thus created once.
///
/// A loan carries the value passed to [`Reusable::lend`]. When the last reference to the loaned
/// memory is dropped, GStreamer's dispose hook returns the memory to this object and then drops the
/// value, on the thread that dropped the reference.
///
/// The caller of [`Reusable::wrap`] must keep the region allocated until this object and all loans
/// are dropped.
pub struct Reusable(Arc<Idle>);

/// The memory while it is idle. While it is loaned, its [`Loan`] refers to this.
#[derive(Default)]
struct Idle(Mutex<Option<gst::Memory>>);

/// Data attached to the wrapped memory for its lifetime.
struct Carried(Mutex<Option<Loan>>);

struct Loan {
    back: Arc<Idle>,
    held: Box<dyn Any + Send>,
}

impl Idle {
    fn idle(&self) -> MutexGuard<'_, Option<gst::Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Carried {
    fn loan(&self) -> MutexGuard<'_, Option<Loan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks memory as wrapped by this code. The name contains an address, since a process may load
/// this code twice.
static MARK: LazyLock<glib::Quark> = LazyLock::new(|| {
    static HERE: u8 = 0;
    glib::Quark::from_str(format!("gst-cuda-reusable-{:p}", &raw const HERE))
});

impl Reusable {
    /// Wraps the region at `address`, with the layout `info`. `None` if the library fails.
    #[must_use]
    pub fn wrap(
        context: &Context,
        stream: Option<&Stream>,
        info: &VideoInfo,
        address: Address,
        rules: Rules,
    ) -> Option<Self> {
        let library = library::library();
        let carried = Box::into_raw(Box::new(Carried(Mutex::new(None))));
        // SAFETY: context, stream and info are alive. The memory owns `carried` from here on and
        // releases it with `free`, instead of freeing the region itself; the mark also points to
        // `carried`.
        let memory: Option<gst::Memory> = unsafe {
            let memory = (library.gst_cuda_allocator_alloc_wrapped)(
                ptr::null_mut(),
                context.to_glib_none().0,
                stream.to_glib_none().0,
                info.to_glib_none().0,
                address,
                carried.cast(),
                Some(free),
            );
            if memory.is_null() {
                free(carried.cast());
                return None;
            }
            ffi::gst_mini_object_set_qdata(memory.cast(), MARK.into_glib(), carried.cast(), None);
            if rules.fixed_pool {
                (library.gst_cuda_memory_set_from_fixed_pool)(memory);
            }
            if rules.read_only {
                (*memory).mini_object.flags |= ffi::GST_MEMORY_FLAG_READONLY;
            }
            from_glib_full(memory)
        };
        Some(Self(Arc::new(Idle(Mutex::new(memory)))))
    }

    /// Loans the memory together with `held`. `pending` means that writes on its stream may still
    /// be incomplete. If the memory is already on loan, drops `held` and returns `None`.
    #[must_use]
    pub fn lend(&self, held: impl Any + Send, pending: bool) -> Option<gst::Memory> {
        let memory = self.0.idle().take()?;
        *carried(&memory)?.loan() = Some(Loan { back: self.0.clone(), held: Box::new(held) });
        // SAFETY: the memory is exclusively owned here; GStreamer calls `dispose` when the last
        // reference is dropped. The content of the region is new: copies of earlier content on the
        // CPU are stale, so it needs a download and no upload.
        unsafe {
            let object = &mut (*memory.as_mut_ptr()).mini_object;
            object.dispose = Some(come_back);
            let wait = if pending { NEED_SYNC } else { 0 };
            object.flags = object.flags & !(NEED_UPLOAD | NEED_SYNC) | NEED_DOWNLOAD | wait;
        }
        Some(memory)
    }
}

impl fmt::Debug for Reusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reusable").field("idle", &self.0.idle().is_some()).finish()
    }
}

/// Returns a copy of the value that the memory was loaned with; `None` without a loan or if the
/// value has another type.
#[must_use]
pub fn held<T: Any + Clone>(memory: &gst::MemoryRef) -> Option<T> {
    carried(memory)?.loan().as_ref()?.held.downcast_ref().cloned()
}

/// Returns the data attached to memory wrapped here.
fn carried(memory: &gst::MemoryRef) -> Option<&Carried> {
    // SAFETY: only this file sets the mark, to data that lives as long as the memory, which is
    // borrowed.
    unsafe {
        ffi::gst_mini_object_get_qdata(memory.as_ptr().cast_mut().cast(), MARK.into_glib())
            .cast::<Carried>()
            .as_ref()
    }
}

/// Dispose hook of loaned memory: GStreamer calls it instead of freeing, and passes the last
/// reference.
unsafe extern "C" fn come_back(memory: *mut ffi::GstMiniObject) -> glib::ffi::gboolean {
    // SAFETY: GStreamer passes the memory without any other reference. It was loaned, so it is
    // marked.
    let memory: gst::Memory = unsafe {
        (*memory).dispose = None;
        // With NEED_SYNC, freeing would block the CPU on the stream, which may be stuck forever
        // behind the fence of a dead process.
        (*memory).flags &= !NEED_SYNC;
        ffi::gst_mini_object_ref(memory);
        from_glib_full(memory.cast::<ffi::GstMemory>())
    };
    // Dropping `held` may run arbitrary code, and a panic must not unwind into C.
    let _ = std::panic::catch_unwind(move || {
        let Some(loan) = carried(&memory).and_then(|carried| carried.loan().take()) else { return };
        let Loan { back, held } = loan;
        *back.idle() = Some(memory);
        // The memory can be loaned again, or is freed here if its `Reusable` was dropped; only then
        // may the region be released.
        drop(back);
        drop(held);
    });
    glib::ffi::GFALSE
}

/// Frees the attached data of a memory, called when the memory is freed.
unsafe extern "C" fn free(carried: glib::ffi::gpointer) {
    // SAFETY: `wrap` created the pointer from a box and gave it to one memory, which calls this
    // once.
    let carried = unsafe { Box::from_raw(carried.cast::<Carried>()) };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(carried)));
}
