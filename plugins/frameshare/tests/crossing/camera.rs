// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames of a V4L2 camera in dma-bufs, under caps with a drm-format as devices send them. The
//! camera is `vivid`, which needs no hardware: these tests run in guests (tests/guests/dmabuf).

use super::*;
use frameshare_tests::skip::skip;
use std::collections::HashMap;

const DRM: &str =
    "video/x-raw(memory:DMABuf), format=DMA_DRM, width=320, height=180, framerate=25/1, drm-format";
/// A layout of a device, in name only, so that contents can be compared.
const TILED: &str = "YUYV:0x0100000000000001";

/// A camera whose frames are shared, and recorded by their offset.
struct Camera {
    pipeline: gst::Pipeline,
    path: PathBuf,
    made: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
    _folder: tempfile::TempDir,
}

impl Camera {
    /// Opens the camera, or reports the test as skipped.
    fn open(test: &str, drm_format: &str, properties: &str) -> Option<Self> {
        let name = std::fs::read_to_string("/sys/class/video4linux/video0/name").unwrap_or_default();
        if !name.starts_with("vivid") {
            skip(test, "the kernel module vivid is not loaded: tests/guests/dmabuf runs it");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let pipeline = launch(&format!(
            "v4l2src io-mode=dmabuf num-buffers=60 ! video/x-raw, format=YUY2, width=320, height=180, framerate=25/1 ! \
             identity name=device ! framesharesink name=sink socket-path={} sync=false wait-for-connection=true {properties}",
            path.display()
        ));
        let drm: gst::Caps = format!("{DRM}={drm_format}").parse().unwrap();
        let made = Arc::<Mutex<HashMap<u64, Vec<u8>>>>::default();
        let record = made.clone();
        let pad = pipeline.by_name("device").unwrap().static_pad("src").unwrap();
        let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
        pad.add_probe(kinds, move |_, info| {
            match &mut info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    record.lock().unwrap().insert(buffer.offset(), bytes(buffer));
                }
                Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Caps => {
                    *event = gst::event::Caps::new(&drm);
                }
                _ => {}
            }
            gst::PadProbeReturn::Ok
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        Some(Self { pipeline, path, made, _folder: folder })
    }

    fn stat<T: for<'a> glib::value::FromValue<'a>>(&self, name: &str) -> T {
        let stats = self.pipeline.by_name("sink").unwrap().property::<gst::Structure>("stats");
        stats.value(name).unwrap().get().unwrap()
    }

    fn assert_made(&self, buffer: &gst::BufferRef) {
        assert!(self.made.lock().unwrap()[&buffer.offset()] == bytes(buffer), "{}", buffer.offset());
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Returns the frames that a reader gets until the end of the stream, each looked at by `look`.
fn read_all(reader: &Reader, mut look: impl FnMut(gst::Buffer, gst::Caps)) -> usize {
    let mut count = 0;
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, caps) => look(buffer, caps.unwrap()),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => return count,
            Arrival::Event(_) => continue,
        }
        count += 1;
    }
}

fn is_in_dma_buf(buffer: &gst::BufferRef) -> bool {
    buffer.n_memory() == 1 && buffer.peek_memory(0).is_memory_type::<gst_allocators::DmaBufMemory>()
}

#[test]
fn frames_in_rows_arrive_in_place_under_plain_caps() {
    let Some(camera) = Camera::open("frames_in_rows_arrive_in_place_under_plain_caps", "YUYV", "") else {
        return;
    };
    let reader = Reader::new(&camera.path);
    let count = read_all(&reader, |buffer, caps| {
        camera.assert_made(&buffer);
        assert_eq!(caps.structure(0).unwrap().get::<&str>("format"), Ok("YUY2"));
    });
    assert_eq!(count, 60);
    assert!(camera.stat::<u64>("dma-bufs") >= 30);
}

#[test]
fn frames_in_device_layout_arrive_in_place_with_their_planes() {
    let test = "frames_in_device_layout_arrive_in_place_with_their_planes";
    let Some(camera) = Camera::open(test, TILED, "") else { return };
    let reader = Reader::new(&camera.path);
    let count = read_all(&reader, |buffer, caps| {
        camera.assert_made(&buffer);
        let expected: gst::Caps = format!("{DRM}={TILED}").parse().unwrap();
        assert!(caps.can_intersect(&expected) && is_in_dma_buf(&buffer), "{caps}");
        let meta = buffer.meta::<gst_video::VideoMeta>().expect("its planes");
        assert_eq!((meta.offset(), meta.stride()), (&[0][..], &[640][..]));
    });
    assert_eq!(count, 60);
    assert_eq!((camera.stat::<u64>("dma-bufs"), camera.stat::<u64>("copies")), (60, 0));
}

#[test]
fn reader_that_holds_all_buffers_is_disconnected() {
    let test = "reader_that_holds_all_buffers_is_disconnected";
    let Some(camera) = Camera::open(test, TILED, "reader-timeout=1000000000 max-held-limit=64") else {
        return;
    };
    let holder = Reader::watch(launch(&format!(
        "framesharesrc socket-path={} policy=latest max-held=64 connection-timeout=20000000000 ! \
         fakesink name=end sync=false",
        camera.path.display()
    )));
    let held = vec![holder.buffer()];
    let reader = Reader::new(&camera.path);
    let count = read_all(&reader, |buffer, _| camera.assert_made(&buffer));
    let bus = holder.pipeline.bus().unwrap();
    let error = bus.timed_pop_filtered(gst::ClockTime::from_seconds(20), &[gst::MessageType::Error]);
    let gst::MessageView::Error(error) = error.as_ref().expect("it is disconnected").view() else {
        unreachable!()
    };
    let text = error.error().to_string();
    assert!(text.contains("kept upstream waiting for its buffers"), "{text}");
    assert!(count >= 50, "{count}");
    drop(held);
}
