// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames that GStreamer's unixfdsink passes on (1.24 and later).

use super::{NV12, NV12_SIZE, PICTURE, expected};
use frameshare_tests::{
    content::checksums,
    process::{TestRun, wait_until},
    skip::skip,
};
use std::fs;

/// The third process maps the exporter's own slots: no process between has copied a frame.
#[test]
fn unixfdsink_passes_slots_on_without_a_copy() {
    gst::init().unwrap();
    if gst::ElementFactory::find("unixfdsink").is_none() {
        return skip("elements/unixfd", "unixfdsink needs GStreamer 1.24");
    }
    let run = TestRun::new();
    let expected = expected(&run, 400);
    // The same frames, and time for two processes to come.
    let slow = NV12.replace("100/1", "20/1");
    let _exporter = run.gst(&format!(
        "videotestsrc is-live=true {PICTURE} num-buffers=400 ! {slow} ! framesharesink stream=s"
    ));
    let socket = run.path("passed").display().to_string();
    let _passer = run.gst(&format!("framesharesrc stream=s ! unixfdsink socket-path={socket} sync=false"));
    wait_until("the socket of unixfdsink", || run.path("passed").exists());
    let reader = run.gst(&format!("unixfdsrc socket-path={socket} ! filesink location=read.raw"));
    let process = reader.pid();
    let has_slot = || {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| file.to_string_lossy().starts_with("/memfd:frameshare-slot:s"))
    };
    wait_until("a slot in the third process", has_slot);
    wait_until("some frames", || run.read("read.raw").len() > 20 * NV12_SIZE);
    reader.interrupt();
    assert_eq!(reader.finish().signal, None);
    let read = checksums(&run.read("read.raw"), NV12_SIZE);
    let mut rest = expected.iter();
    assert!(!read.is_empty());
    assert!(
        read.iter().all(|sum| rest.any(|expected| expected == sum)),
        "a frame differs, or is out of order"
    );
}
