// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every reader must get every frame.

use super::{lines, play};

/// Stand-in that decodes to five frames, exports its standard input, and reads. Readers listed in
/// `$BEHAVIOR` lose the frame with the given number, or warn.
const GST_LAUNCH: &str = r#"#!/bin/bash
all=" $* " place=
for word; do case $word in socket-path=*) place=$RUNTIME${word#socket-path=} ;; esac; done
sums() { for frame in 1 2 3 4 5; do echo "0:00:00.$frame $1-$frame"; done; }
case $all in
  *" framesharesink "*)
    mkdir "$place"
    { for ((said = 0; ; )); do sleep 0.05; for ((; said < $(ls "$place" | wc -l); said++)); do echo "reader added"; done; done; } &
    clip=$(cat)
    kill $!
    [ -n "$clip" ] && echo "$clip" >"$place.new" && mv "$place.new" "$place.clip"
    ;;
  *" framesharesrc "*)
    until [ -d "$place" ]; do sleep 0.01; done
    reader=$(basename "$(readlink /proc/self/fd/2)" .errors)
    : >"$place/$reader"
    until [ -e "$place.clip" ]; do sleep 0.01; done
    lost=$(sed -n "s/.* $reader:\([0-9]*\) .*/\1/p" <<<" $BEHAVIOR ")
    sums "$(cat "$place.clip")" | sed "${lost:-6}d"
    paint=${GST_DEBUG_NO_COLOR-$'\e[33m'}
    case " $BEHAVIOR " in *" $reader:warns "*) echo "0:00 1 0x1 ${paint/1/}WARN   basesrc of something" >&2 ;; esac
    ;;
  *) sums "$(cat "$(sed 's/.*location=\([^ ]*\).*/\1/' <<<"$all")")" ;;
esac
"#;

#[test]
fn complete_readers_pass() {
    let output = play("decode", GST_LAUNCH, "");
    assert!(output.status.success(), "{output:?}");
    let passed = lines(&output, "PASS decode-");
    assert!(passed.contains(
        &"PASS decode-in-place-event-8-readers: 5 frames equal the decoded ones, readers: 8".into()
    ));
    assert!(passed.len() > 30 && lines(&output, "FAIL").is_empty(), "{output:?}");
}

/// Loses the first, a middle and the last frame: in one of several readers, and in a single one.
#[test]
fn lost_frame_or_warning_fails() {
    let losers = ["pool-vmm-timeline-4-readers.3:1", "in-place-event-8-readers.8:3", "pool-vmm-event.1:5"];
    let output = play("decode", GST_LAUNCH, &format!("{} copied-pool-event.1:warns", losers.join(" ")));
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "FAIL").len(), losers.len() + 1, "{output:?}");
    assert_eq!(lines(&output, "copied-pool-event"), ["copied-pool-event: warnings in the logs"]);
    for loser in losers {
        let (name, reader) = loser.split_once('.').unwrap();
        let (reader, _) = reader.split_once(':').unwrap();
        let why = format!("{name}: reader {reader} got 4 frames, which differ from the 5 decoded ones");
        assert_eq!(lines(&output, &format!("FAIL decode-{name}")), [format!("FAIL decode-{name}")]);
        assert!(lines(&output, name).contains(&why), "{output:?}");
    }
}
