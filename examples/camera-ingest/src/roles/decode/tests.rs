// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decoders that hold a context, as decoders of a GPU do, and that fail.

use super::{
    super::{
        pipeline::{Pipeline, make},
        testing,
    },
    decoder::{bound, explain, plug},
    keep_open,
};
use gst::{prelude::*, subclass::prelude::*};
use std::sync::{
    Mutex, MutexGuard, Once, PoisonError,
    atomic::{AtomicU32, Ordering},
};

/// Media that only the decoder of these tests takes.
const MEDIA: &str = "image/x-jpc";
const CONTEXT: &str = "test.context";

/// Number of contexts that decoders have made.
static MADE: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
pub struct TestDecoder(Mutex<Option<gst::Context>>);

impl TestDecoder {
    fn context(&self) -> MutexGuard<'_, Option<gst::Context>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a context as elements of a GPU do: an offered one, one of the pipeline or the
    /// application, or a new one.
    fn ensure_context(&self) {
        if self.context().is_none() {
            let need = gst::message::NeedContext::builder(CONTEXT).src(&*self.obj()).build();
            let _ = self.obj().post_message(need);
        }
        if self.context().is_none() {
            MADE.fetch_add(1, Ordering::Relaxed);
            let made = gst::Context::new(CONTEXT, true);
            *self.context() = Some(made.clone());
            let _ =
                self.obj().post_message(gst::message::HaveContext::builder(made).src(&*self.obj()).build());
        }
    }

    /// Fails without a word, as decoders do whose surface cannot be mapped.
    fn decode(pad: &gst::Pad, parent: Option<&gst::Object>) -> Result<gst::FlowSuccess, gst::FlowError> {
        let _ = (pad, parent);
        Err(gst::FlowError::Error)
    }
}

#[glib::object_subclass]
impl ObjectSubclass for TestDecoder {
    const NAME: &'static str = "IngestTestDecoder";
    type Type = Decoder;
    type ParentType = gst::Element;
}

glib::wrapper! {
    pub struct Decoder(ObjectSubclass<TestDecoder>) @extends gst::Element, gst::Object;
}

impl ObjectImpl for TestDecoder {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        let template = |name| element.class().pad_template(name).expect("a template");
        let sink = template("sink");
        let sink = gst::Pad::builder_from_template(&sink)
            .chain_function(|pad, parent, _| Self::decode(pad, parent))
            .build();
        let source = gst::Pad::from_template(&template("src"));
        element.add_pad(&sink).expect("a pad");
        element.add_pad(&source).expect("a pad");
    }
}

impl GstObjectImpl for TestDecoder {}

impl ElementImpl for TestDecoder {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: std::sync::LazyLock<gst::subclass::ElementMetadata> =
            std::sync::LazyLock::new(|| {
                gst::subclass::ElementMetadata::new("Test", "Codec/Decoder/Video", "Fails", "Tests")
            });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: std::sync::LazyLock<[gst::PadTemplate; 2]> = std::sync::LazyLock::new(|| {
            let template = |name, direction, media| {
                let caps = gst::Caps::new_empty_simple(media);
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("a template")
            };
            [
                template("sink", gst::PadDirection::Sink, MEDIA),
                template("src", gst::PadDirection::Src, "video/x-raw"),
            ]
        });
        &*TEMPLATES
    }

    fn set_context(&self, context: &gst::Context) {
        if context.context_type() == CONTEXT {
            *self.context() = Some(context.clone());
        }
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::NullToReady {
            self.ensure_context();
        }
        self.parent_change_state(transition)
    }
}

fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        testing::init();
        gst::Element::register(None, "ingesttestdecoder", gst::Rank::PRIMARY, Decoder::static_type())
            .expect("registered");
    });
}

/// Plugs a decoder between two elements of a pipeline, and takes it out again.
fn decode_once(pipeline: &gst::Pipeline) {
    let (source, sink) = (make("fakesrc").expect("fakesrc"), make("fakesink").expect("fakesink"));
    pipeline.add_many([&source, &sink]).expect("added");
    let (from, to) = (source.static_pad("src").expect("a pad"), sink.static_pad("sink").expect("a pad"));
    let decoder = plug(pipeline, &from, &gst::Caps::new_empty_simple(MEDIA), &to).expect("a decoder");
    decoder.set_state(gst::State::Null).expect("stopped");
    pipeline.remove_many([&source, &decoder, &sink]).expect("removed");
}

/// Each context of CUDA costs some hundred MB of GPU memory, and a decoder cannot write to the
/// memory of another one's.
#[test]
fn decoders_of_one_process_share_their_context() {
    init();
    let (one, two) = (Pipeline::new(), Pipeline::new());
    for pipeline in [&one, &two, &one] {
        decode_once(&pipeline.0);
    }
    assert_eq!(MADE.load(Ordering::Relaxed), 1);
}

/// A source pushes the end of the stream behind an error: readers would take it for the camera's.
#[test]
fn failed_decoder_does_not_end_the_stream() {
    init();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s").to_str().expect("a path").to_owned();
    let pipeline = Pipeline::new();
    let sink = make("framesharesink").expect("framesharesink");
    sink.set_property("socket-path", &socket);
    sink.set_property("async", false);
    let source = make("fakesrc").expect("fakesrc");
    pipeline.0.add_many([&source, &sink]).expect("added");
    let target = sink.static_pad("sink").expect("a pad");
    let ended = keep_open(&pipeline.0, &target);
    sink.set_state(gst::State::Playing).expect("the sink starts");

    let reader = format!("framesharesrc socket-path={socket} ! fakesink async=false");
    let reader =
        gst::parse::launch(&reader).expect("a reader").downcast::<gst::Pipeline>().expect("a pipeline");
    let reader = Pipeline(reader);
    reader.play().expect("the reader starts");
    while sink.property::<u32>("num-clients") == 0 {
        assert_eq!(reader.wait(std::time::Duration::from_millis(10)), None);
    }

    let from = source.static_pad("src").expect("a pad");
    plug(&pipeline.0, &from, &gst::Caps::new_empty_simple(MEDIA), &target).expect("a decoder");
    pipeline.play().expect("the pipeline starts");
    let patience = std::time::Duration::from_secs(60);
    let end = pipeline.wait(patience);
    assert!(matches!(&end, Some(super::End::Failed(error)) if error.contains("fakesrc")), "{end:?}");
    drop(source);
    while !ended.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    drop(pipeline);
    let end = reader.wait(patience);
    assert!(matches!(&end, Some(super::End::Failed(error)) if error.contains("framesharesrc")), "{end:?}");
}

/// A camera's unit of a few bytes may announce frames of any size, whatever its caps say.
#[test]
fn frames_that_are_too_large_are_an_error() {
    testing::init();
    let decoded = |width: u32| {
        let description = format!(
            "videotestsrc num-buffers=60 ! video/x-raw,width={width},height=16 ! x264enc \
             ! video/x-h264,stream-format=byte-stream ! capssetter caps=video/x-h264,width=64 ! avdec_h264"
        );
        let decoder = gst::parse::bin_from_description(&description, true).expect("a decoder");
        let (pipeline, filter) = (Pipeline::new(), bound().expect("a filter"));
        let sink = make("fakesink").expect("fakesink");
        pipeline.0.add_many([decoder.upcast_ref(), &filter, &sink]).expect("added");
        gst::Element::link_many([decoder.upcast_ref(), &filter, &sink]).expect("linked");
        pipeline.play().expect("the pipeline starts");
        pipeline.wait(std::time::Duration::from_secs(60))
    };
    assert_eq!(decoded(8192), Some(super::End::EndOfStream));
    let Some(super::End::Failed(error)) = decoded(8208) else { panic!("frames of 8208x16 are decoded") };
    assert!(explain(error.clone()).contains("8192 pixels"), "{error}");
}
