// SPDX-License-Identifier: MIT OR Apache-2.0

//! Imitation of the way in which NVIDIA's decoders change the size of a video
//! (`gst_nv_decoder_configure` of GStreamer 1.26): the decoder outputs the frame that it kept,
//! clears all its surfaces without waiting for anything, and tells downstream afterwards.

use std::collections::VecDeque;
use std::sync::Mutex;

use gst::subclass::prelude::*;
use gst_video::prelude::*;
use gst_video::subclass::prelude::*;
use gst_video::video_codec_state::InNegotiation;
use gst_video::{VideoCodecFrame, VideoCodecState, VideoInfo};

/// Name of the element.
pub const NAME: &str = "reconfigureddecoder";

glib::wrapper! {
    pub struct Reconfigured(ObjectSubclass<imp::Reconfigured>)
        @extends gst_video::VideoDecoder, gst::Element, gst::Object;
}

impl Reconfigured {
    /// Makes the element known.
    pub fn register() -> Result<(), glib::BoolError> {
        gst::Element::register(None, NAME, gst::Rank::NONE, Self::static_type())
    }

    /// Adds what clears the surfaces at the next change of size.
    pub fn clear_at_change(&self, clear: Box<dyn FnOnce() + Send>) {
        self.imp().state.lock().expect("nothing panics").clear.push_back(clear);
    }
}

mod imp {
    use super::*;

    #[derive(Default)]
    pub struct Reconfigured {
        pub(super) state: Mutex<State>,
    }

    #[derive(Default)]
    pub(super) struct State {
        pub(super) clear: VecDeque<Box<dyn FnOnce() + Send>>,
        /// Caps whose first buffer has not come.
        new_caps: Option<gst::Caps>,
        has_caps: bool,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Reconfigured {
        const NAME: &'static str = "FrameshareReconfiguredDecoder";
        type Type = super::Reconfigured;
        type ParentType = gst_video::VideoDecoder;
    }

    impl ObjectImpl for Reconfigured {
        fn constructed(&self) {
            self.parent_constructed();
            self.obj().set_packetized(true);
        }
    }

    impl GstObjectImpl for Reconfigured {}

    impl ElementImpl for Reconfigured {
        fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
            static METADATA: std::sync::LazyLock<gst::subclass::ElementMetadata> =
                std::sync::LazyLock::new(|| {
                    gst::subclass::ElementMetadata::new("Imitation", "Decoder/Video", "Passes frames on", "-")
                });
            Some(&METADATA)
        }

        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: std::sync::LazyLock<Vec<gst::PadTemplate>> = std::sync::LazyLock::new(|| {
                // As of appsrc: the sink takes the context of the first frames.
                let caps = gst::Caps::new_any();
                [("sink", gst::PadDirection::Sink), ("src", gst::PadDirection::Src)]
                    .into_iter()
                    .filter_map(|(name, direction)| {
                        gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).ok()
                    })
                    .collect()
            });
            &TEMPLATES
        }
    }

    impl VideoDecoderImpl for Reconfigured {
        fn caps(&self, filter: Option<&gst::Caps>) -> gst::Caps {
            filter.cloned().unwrap_or_else(gst::Caps::new_any)
        }

        fn set_format(
            &self,
            state: &VideoCodecState<'static, gst_video::video_codec_state::Readable>,
        ) -> Result<(), gst::LoggableError> {
            self.state.lock().expect("nothing panics").new_caps = state.caps_owned();
            Ok(())
        }

        fn handle_frame(&self, frame: VideoCodecFrame<'_>) -> Result<gst::FlowSuccess, gst::FlowError> {
            self.output(Some(frame.system_frame_number()))?;
            let new_caps = self.state.lock().expect("nothing panics").new_caps.take();
            if let Some(caps) = new_caps {
                self.change(&caps)?;
            }
            Ok(gst::FlowSuccess::Ok)
        }

        fn finish(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
            self.output(None)
        }

        fn decide_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
            // Frames stay in the surfaces: a pool that is never used.
            let pool = gst::BufferPool::new();
            let (caps, _) = query.get_owned();
            let mut config = pool.config();
            config.set_params(caps.as_ref(), 1, 0, 0);
            pool.set_config(config)?;
            while query.allocation_pools().next().is_some() {
                query.remove_nth_allocation_pool(0);
            }
            query.add_allocation_pool(Some(&pool), 1, 0, 0);
            Ok(())
        }
    }

    impl Reconfigured {
        /// Outputs the frames that were kept, but not this one.
        fn output(&self, except: Option<u32>) -> Result<gst::FlowSuccess, gst::FlowError> {
            let decoder = self.obj();
            while let Some(mut frame) = decoder.oldest_frame() {
                if Some(frame.system_frame_number()) == except {
                    break;
                }
                let buffer = frame.input_buffer().ok_or(gst::FlowError::Error)?.to_owned();
                frame.set_output_buffer(buffer);
                decoder.finish_frame(frame)?;
            }
            Ok(gst::FlowSuccess::Ok)
        }

        /// Clears all surfaces, and then tells downstream.
        fn change(&self, caps: &gst::Caps) -> Result<(), gst::FlowError> {
            let clear = {
                let mut state = self.state.lock().expect("nothing panics");
                let is_first = !std::mem::replace(&mut state.has_caps, true);
                if is_first { None } else { state.clear.pop_front() }
            };
            if let Some(clear) = clear {
                clear();
            }
            let info = VideoInfo::from_caps(caps).map_err(|_| gst::FlowError::NotNegotiated)?;
            let decoder = self.obj();
            let mut state: VideoCodecState<'_, InNegotiation<'_>> =
                decoder.set_output_state(info.format(), info.width(), info.height(), None)?;
            state.set_caps(caps);
            decoder.negotiate(state)
        }
    }
}
