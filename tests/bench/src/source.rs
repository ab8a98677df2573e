// SPDX-License-Identifier: MIT OR Apache-2.0

//! Source element of the benchmark: takes buffers from downstream's pool and writes a stamp into
//! each.

use crate::pace::Pace;
use glib::subclass::prelude::*;
use gst::subclass::prelude::*;
use gst_base::{prelude::*, subclass::prelude::*};
use std::sync::Mutex;

glib::wrapper! {
    /// The source element.
    pub struct Source(ObjectSubclass<imp::Source>) @extends gst_base::BaseSrc, gst::Element, gst::Object;
}

impl Source {
    /// Creates a source of frames with the caps of `info` at a pace. If downstream proposes no
    /// pool, the source creates one of `pool` buffers (0: no limit) with downstream's allocator.
    pub fn new(info: &gst_video::VideoInfo, pool: u32, pace: Pace) -> Result<Self, glib::BoolError> {
        let source: Self = glib::Object::new();
        source.set_format(gst::Format::Time);
        source.set_blocksize(u32::try_from(info.size()).map_err(|_| glib::bool_error!("too big a frame"))?);
        *source.imp().stream.lock().expect("nothing panicked yet") =
            Some(imp::Stream { caps: info.to_caps()?, size: info.size(), pool, pace });
        Ok(source)
    }
}

mod imp {
    use super::*;

    /// Content and pace of the frames.
    pub struct Stream {
        pub caps: gst::Caps,
        pub size: usize,
        pub pool: u32,
        pub pace: Pace,
    }

    /// Implementation of the element.
    #[derive(Default)]
    pub struct Source {
        pub stream: Mutex<Option<Stream>>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Source {
        const NAME: &'static str = "FrameshareBenchSource";
        type Type = super::Source;
        type ParentType = gst_base::BaseSrc;
    }

    impl ObjectImpl for Source {}
    impl GstObjectImpl for Source {}

    impl ElementImpl for Source {
        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: std::sync::LazyLock<Vec<gst::PadTemplate>> = std::sync::LazyLock::new(|| {
                let any = gst::Caps::new_any();
                let (source, always) = (gst::PadDirection::Src, gst::PadPresence::Always);
                gst::PadTemplate::new("src", source, always, &any).into_iter().collect()
            });
            &TEMPLATES
        }
    }

    impl BaseSrcImpl for Source {
        fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
            let stream = self.stream.lock().ok()?;
            let caps = &stream.as_ref()?.caps;
            Some(filter.map_or_else(|| caps.clone(), |filter| filter.intersect(caps)))
        }

        fn is_seekable(&self) -> bool {
            false
        }

        fn decide_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
            let wanted = self.stream.lock().ok().and_then(|stream| stream.as_ref().map(|s| (s.size, s.pool)));
            let (size, buffers) = wanted.ok_or_else(|| gst::loggable_error!(gst::CAT_RUST, "no stream"))?;
            if query.allocation_pools().next().is_none() {
                // As in videotestsrc: if downstream proposes only an allocator, its buffers are
                // pooled, since each frame would otherwise allocate memory.
                query.add_allocation_pool(Some(&gst_video::VideoBufferPool::new()), size as u32, 0, buffers);
            }
            self.parent_decide_allocation(query)
        }

        fn fill(
            &self,
            _: u64,
            _: u32,
            buffer: &mut gst::BufferRef,
        ) -> Result<gst::FlowSuccess, gst::FlowError> {
            let mut stream = self.stream.lock().map_err(|_| gst::FlowError::Error)?;
            let pace = &mut stream.as_mut().ok_or(gst::FlowError::Error)?.pace;
            let mut frame = buffer.map_writable().map_err(|_| gst::FlowError::Error)?;
            let stamp = pace.stamp();
            frame[..crate::stamp::SIZE].copy_from_slice(&stamp.encode());
            drop(frame);
            buffer.set_pts(gst::ClockTime::from_nseconds(stamp.sequence * 1_000_000));
            Ok(gst::FlowSuccess::Ok)
        }
    }
}
