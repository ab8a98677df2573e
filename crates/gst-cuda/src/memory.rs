//! CUDA memory: a look at somebody else's, and memory of one's own that is wrapped once and lent out again and again.
//!
//! # Safety
//! Raw pointers into GStreamer's C structures. Of memory that is looked at, borrowing keeps a reference. What memory
//! that is lent out carries is freed when the memory is, by `free`; who holds the one reference of idle memory is
//! described at [`Reusable`].
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

/// Memory that is known to be CUDA's.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a>(&'a gst::MemoryRef);

impl<'a> Memory<'a> {
    /// A look at memory, if it is CUDA's.
    #[must_use]
    pub fn of(memory: &'a gst::MemoryRef) -> Option<Self> {
        let library = library::loaded()?;
        // SAFETY: the memory is borrowed, and only looked at.
        let is = unsafe { (library.gst_is_cuda_memory)(memory.as_ptr().cast_mut()) };
        (is != glib::ffi::GFALSE).then_some(Self(memory))
    }

    fn raw(self) -> *mut GstCudaMemory {
        self.0.as_ptr().cast_mut().cast()
    }

    /// The context that it was allocated in.
    #[must_use]
    pub fn context(self) -> Context {
        // SAFETY: a public field that is set once, before anyone else sees the memory.
        unsafe { from_glib_none((*self.raw()).context) }
    }

    /// The stream that it says it is written on; none for the context's NULL stream. Decoders hand out memory that
    /// names a stream which they no longer use.
    #[must_use]
    pub fn stream(self) -> Option<Stream> {
        // SAFETY: the memory is borrowed; the result is borrowed from it, and referenced here.
        unsafe { from_glib_none((library::library().gst_cuda_memory_get_stream)(self.raw())) }
    }

    /// Where the planes of its picture lie.
    #[must_use]
    pub fn info(self) -> VideoInfo {
        // SAFETY: a public field that is set once, before anyone else sees the memory.
        unsafe { from_glib_none(&raw const (*self.raw()).info) }
    }

    /// Whether it may be taken back by whoever owns it, such as a decoder, and must not be kept for long.
    #[must_use]
    pub fn is_from_fixed_pool(self) -> bool {
        // SAFETY: the memory is borrowed, and only looked at.
        unsafe {
            (library::library().gst_cuda_memory_is_from_fixed_pool)(self.raw().cast()) != glib::ffi::GFALSE
        }
    }

    /// Whether what was written on its stream may not be there yet.
    #[must_use]
    pub fn is_pending(self) -> bool {
        // SAFETY: the memory is borrowed; its flags are a plain word, which `sync` alone changes meanwhile.
        unsafe { (*self.raw()).memory.mini_object.flags & NEED_SYNC != 0 }
    }

    /// Waits on the CPU until what was written on its stream is there.
    pub fn sync(self) {
        // SAFETY: the memory is borrowed, and the call takes its lock.
        unsafe { (library::library().gst_cuda_memory_sync)(self.raw()) }
    }

    /// Maps it for reading on the GPU. What the CPU has written to it is uploaded first, on its stream. None where
    /// somebody has it mapped for writing.
    #[must_use]
    pub fn map(self) -> Option<Mapped<'a>> {
        Mapped::new(self.0, ffi::GST_MAP_READ)
    }
}

/// Maps memory that the caller alone has for reading and writing on the GPU; none where it is not CUDA's.
#[must_use]
pub fn map_writable(memory: &mut gst::MemoryRef) -> Option<Mapped<'_>> {
    Memory::of(memory)?;
    Mapped::new(memory, ffi::GST_MAP_READ | ffi::GST_MAP_WRITE)
}

/// The address of CUDA memory, for as long as it is mapped. The memory stays where it is as long as anyone refers to it.
#[derive(Debug)]
pub struct Mapped<'a> {
    memory: &'a gst::MemoryRef,
    info: ffi::GstMapInfo,
}

impl<'a> Mapped<'a> {
    fn new(memory: &'a gst::MemoryRef, access: ffi::GstMapFlags) -> Option<Self> {
        let mut info = MaybeUninit::uninit();
        // SAFETY: the memory is borrowed until the map is undone; `info` is filled in where the call succeeds.
        unsafe {
            let mapped =
                ffi::gst_memory_map(memory.as_ptr().cast_mut(), info.as_mut_ptr(), access | MAP_CUDA);
            (mapped != glib::ffi::GFALSE).then(|| Self { memory, info: info.assume_init() })
        }
    }

    /// Where it lies on the GPU.
    #[must_use]
    pub fn address(&self) -> Address {
        self.info.data as Address
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.info.size
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        // SAFETY: undoes the map of `new`.
        unsafe { ffi::gst_memory_unmap(self.memory.as_ptr().cast_mut(), &mut self.info) }
    }
}

/// Memory that the library allocates and frees, for a picture of this layout; none where the driver refuses.
#[must_use]
pub fn allocate(context: &Context, stream: Option<&Stream>, info: &VideoInfo) -> Option<gst::Memory> {
    let allocate = library::library().gst_cuda_allocator_alloc;
    // SAFETY: all three are alive, and the default allocator is meant; the result is NULL or a new reference.
    unsafe {
        from_glib_full(allocate(
            ptr::null_mut(),
            context.to_glib_none().0,
            stream.to_glib_none().0,
            info.to_glib_none().0,
        ))
    }
}

/// How memory that is wrapped may be used by who gets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Nobody may write it.
    pub read_only: bool,
    /// It is taken back: cudadownload copies it at once, and others do not export it anew.
    pub fixed_pool: bool,
}

/// A place on the GPU as one GstCudaMemory, wrapped once and lent out again and again: what elements attach to it,
/// such as textures and registrations, is made once.
///
/// While it is lent out it keeps what it was lent with. When the last reference goes it comes back, by the hook that
/// GStreamer calls then, and what it was lent with is dropped, on whatever thread that is.
///
/// Whoever wraps a place keeps it allocated until this object and everything lent are gone.
pub struct Reusable(Arc<Place>);

/// The memory while nobody has it. While it is lent out, its [`Loan`] leads here.
#[derive(Default)]
struct Place(Mutex<Option<gst::Memory>>);

/// What such a memory carries, from the day that it is wrapped.
struct Carried(Mutex<Option<Loan>>);

struct Loan {
    back: Arc<Place>,
    held: Box<dyn Any + Send>,
}

impl Place {
    fn idle(&self) -> MutexGuard<'_, Option<gst::Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Carried {
    fn loan(&self) -> MutexGuard<'_, Option<Loan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks memory as wrapped here. Named after an address, since a process may have this code loaded twice.
static MARK: LazyLock<glib::Quark> = LazyLock::new(|| {
    static HERE: u8 = 0;
    glib::Quark::from_str(format!("gst-cuda-reusable-{:p}", &raw const HERE))
});

impl Reusable {
    /// Wraps the place at `address`, which is laid out as `info` says. None where the library refuses.
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
        // SAFETY: context, stream and info are alive. The memory owns `carried` from here on and frees it by `free`,
        // with which it must not free the place itself; the mark points to it, too.
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
        Some(Self(Arc::new(Place(Mutex::new(memory)))))
    }

    /// Lends the memory out, and `held` with it; `pending` where its stream has still to wait for what is in the place.
    /// None, and `held` is dropped, while it is lent out already.
    #[must_use]
    pub fn lend(&self, held: impl Any + Send, pending: bool) -> Option<gst::Memory> {
        let memory = self.0.idle().take()?;
        *carried(&memory)?.loan() = Some(Loan { back: self.0.clone(), held: Box::new(held) });
        // SAFETY: the memory is ours alone, and GStreamer looks at the hook when the last reference goes. What is in
        // the place is new, and not what the CPU has seen or written before.
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

/// A copy of what memory was lent out with; none where it was not, or with something else.
#[must_use]
pub fn held<T: Any + Clone>(memory: &gst::MemoryRef) -> Option<T> {
    carried(memory)?.loan().as_ref()?.held.downcast_ref().cloned()
}

/// What memory carries that was wrapped here.
fn carried(memory: &gst::MemoryRef) -> Option<&Carried> {
    // SAFETY: only this file sets the mark, always to what lives as long as the memory, which is borrowed.
    unsafe {
        ffi::gst_mini_object_get_qdata(memory.as_ptr().cast_mut().cast(), MARK.into_glib())
            .cast::<Carried>()
            .as_ref()
    }
}

/// Called by GStreamer instead of freeing memory that was lent out: the last reference is handed to the hook.
unsafe extern "C" fn come_back(memory: *mut ffi::GstMiniObject) -> glib::ffi::gboolean {
    // SAFETY: GStreamer passes the memory, which nobody else refers to any more. It was lent out, so it is marked.
    let memory: gst::Memory = unsafe {
        (*memory).dispose = None;
        // Freeing would wait on the CPU for the stream, which may be stuck for ever behind a process that died.
        (*memory).flags &= !NEED_SYNC;
        ffi::gst_mini_object_ref(memory);
        from_glib_full(memory.cast::<ffi::GstMemory>())
    };
    // What was held may run any code when it is dropped, and a panic must not unwind into C.
    let _ = std::panic::catch_unwind(move || {
        let Some(loan) = carried(&memory).and_then(|carried| carried.loan().take()) else { return };
        let Loan { back, held } = loan;
        *back.idle() = Some(memory);
        // It can be lent out again, or is freed if it was the last time; then the place may go.
        drop(back);
        drop(held);
    });
    glib::ffi::GFALSE
}

/// Frees what a memory carried, when it is freed itself.
unsafe extern "C" fn free(carried: glib::ffi::gpointer) {
    // SAFETY: `wrap` made the pointer from a box and gave it to one memory, which calls this once.
    let carried = unsafe { Box::from_raw(carried.cast::<Carried>()) };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(carried)));
}
