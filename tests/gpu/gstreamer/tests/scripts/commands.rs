//! Every command of the page is typed as it stands there, and one that does not work is found.

use super::{lines, play};

/// Plays every pipeline; those of a reader as it was told.
const GST_LAUNCH: &str = r#"#!/bin/bash
ends='Got EOS from element "pipeline0".' renders='0:00:01 basesink PLAYING to PAUSED, rendered: 7, dropped: 0'
case "$TOLD $*" in
  "fails "*framesharesrc*) exit 1 ;;
  "is broken off "*framesharesrc*) ends= ;;
  "gets nothing "*framesharesrc*) renders=${renders/7/0} ;;
  "has no sink "*framesharesrc*) renders= ;;
esac
printf '%s\n' "$renders" "$ends"
"#;

#[test]
fn each_command_of_the_page_is_typed() {
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
fn a_reader_that_does_not_read_is_found() {
    for told in ["fails", "is broken off", "gets nothing", "has no sink"] {
        let output = play("commands", GST_LAUNCH, told);
        assert!(!output.status.success(), "{told}: {output:?}");
        let failed = lines(&output, "FAIL");
        assert!(
            failed.len() >= 2 && failed.iter().all(|line| line.contains("framesharesrc")),
            "{told}: {failed:?}"
        );
    }
}
