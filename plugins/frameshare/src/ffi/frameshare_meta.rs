// SPDX-License-Identifier: MIT OR Apache-2.0

//! `FrameshareMeta`: the identity of a buffer's frame in its stream.
//!
//! Applications in C find it by `include/frameshare/gstframeshare.h`, others by the signal
//! `frame-info` of `framesharesrc`. It is kept when a buffer is copied or converted.
//!
//! # Safety
//!
//! Registers a type with GStreamer and turns its pointers to such metas into references. A meta of
//! this type points to a [`GstFrameshareMeta`]: `registered` only hands out a type of exactly that
//! size.
#![allow(unsafe_code)]

use glib::translate::{IntoGlib, from_glib};
use gst::prelude::*;
use std::{ffi::c_char, fmt, mem, ptr, sync::OnceLock};

const API: &glib::GStr = glib::gstr!("FrameshareMetaAPI");
const NAME: &glib::GStr = glib::gstr!("FrameshareMeta");

/// The C layout of the meta, also in `include/frameshare/gstframeshare.h`. Fields are added at the
/// end only.
#[repr(C)]
pub struct GstFrameshareMeta {
    meta: gst::ffi::GstMeta,
    session: u64,
    sequence: u64,
    lost_before: u64,
    published: u64,
    /// Names a CUDA stream on which the frame of a buffer with this meta is read; null if no stream
    /// has to be named.
    used_on: Option<UsedOn>,
    /// The number of times that the frame was pushed before, by `resend-last`.
    repeats: u64,
}

/// Takes the buffer and the CUstream; false if the release of the frame will not wait for it.
pub(crate) type UsedOn =
    unsafe extern "C" fn(*mut gst::ffi::GstBuffer, glib::ffi::gpointer) -> glib::ffi::gboolean;

const _: () = assert!(
    mem::size_of::<usize>() != 8 || mem::size_of::<GstFrameshareMeta>() == 3 * mem::size_of::<usize>() + 40
);

/// The identity of a buffer's frame in its stream.
#[repr(transparent)]
pub struct FrameshareMeta(GstFrameshareMeta);

// SAFETY: the fields are plain numbers, and GStreamer forbids writing a meta of a shared buffer.
unsafe impl Send for FrameshareMeta {}
// SAFETY: as above.
unsafe impl Sync for FrameshareMeta {}

/// The values of a [`FrameshareMeta`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameInfo {
    pub session: u64,
    pub sequence: u64,
    pub lost_before: u64,
    pub published: u64,
    pub used_on: Option<UsedOn>,
    pub repeats: u64,
}

impl FrameshareMeta {
    /// Adds the meta to a buffer.
    pub(crate) fn add(buffer: &mut gst::BufferRef, frame: FrameInfo) {
        let Some(info) = registered() else { return };
        // SAFETY: `info` is a registered meta's, `init` takes no parameters, and the buffer is
        // writable: it is borrowed mutably.
        let meta = unsafe { gst::ffi::gst_buffer_add_meta(buffer.as_mut_ptr(), info, ptr::null_mut()) };
        // SAFETY: the added meta is of this type (`registered`) and lives as long as the buffer.
        let Some(meta) = (unsafe { meta.cast::<GstFrameshareMeta>().as_mut() }) else { return };
        meta.session = frame.session;
        meta.sequence = frame.sequence;
        meta.lost_before = frame.lost_before;
        meta.published = frame.published;
        meta.used_on = frame.used_on;
        meta.repeats = frame.repeats;
    }

    /// Turns the meta into that of the frame's next repetition.
    pub(crate) fn repeat(&mut self) {
        self.0.repeats = self.0.repeats.saturating_add(1);
        self.0.lost_before = 0;
    }

    /// A number that tells this run of the stream from earlier and later ones.
    pub fn session(&self) -> u64 {
        self.0.session
    }

    /// The frame's number in the stream, counted from 1; it goes up by one for each frame
    /// published.
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Number of frames lost between the previous buffer and this one.
    pub fn lost_before(&self) -> u64 {
        self.0.lost_before
    }

    /// Number of times that the frame was pushed before: 0, unless `resend-last` of `framesharesrc`
    /// repeats it. A repetition has the numbers of the frame.
    pub fn repeats(&self) -> u64 {
        self.0.repeats
    }

    /// Time of the frame's publication, in ns of `CLOCK_MONOTONIC`.
    pub fn published(&self) -> u64 {
        self.0.published
    }

    /// Names a CUDA stream of another context than the pipeline's, PyTorch's for example, on which
    /// the frame of `buffer` is read: the frame is released after the work queued on that stream
    /// until the buffer's last unref. To be called for each buffer, at any time while it is held;
    /// work in the pipeline's own context needs no naming.
    ///
    /// Returns false if the buffer is not in the exporter's GPU memory (the source copies some), or
    /// `stream` is not a stream: then the application has to wait itself before it drops the
    /// buffer. From C it is `meta->used_on (buffer, stream)`, if that is not NULL.
    ///
    /// # Safety
    ///
    /// `stream` must be a CUstream, or null for the NULL stream of the context that is current on
    /// this thread. It and its context must live until the last reference to the buffer's memory is
    /// dropped.
    pub unsafe fn used_on(buffer: &gst::BufferRef, stream: *mut std::ffi::c_void) -> bool {
        let Some(used_on) = buffer.meta::<Self>().and_then(|meta| meta.0.used_on) else { return false };
        // SAFETY: the buffer is borrowed; the caller guarantees the rest.
        unsafe { used_on(buffer.as_ptr().cast_mut(), stream) != glib::ffi::GFALSE }
    }
}

impl fmt::Debug for FrameshareMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameshareMeta")
            .field("session", &self.session())
            .field("sequence", &self.sequence())
            .field("lost_before", &self.lost_before())
            .field("published", &self.published())
            .field("repeats", &self.repeats())
            .finish()
    }
}

// SAFETY: `FrameshareMeta` is a transparent `GstFrameshareMeta`, which begins with a GstMeta, and
// metas of this API are of that type.
unsafe impl MetaAPI for FrameshareMeta {
    type GstType = GstFrameshareMeta;

    fn meta_api() -> glib::Type {
        static TYPE: OnceLock<glib::Type> = OnceLock::new();
        *TYPE.get_or_init(|| {
            // An application that links the plugin and also loads it has two copies of this code
            // and one type.
            glib::Type::from_name(API).unwrap_or_else(|| {
                let no_tags = [ptr::null::<c_char>()];
                // SAFETY: both strings and the NULL-terminated list of tags outlive the call.
                unsafe {
                    from_glib(gst::ffi::gst_meta_api_type_register(API.as_ptr(), no_tags.as_ptr().cast_mut()))
                }
            })
        })
    }
}

/// Registers the type with GStreamer, so that applications find it by name before the first frame.
pub(crate) fn register() {
    registered();
    // Decoders put it into their caps, and in a process that only reads nothing else may have
    // registered it. SAFETY: registers a type of GStreamer's; the caller needs to guarantee
    // nothing.
    unsafe { gst_video::ffi::gst_video_multiview_flagset_get_type() };
}

/// Returns the meta's type; none if its name is registered for another layout.
fn registered() -> Option<&'static gst::ffi::GstMetaInfo> {
    struct Info(&'static gst::ffi::GstMetaInfo);
    // SAFETY: GStreamer never changes the description of a registered meta.
    unsafe impl Send for Info {}
    // SAFETY: as above.
    unsafe impl Sync for Info {}
    static INFO: OnceLock<Option<Info>> = OnceLock::new();

    let info = INFO.get_or_init(|| {
        let api = FrameshareMeta::meta_api();
        // SAFETY: the name is a C string.
        let mut info = unsafe { gst::ffi::gst_meta_get_info(NAME.as_ptr()) };
        if info.is_null() {
            // SAFETY: the name is a C string, the size that of this struct, and the functions are
            // of the required types.
            info = unsafe {
                gst::ffi::gst_meta_register(
                    api.into_glib(),
                    NAME.as_ptr(),
                    mem::size_of::<GstFrameshareMeta>(),
                    Some(init),
                    None,
                    Some(transform),
                )
            };
        }
        // SAFETY: GStreamer never frees the description of a meta.
        let info = unsafe { info.as_ref() }?;
        (info.size == mem::size_of::<GstFrameshareMeta>()).then_some(Info(info))
    });
    info.as_ref().map(|info| info.0)
}

unsafe extern "C" fn init(
    meta: *mut gst::ffi::GstMeta,
    _params: glib::ffi::gpointer,
    _buffer: *mut gst::ffi::GstBuffer,
) -> glib::ffi::gboolean {
    let meta = meta.cast::<GstFrameshareMeta>();
    // SAFETY: GStreamer allocated the registered size, and filled in the GstMeta at its start.
    unsafe {
        (*meta).session = 0;
        (*meta).sequence = 0;
        (*meta).lost_before = 0;
        (*meta).published = 0;
        (*meta).used_on = None;
        (*meta).repeats = 0;
    }
    glib::ffi::GTRUE
}

unsafe extern "C" fn transform(
    destination: *mut gst::ffi::GstBuffer,
    meta: *mut gst::ffi::GstMeta,
    _source: *mut gst::ffi::GstBuffer,
    _kind: glib::ffi::GQuark,
    _data: glib::ffi::gpointer,
) -> glib::ffi::gboolean {
    // SAFETY: GStreamer calls this with a meta of this type and a writable buffer.
    let (meta, destination) =
        unsafe { (&*meta.cast::<FrameshareMeta>(), gst::BufferRef::from_mut_ptr(destination)) };
    let frame = FrameInfo {
        session: meta.session(),
        sequence: meta.sequence(),
        lost_before: meta.lost_before(),
        published: meta.published(),
        used_on: meta.0.used_on,
        repeats: meta.repeats(),
    };
    FrameshareMeta::add(destination, frame);
    glib::ffi::GTRUE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write as _, path::Path, process::Command};

    const FRAME: FrameInfo =
        FrameInfo { session: 7, sequence: 42, lost_before: 3, published: 9, used_on: None, repeats: 2 };

    #[test]
    fn the_meta_says_what_was_put_in_and_goes_along_with_copies() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        FrameshareMeta::add(buffer.make_mut(), FRAME);
        let copy = buffer.copy_deep().unwrap();
        for buffer in [&buffer, &copy] {
            let meta = buffer.meta::<FrameshareMeta>().unwrap();
            assert_eq!((meta.session(), meta.sequence(), meta.lost_before()), (7, 42, 3));
            assert_eq!((meta.published(), meta.repeats()), (9, 2));
        }
    }

    /// Evaluates C expressions against the installed header; none without a C compiler.
    fn evaluate(expressions: &[&str]) -> Option<Vec<usize>> {
        let output = |command: &mut Command| {
            let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        Command::new(&compiler).arg("--version").output().ok()?;
        let prints: String =
            expressions.iter().map(|it| format!("printf(\"%zu\\n\", (size_t)({it}));\n")).collect();
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        let text =
            format!("#include <frameshare/gstframeshare.h>\n#include <stdio.h>\nint main(void) {{{prints}}}");
        std::fs::write(&source, text).unwrap();
        let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", "gstreamer-1.0"]));
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut compile = Command::new(compiler);
        compile.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include);
        compile.arg("-o").args([&program, &source]);
        output(compile.args(flags.replace("-I", "-isystem").split_whitespace()));
        Some(output(&mut Command::new(program)).lines().map(|line| line.parse().unwrap()).collect())
    }

    #[test]
    fn layout_matches_c_header() {
        let ours = [
            ("sizeof(GstFrameshareMeta)", mem::size_of::<GstFrameshareMeta>()),
            ("offsetof(GstFrameshareMeta, meta)", mem::offset_of!(GstFrameshareMeta, meta)),
            ("offsetof(GstFrameshareMeta, session)", mem::offset_of!(GstFrameshareMeta, session)),
            ("offsetof(GstFrameshareMeta, sequence)", mem::offset_of!(GstFrameshareMeta, sequence)),
            ("offsetof(GstFrameshareMeta, lost_before)", mem::offset_of!(GstFrameshareMeta, lost_before)),
            ("offsetof(GstFrameshareMeta, published)", mem::offset_of!(GstFrameshareMeta, published)),
            ("offsetof(GstFrameshareMeta, used_on)", mem::offset_of!(GstFrameshareMeta, used_on)),
            ("offsetof(GstFrameshareMeta, repeats)", mem::offset_of!(GstFrameshareMeta, repeats)),
        ];
        let Some(theirs) = evaluate(&ours.map(|(expression, _)| expression)) else {
            // Bypasses the harness's output capture, so that the skip is counted.
            std::io::stdout().write_all(b"SKIP frameshare-meta/layout: no C compiler\n").unwrap();
            return;
        };
        assert_eq!(theirs, ours.map(|(_, value)| value), "{ours:?}");
    }

    #[test]
    fn applications_find_it_by_name() {
        gst::init().unwrap();
        register();
        assert_eq!(glib::Type::from_name("FrameshareMetaAPI"), Some(FrameshareMeta::meta_api()));
    }
}
