// SPDX-License-Identifier: MIT OR Apache-2.0

//! The adapter in a runtime of one thread: a call that blocks would stop the exporter, too.

use frameshare::{Wait, exporter::VideoExporter, video::VideoFormat};
use frameshare_tokio::AsyncFrames;
use futures_lite::future::zip;
use std::{future::Future, time::Duration};
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("the reader or the exporter hangs") })
}

fn exporter(stream: &str) -> VideoExporter {
    VideoExporter::new(stream, VideoFormat::new("GRAY8".parse().unwrap(), 16, 16)).unwrap()
}

async fn publish(video: &VideoExporter, readers: usize, value: u8) {
    while video.exporter().reader_count() < readers {
        sleep(Duration::from_millis(1)).await;
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
    run(async {
        let mut frames = AsyncFrames::open(stream).unwrap();
        let reading = async {
            for value in 0..3 {
                let frame = frames.next().await.unwrap().expect("the stream has not ended");
                assert_eq!(frame.slice().unwrap()[255], value);
            }
            assert!(frames.next().await.unwrap().is_none(), "the stream has not ended");
            frames.get_ref().reader().stats().reconnects
        };
        let exporting = async {
            let first = exporter(stream);
            publish(&first, 1, 0).await;
            sleep(Duration::from_millis(30)).await;
            publish(&first, 1, 1).await;
            while first.exporter().stats().readers.iter().any(|reader| reader.queued > 0) {
                sleep(Duration::from_millis(1)).await;
            }
            drop(first);
            let second = exporter(stream);
            publish(&second, 1, 2).await;
            second.exporter().end_of_stream();
            second
        };
        let (reconnects, _second) = zip(reading, exporting).await;
        assert_eq!(reconnects, 1);
    });
}

#[test]
fn dropped_future_loses_no_frame() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    let stream = path.to_str().unwrap();
    run(async {
        let video = exporter(stream);
        let mut frames = AsyncFrames::open(stream).unwrap();
        for value in 0..20 {
            // Times out before the frame is published, or while the reader connects.
            assert!(timeout(Duration::from_millis(1), frames.next()).await.is_err());
            let (frame, ()) = zip(frames.next(), publish(&video, 1, value)).await;
            let frame = frame.unwrap().expect("the stream has not ended");
            assert_eq!((frame.slice().unwrap()[0], frame.lost_before()), (value, 0));
        }
    });
}
