// SPDX-License-Identifier: MIT OR Apache-2.0

//! Discovery of streams in several folders.

use frameshare_tests::process::TestRun;
use std::fs;

#[test]
fn streams_of_other_folders_are_listed() {
    let run = TestRun::new();
    fs::create_dir(run.path("cameras")).unwrap();
    let export =
        |endpoint: &str| run.peer(&format!("export {endpoint} --frames 100000000 --fps 100 --readers 0"));
    let mut exporters =
        [export("--stream own"), export("--socket cameras/front.sock"), export("--socket x.sock")];
    exporters.iter_mut().for_each(|exporter| _ = exporter.wait_for("open"));
    let listed = |path: String| {
        let mut list = run.peer_by(&format!("env FRAMESHARE_PATH={path}"), "list");
        list.wait_for("streams")["names"].clone()
    };
    let cameras = run.path("cameras").display().to_string();
    assert_eq!(listed(String::new()), serde_json::json!([["own", true]]));
    let both = serde_json::json!([["own", true], ["front", false]]);
    assert_eq!(listed(format!("{cameras}:/nowhere")), both);
    // The folder of named streams is listed once.
    let own = run.path("frameshare").display().to_string();
    assert_eq!(listed(format!("{own}:{cameras}/:{cameras}")), both);
}
