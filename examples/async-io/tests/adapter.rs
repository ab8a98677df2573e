// SPDX-License-Identifier: MIT OR Apache-2.0

//! The adapter in one thread: a call that blocks would stop the exporter, too.

use async_io::Timer;
use frameshare::{Wait, exporter::VideoExporter, video::VideoFormat};
use frameshare_async_io::AsyncFrames;
use futures_lite::future::{or, zip};
use std::time::Duration;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn exporter(stream: &str) -> VideoExporter {
    VideoExporter::new(stream, VideoFormat::new("GRAY8".parse().unwrap(), 16, 16)).unwrap()
}

async fn publish(video: &VideoExporter, value: u8) {
    while video.exporter().reader_count() < 1 {
        Timer::after(Duration::from_millis(1)).await;
    }
    let mut frame = video.acquire(Wait::Forever).unwrap();
    frame.bytes_mut().fill(value);
    video.publish(&frame, Wait::Forever).unwrap();
}

#[test]
fn reader_awaits_streams_that_start_later_and_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    let stream = path.to_str().unwrap();
    let mut frames = AsyncFrames::open(stream).unwrap();
    let reading = async {
        for value in 0..2 {
            let frame = frames.next().await.unwrap().expect("the stream has not ended");
            assert_eq!(frame.slice().unwrap()[255], value);
        }
        assert!(frames.next().await.unwrap().is_none(), "the stream has not ended");
        frames.get_ref().reader().stats().reconnects
    };
    let exporting = async {
        let first = exporter(stream);
        publish(&first, 0).await;
        while first.exporter().stats().readers.iter().any(|reader| reader.queued > 0) {
            Timer::after(Duration::from_millis(1)).await;
        }
        drop(first);
        let second = exporter(stream);
        publish(&second, 1).await;
        second.exporter().end_of_stream();
        second
    };
    let limit = async {
        Timer::after(PATIENCE).await;
        panic!("the reader or the exporter hangs")
    };
    let (reconnects, _second) = async_io::block_on(or(zip(reading, exporting), limit));
    assert_eq!(reconnects, 1);
}
