// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every command of the page is run verbatim, and a failing one is detected.

use super::{lines, play};

/// Stand-in that runs every pipeline; reading ones fail as `$BEHAVIOR` says.
const GST_LAUNCH: &str = r#"#!/bin/bash
ends='Got EOS from element "pipeline0".' renders='0:00:01 basesink PLAYING to PAUSED, rendered: 7, dropped: 0'
case "$BEHAVIOR $*" in
  "fails "*framesharesrc*) exit 1 ;;
  "is broken off "*framesharesrc*) ends= ;;
  "gets nothing "*framesharesrc*) renders=${renders/7/0} ;;
  "has no sink "*framesharesrc*) renders= ;;
esac
printf '%s\n' "$renders" "$ends"
"#;

#[test]
fn every_documented_command_is_run() {
    let output = play("commands", GST_LAUNCH, "");
    assert!(output.status.success(), "{output:?}");
    let page = include_str!("../../../../../docs/gpu.md");
    let typed = lines(&output, "PASS commands-page-");
    let commands: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("    gst-launch-1.0 ")).collect();
    assert_eq!(typed.len(), commands.len(), "{typed:?}");
    for (typed, command) in typed.iter().zip(&commands) {
        assert!(typed.ends_with(&format!(": 7 frames: gst-launch-1.0 {command}")), "{typed}");
    }
    assert!(!commands.is_empty() && lines(&output, "PASS commands-first-").len() == 2, "{output:?}");
}

#[test]
fn failing_reader_command_is_reported() {
    for behavior in ["fails", "is broken off", "gets nothing", "has no sink"] {
        let output = play("commands", GST_LAUNCH, behavior);
        assert!(!output.status.success(), "{behavior}: {output:?}");
        let failed = lines(&output, "FAIL");
        assert!(
            failed.len() >= 2 && failed.iter().all(|line| line.contains("framesharesrc")),
            "{behavior}: {failed:?}"
        );
    }
}
