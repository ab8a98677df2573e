// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layout of a decoder's frames: padded rows in place, or one copy for all readers.

use super::{media::has, *};

/// A clip whose rows need no padding, and the images that it decodes to.
struct Clip {
    folder: tempfile::TempDir,
    images: Vec<Vec<u8>>,
}

impl Clip {
    const FRAMES: usize = 150;

    /// Encodes it; none without the codec.
    fn encode() -> Option<Self> {
        if !has(&["x264enc", "h264parse", "avdec_h264"]) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let encoder = launch(&format!(
            "videotestsrc num-buffers={} pattern=ball \
             ! video/x-raw,format=I420,width=320,height=242,framerate=100/1 ! x264enc tune=zerolatency \
             ! video/x-h264,stream-format=byte-stream ! fakesink name=end sync=false enable-last-sample=false",
            Self::FRAMES
        ));
        let units: Vec<_> = all(&Reader::watch(encoder)).into_iter().map(|unit| bytes(&unit)).collect();
        std::fs::write(folder.path().join("video.h264"), units.concat()).unwrap();
        let mut clip = Self { folder, images: Vec::new() };
        let plain = Reader::watch(launch(&format!(
            "{} ! videoconvert ! fakesink name=end sync=false enable-last-sample=false",
            clip.decoder()
        )));
        clip.images = all(&plain).iter().map(|image| bytes(image)).collect();
        assert_eq!(clip.images.len(), Self::FRAMES);
        Some(clip)
    }

    /// The decoder behind a source of the clip.
    fn decoder(&self) -> String {
        let file = self.folder.path().join("video.h264");
        format!("filesrc location={} ! h264parse ! avdec_h264 max-threads=1", file.display())
    }

    /// Shares the clip with some readers, compares what they get, and returns how many frames each
    /// copied, and how many the sink.
    fn share(&self, readers: usize, properties: &str) -> (Vec<u64>, u64) {
        let path = self.folder.path().join("s");
        let exporter = launch(&format!(
            "{} ! framesharesink name=sink sync=false wait-for-connection=true slow-readers=wait \
             socket-path={} {properties}",
            self.decoder(),
            path.display()
        ));
        let sink = exporter.by_name("sink").unwrap();
        // The first frame leaves when all readers are there.
        exporter.set_state(gst::State::Paused).unwrap();
        assert!(exporter.state(gst::ClockTime::from_seconds(20)).0.is_ok());
        let readers: Vec<_> = (0..readers).map(|_| Reader::new(&path)).collect();
        wait_until("all readers", || sink.property::<u32>("num-clients") as usize == readers.len());
        exporter.set_state(gst::State::Playing).unwrap();
        let mut copied = Vec::new();
        for reader in &readers {
            let got = all(reader);
            assert!(
                got.iter().map(|image| bytes(image)).eq(self.images.iter().cloned()),
                "{} images",
                got.len()
            );
            let source = reader.pipeline.by_name("source").unwrap();
            let stats = source.property::<gst::Structure>("stats");
            copied.push(stats.get::<u64>("copied-for-layout").unwrap());
        }
        let copies = sink.property::<gst::Structure>("stats").get::<u64>("copies").unwrap();
        exporter.set_state(gst::State::Null).unwrap();
        (copied, copies)
    }
}

/// Returns all buffers up to the end of the stream.
fn all(reader: &Reader) -> Vec<gst::Buffer> {
    let mut buffers = Vec::new();
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => buffers.push(buffer),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => {
                // Parsers send tags before the segment.
                reader.order.lock().unwrap().violations.clear();
                return buffers;
            }
            Arrival::Event(_) => {}
        }
    }
}

#[test]
fn exporter_copies_once_instead_of_each_reader() {
    let Some(clip) = Clip::encode() else { return };
    let all = Clip::FRAMES as u64;
    // One reader alone costs the exporter nothing.
    assert_eq!(clip.share(1, ""), (vec![all], 0));
    assert_eq!(clip.share(3, "layout=decoder"), (vec![all; 3], 0));
    // No reader copies.
    assert_eq!(clip.share(3, "layout=compact"), (vec![0; 3], 0));
    // From the second reader's report on, no reader copies; frames on their way are copied once.
    let (copied, copies) = clip.share(3, "layout=auto");
    assert!(copied.iter().all(|copied| (1..all / 2).contains(copied)), "{copied:?} and {copies}");
    assert!(copies < all / 2, "{copies}");
}

/// The table in README.
#[test]
fn elements_copy_padded_rows_as_documented() {
    let Some(clip) = Clip::encode() else { return };
    let path = clip.folder.path().join("s");
    let copied = |elements: &str, properties: &str| {
        let exporter = launch(&format!(
            "{} ! framesharesink name=sink sync=false wait-for-connection=true \
             socket-path={} {properties}",
            clip.decoder(),
            path.display()
        ));
        let reader = launch(&format!(
            "framesharesrc name=source socket-path={} policy=lossless max-held=16 connection-timeout=20000000000 \
             num-buffers=20 ! {elements}",
            path.display()
        ));
        exporter.set_state(gst::State::Playing).unwrap();
        reader.set_state(gst::State::Playing).unwrap();
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let end = reader.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(30), &kinds);
        assert!(matches!(&end, Some(end) if end.type_() == gst::MessageType::Eos), "{elements}: {end:?}");
        let stats = reader.by_name("source").unwrap().property::<gst::Structure>("stats");
        [reader, exporter].into_iter().for_each(|pipeline| {
            pipeline.set_state(gst::State::Null).unwrap();
        });
        stats.get::<u64>("copied-for-layout").unwrap()
    };
    let end = "fakesink sync=false";
    for elements in [
        "fakevideosink sync=false",
        &format!("videoconvert ! video/x-raw,format=BGR ! {end}"),
        &format!("videoscale ! video/x-raw,width=64,height=48 ! {end}"),
        &format!("x264enc tune=zerolatency ! {end}"),
        &format!("jpegenc ! {end}"),
        &format!("compositor ! {end}"),
        &format!("videocrop left=16 ! {end}"),
    ] {
        let element = elements.split(' ').next().unwrap();
        if has(&[element]) {
            assert_eq!(copied(elements, ""), 0, "{elements}");
        }
    }
    for elements in ["", "queue !", "identity !", "videorate !", "tee !", "videobalance !"] {
        assert_eq!(copied(&format!("{elements} {end}"), ""), 20, "{elements}");
        assert_eq!(copied(&format!("{elements} {end}"), "layout=compact"), 0, "{elements}, compact");
    }
}
