// SPDX-License-Identifier: MIT OR Apache-2.0

//! Timestamps of a stream whose sink waits for a reader.

use super::*;
use std::collections::BTreeSet;

const FRAME: gst::ClockTime = gst::ClockTime::from_nseconds(1_000_000_000 / 30);

/// Live pipeline with 30 frames per second that waits for readers.
struct Live {
    pipeline: gst::Pipeline,
    folder: tempfile::TempDir,
}

impl Live {
    fn new(frames: i32, sync: bool) -> Self {
        Self::with(frames, &format!("wait-for-connection=true sync={sync}"))
    }

    fn with(frames: i32, properties: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipeline = launch(&format!(
            "videotestsrc is-live=true num-buffers={frames} ! \
             video/x-raw,format=GRAY8,width=16,height=8,framerate=30/1 ! \
             framesharesink name=sink {properties} socket-path={}/s",
            folder.path().display()
        ));
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, folder }
    }

    fn sink(&self) -> gst::Element {
        self.pipeline.by_name("sink").unwrap()
    }

    fn published(&self) -> u64 {
        self.sink().property::<gst::Structure>("stats").get("published").unwrap()
    }

    fn read(&self, policy: &str, sync: bool) -> Reader {
        Reader::watch(launch(&format!(
            "framesharesrc name=source socket-path={}/s policy={policy} connection-timeout=20000000000 ! \
             fakesink name=end sync={sync} enable-last-sample=false",
            self.folder.path().display()
        )))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Returns the timestamps of the next `count` frames, or of those up to the end of the stream. All
/// must differ.
fn frames(reader: &Reader, count: usize) -> Vec<gst::ClockTime> {
    let mut all = Vec::new();
    while all.len() < count {
        match reader.next() {
            Arrival::Buffer(buffer, _) => {
                let duration = buffer.duration().unwrap_or_default();
                assert!(duration.absdiff(FRAME) < gst::ClockTime::from_mseconds(1), "{buffer:?} of {all:?}");
                all.push(buffer.pts().unwrap());
            }
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => break,
            Arrival::Event(_) => {}
        }
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    all
}

#[test]
fn late_reader_gets_distinct_times() {
    let count = 60;
    let both = [true, false];
    let cases = both.into_iter().flat_map(|sync| ["lossless", "latest"].map(|policy| (sync, policy)));
    let cases = cases.map(|(sync, policy)| {
        std::thread::spawn(move || {
            let live = Live::new(count, sync);
            std::thread::sleep(Duration::from_millis(1500));
            assert_eq!(live.published(), 0);
            let all = frames(&live.read(policy, sync), usize::MAX);
            // A `latest` reader may lose frames.
            let least = if policy == "lossless" { count as usize } else { 1 };
            assert!((least..=count as usize).contains(&all.len()), "{policy}, sync={sync}: {}", all.len());
            if policy == "lossless" {
                let span = *all.last().unwrap() - all[0];
                assert!(span.absdiff(FRAME * (count as u64 - 1)) < FRAME, "{policy}, sync={sync}: {span}");
            }
        })
    });
    cases.collect::<Vec<_>>().into_iter().for_each(|case| case.join().unwrap());
}

#[test]
fn second_wait_delays_the_stream_again() {
    for sync in [true, false] {
        let live = Live::new(-1, sync);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(500));
            let reader = live.read("lossless", false);
            frames(&reader, 20);
            drop(reader);
            wait_until("the reader's disconnection", || live.sink().property::<u32>("num-clients") == 0);
        }
    }
}

#[test]
fn pause_during_wait_is_no_delay() {
    let live = Live::new(-1, true);
    std::thread::sleep(Duration::from_millis(300));
    live.pipeline.set_state(gst::State::Paused).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    live.pipeline.set_state(gst::State::Playing).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    frames(&live.read("lossless", true), 20);
}

#[test]
fn clearing_the_property_ends_the_wait() {
    for pause in [false, true] {
        let live = Live::new(-1, true);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(live.published(), 0);
        if pause {
            live.pipeline.set_state(gst::State::Paused).unwrap();
        }
        live.sink().set_property("wait-for-connection", false);
        live.pipeline.set_state(gst::State::Playing).unwrap();
        wait_until("frames without a reader", || live.published() > 10);
        // Set the property again: the sink waits again, and can be stopped in the wait.
        live.sink().set_property("wait-for-connection", true);
        let still = || {
            let before = live.published();
            std::thread::sleep(Duration::from_millis(200));
            live.published() == before
        };
        wait_until("the next wait", still);
        frames(&live.read("lossless", true), 5);
    }
}

/// A camera drops frames while the sink waits for a reader: the next ones are in time, and wait for
/// nothing.
#[test]
fn live_source_that_drops_frames_is_not_delayed() {
    let folder = tempfile::tempdir().unwrap();
    let pipeline = launch(&format!(
        "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=16,height=8,framerate=30/1 ! \
         queue leaky=downstream max-size-buffers=2 ! \
         framesharesink name=sink wait-for-connection=true socket-path={}/s",
        folder.path().display()
    ));
    pipeline.set_state(gst::State::Playing).unwrap();
    let live = Live { pipeline, folder };
    std::thread::sleep(Duration::from_secs(3));
    let reader = live.read("lossless", false);
    // With the delay, a frame would come every 3 s.
    let begin = Instant::now();
    for _ in 0..30 {
        reader.buffer();
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

/// `GstBaseSink` may be told to pause, play and pause again before the thread that waits in preroll
/// runs. A wait for a reader that goes on then would hold the lock that the next change of state
/// needs.
#[test]
fn quick_pauses_end_while_the_sink_waits_for_a_reader() {
    let live = Live::new(-1, true);
    pause_quickly(&live);
    assert_eq!(live.published(), 0);
}

/// The same while a reader holds the stream back.
#[test]
fn quick_pauses_end_while_the_sink_waits_for_credit() {
    let live = Live::with(-1, "wait-for-connection=true max-queued-bytes=0 reader-timeout=60000000000");
    let endpoint = frameshare::Endpoint::at(live.folder.path().join("s")).unwrap();
    let config = frameshare::reader::Config::default().policy(frameshare::Policy::Lossless).max_held(2);
    let interrupt = frameshare::Interrupt::new().unwrap();
    let reader = frameshare::reader::Reader::connect(&endpoint, config, &interrupt).unwrap();
    let begin = Instant::now();
    while live.published() < 2 {
        assert!(begin.elapsed() < PATIENCE, "{} frames", live.published());
        std::thread::sleep(Duration::from_millis(10));
    }
    pause_quickly(&live);
    let stats = live.sink().property::<gst::Structure>("stats");
    assert!(live.published() <= 3, "{stats}");
    drop(reader);
}

/// Pauses the pipeline and lets it play again, many times and at once.
fn pause_quickly(live: &Live) {
    let pipeline = live.pipeline.clone();
    in_a_minute("a change of state waits for a reader", move || {
        for _ in 0..2000 {
            pipeline.set_state(gst::State::Paused).unwrap();
            pipeline.set_state(gst::State::Playing).unwrap();
        }
    });
}

/// Runs what may hang. A pipeline that hangs cannot be stopped either.
fn in_a_minute<T: Send + 'static>(hang: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (ended, end) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        let result = run();
        ended.send(()).unwrap();
        result
    });
    if end.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        eprintln!("{hang}");
        std::process::abort();
    }
    running.join().unwrap()
}

/// The first frame may begin to wait for a reader while the change to PLAYING is under way.
#[test]
fn pipelines_without_readers_start_and_stop() {
    for is_live in [false, true] {
        in_a_minute("a pipeline without a reader does not stop", move || {
            for round in 0..60 {
                let folder = tempfile::tempdir().unwrap();
                let pipeline = launch(&format!(
                    "videotestsrc is-live={is_live} ! video/x-raw,format=GRAY8,width=16,height=8,framerate=30/1 ! \
                     framesharesink wait-for-connection=true socket-path={}/s",
                    folder.path().display()
                ));
                if round % 2 == 0 {
                    pipeline.set_state(gst::State::Paused).unwrap();
                    pipeline.state(gst::ClockTime::from_seconds(10)).0.unwrap();
                }
                pipeline.set_state(gst::State::Playing).unwrap();
                std::thread::sleep(Duration::from_millis(30));
                pipeline.set_state(gst::State::Null).unwrap();
            }
        });
    }
}

/// A frame of a delayed stream waits for its time in `render`, and so does the flush of a seek for
/// the frame.
#[test]
fn flushes_end_the_wait_of_a_delayed_stream() {
    for is_live in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let pipeline = launch(&format!(
            "videotestsrc is-live={is_live} num-buffers=3000 ! \
             video/x-raw,format=GRAY8,width=16,height=8,framerate=30/1 ! \
             framesharesink wait-for-connection=true socket-path={}/s",
            folder.path().display()
        ));
        pipeline.set_state(gst::State::Playing).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let reader = Reader::watch(launch(&format!(
            "framesharesrc name=source socket-path={}/s policy=lossless connection-timeout=20000000000 ! \
             fakesink name=end sync=false enable-last-sample=false",
            folder.path().display()
        )));
        frames(&reader, 5);
        let seeking = pipeline.clone();
        in_a_minute("a flush waits for a frame", move || {
            for at in 0..20 {
                let _ = seeking.seek_simple(gst::SeekFlags::FLUSH, gst::ClockTime::from_mseconds(at * 10));
                std::thread::sleep(Duration::from_millis(at * 3));
            }
            seeking.set_state(gst::State::Null).unwrap();
        });
    }
}

/// A frame of a delayed stream waits for its time in `render`. `GstBaseSink` prepares it once more
/// if the pipeline is paused meanwhile.
#[test]
fn pauses_of_a_delayed_stream_lose_no_frame() {
    let live = Live::new(-1, true);
    std::thread::sleep(Duration::from_millis(500));
    let reader = live.read("lossless", false);
    let mut last = frames(&reader, 5)[4];
    for pause in 0..50 {
        live.pipeline.set_state(gst::State::Paused).unwrap();
        std::thread::sleep(Duration::from_millis(pause % 7));
        live.pipeline.set_state(gst::State::Playing).unwrap();
        let next = frames(&reader, 1)[0];
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    let errors = live.pipeline.bus().unwrap();
    assert!(errors.pop_filtered(&[gst::MessageType::Error]).is_none());
}
