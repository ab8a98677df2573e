// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of readers that copy frames for their layout.

use super::*;

/// Such a report may change the exporter's cost: only readers of its own user count.
#[test]
fn reader_of_another_user_has_no_say_in_the_layout() {
    if !is_root("reader_of_another_user_has_no_say_in_the_layout") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(&format!(
        "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 100000000 --size 1000 \
         --until {UNTIL} --fps 200 --readers 0"
    ));
    exporter.wait_for("progress");
    let mut stream = Stream { exporter, run };
    let read = "read --socket s.sock --quiet yes --report-layout yes";
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let mut others = [(); 2].map(|()| stream.run.peer_by(nobody, read));
    others.iter_mut().for_each(|other| drop(other.wait_for("first")));
    let mut own = [(); 2].map(|()| stream.run.peer(read));
    own.iter_mut().for_each(|own| drop(own.wait_for("first")));
    stream.exporter.wait_for("LayoutCopied { readers: 2 }");
    // Meanwhile a further report would arrive.
    stream.wait_for_frames(60);
    let (outcome, _run) = stream.end();
    let counts: Vec<_> =
        [1, 2].map(|readers| outcome.events(&format!("LayoutCopied {{ readers: {readers} }}")).len()).into();
    assert_eq!((counts, outcome.events("LayoutCopied { readers: 3 }").len()), (vec![1, 1], 0));
    others.into_iter().chain(own).for_each(|reader| drop(reader.finish()));
}
