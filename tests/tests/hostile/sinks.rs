// SPDX-License-Identifier: MIT OR Apache-2.0

//! Honest readers of a sink under attack with descriptors whose close blocks: lingering sockets,
//! and files of a FUSE server that does not answer (see [`fuse`](super::fuse)).
//!
//! They get every frame unchanged, before, during and after the attack; then the sink stops in
//! time.

use super::{WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, attacks, fuse, is_foreign, wait_until_listening};
use frameshare_tests::{
    content::checksums,
    process::{Outcome, Process, TestRun},
    skip,
};

/// Every frame differs from the one before.
const PICTURE: &str = "pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3";
const CAPS: &str = "video/x-raw,format=GRAY8,width=32,height=24,framerate=100/1";
const SIZE: usize = 32 * 24;
/// More than the sink makes in a test.
const FRAMES: usize = 20_000;

/// The checksums of the frames that the sink gets.
fn expected() -> Vec<String> {
    let run = TestRun::new();
    let make =
        format!("videotestsrc num-buffers={FRAMES} {PICTURE} ! {CAPS} ! filesink location=expected.raw");
    run.gst(&make).expect_success();
    checksums(&run.read("expected.raw"), SIZE)
}

/// Checks every frame of a lossless reader.
fn saw_right_frames(outcome: &Outcome, expected: &[String]) {
    let frames = outcome.events("frame");
    assert!(frames.len() >= 20, "{} frames", frames.len());
    for frame in &frames {
        let sequence = frame["sequence"].as_u64().expect("a number") as usize;
        assert_eq!(frame["sum"].as_str(), Some(expected[sequence - 1].as_str()), "frame {sequence}");
    }
    assert_eq!(outcome.summary()["lost"], 0, "{}", outcome.summary());
}

/// Runs attacks on a sink one after the other. All attackers stay.
fn sink_serves(kernel: &str, names: &[&str], expected: &[String]) {
    let run = TestRun::new();
    let path = run.path("frameshare/s.sock");
    let pipeline = format!("videotestsrc is-live=true {PICTURE} ! {CAPS} ! framesharesink stream=s");
    let (mut sink, mut attackers);
    let has_fuse = names.iter().any(|name| name.starts_with("fuse"));
    sink = run.gst_by(&format!("{kernel} env G_DEBUG=fatal-criticals"), &pipeline);
    attackers = Vec::new();
    wait_until_listening(&path);
    let mut server = has_fuse.then(|| fuse::server(&run, &path));
    let mut honest = run.peer("read --stream s --policy lossless --sum yes --timeout-ms 60000");
    honest.wait_for("frame");
    for name in names {
        let mut attacker = run.hostile(&format!("reader {} {name} stay", path.display()));
        let done = attacker.wait_for("done");
        println!("{name}: {done}");
        assert!(kernel == WITH_PASSRIGHTS || done["refused"] == false, "{name}: {done}");
        attackers.push(attacker);
        let late = run
            .peer("read --stream s --policy lossless --sum yes --timeout-ms 60000 --frames 20")
            .expect_success();
        saw_right_frames(&late, expected);
    }
    sink.interrupt();
    sink.wait_until_stopped();
    if let Some(server) = &mut server {
        server.kill();
    }
    let outcome = sink.finish();
    assert_eq!(outcome.signal, None, "{}", outcome.stderr);
    saw_right_frames(&honest.finish(), expected);
    attackers.iter_mut().for_each(Process::kill);
}

fn sink_serves_beside_lingering(kernel: &str) {
    let names = attacks(&TestRun::new(), "reader");
    // With many connections the attacker's user, which is that of all processes here, is refused:
    // see `readers`.
    let lingering = |name: &&str| is_foreign(name) && *name != "lingering-in-many-connections";
    let names: Vec<&str> = names.iter().map(String::as_str).filter(lingering).collect();
    assert!(names.len() > 5, "{names:?}");
    sink_serves(kernel, &names, &expected());
}

#[test]
fn sink_serves_beside_lingering_sockets() {
    if skip::has_passrights("hostile/sink_serves_beside_lingering_sockets") {
        sink_serves_beside_lingering(WITH_PASSRIGHTS);
    }
}

#[test]
fn sink_serves_beside_lingering_sockets_before_linux_6_16() {
    sink_serves_beside_lingering(WITHOUT_PASSRIGHTS);
}

#[test]
fn sink_stops_after_descriptor_of_silent_fuse_server() {
    if fuse::can_serve("sink_stops_after_descriptor_of_silent_fuse_server") {
        let expected = expected();
        for name in fuse::AGAINST_EXPORTERS {
            sink_serves(WITH_PASSRIGHTS, &[name], &expected);
            sink_serves(WITHOUT_PASSRIGHTS, &[name], &expected);
        }
    }
}
