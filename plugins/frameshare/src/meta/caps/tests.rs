// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

fn parsed(text: &str) -> Option<gst::Caps> {
    gst::init().unwrap();
    crate::meta::register();
    parse(text, &Budget::new(u64::MAX)).ok()
}

/// Caps that GStreamer writes are parsed as GStreamer parses them.
#[test]
fn caps_of_streams_are_read_as_gstreamer_reads_them() {
    gst::init().unwrap();
    crate::meta::register();
    for text in [
        "video/x-raw, format=NV12, width=2, height=2, framerate=30/1",
        "video/x-raw,format=(string)NV12,width=(int)2,height=(int)2,framerate=(fraction)0/1;",
        "video/x-raw(memory:CUDAMemory, meta:GstVideoOverlayComposition), format=(string)I420",
        "video/x-raw, multiview-mode=(string)frame-by-frame, \
         multiview-flags=(GstVideoMultiviewFlagsSet)0:ffffffff:/right-view-first/left-flipped",
        "video/x-h264, stream-format=(string)avc, codec_data=(buffer)0142c00bffe1, level=(string)1.1",
        "video/x-h265, mastering-display-info=(string)35400:14600:8500:39850:6550:2300:15635:16450:10000000:1",
        "audio/x-raw, format=(string)F32LE, layout=(string)interleaved, rate=(int)48000, channels=(int)2, \
         channel-mask=(bitmask)0x0000000000000003",
        "audio/x-vorbis, streamheader=(buffer)< 01766f72, 0376, 05 >",
        "audio/x-opus, streamheader=(buffer)< (buffer)01766f72, (buffer)0376 >, channel-mapping=(int)< 0, 1 >",
        "application/x-rtp, a-framerate=(string)25, sprop=(string)\"Z0IAH+KQ\\,aM4=\", ssrc=(uint)4294967295, \
         extmap-1=(string)< \"\", \"urn:ietf\", \"\" >, seqnum-base=(uint)1",
        "a/b, x=(double)0.5",
        "a/b, y=(float)-1.5",
        "a/b, z=(boolean)true",
        "a/b, u=(guint64)18446744073709551615",
        "a/b, i=(gint64)-5, g=(gint)5",
        "a/b, x=0.5, y=true, z=text, q=(string)\"a \\\"b\\\" \\303\\244\", n=-7, m=< 1, 2 >, k=< < 1 >, < 2 > >",
        "a/b, f=(GstFormat)time",
    ] {
        let Ok(theirs) = text.parse::<gst::Caps>() else { panic!("{text}") };
        let caps = parsed(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(caps.to_string(), theirs.to_string());
        assert_eq!(parsed(&theirs.to_string()).unwrap_or_else(|| panic!("{theirs}")), theirs);
    }
}

#[test]
fn text_that_is_no_fixed_caps_is_refused() {
    for text in [
        "",
        "ANY",
        "EMPTY",
        "no caps at all, really",
        "/x-raw, width=1",
        "video/x-raw, width=[ 1, 2 ]",
        "video/x-raw, format={ NV12, I420 }",
        "video/x-raw; video/x-h264",
        "video/x-raw(ANY)",
        "video/x-raw(memory)",
        "video/x-raw(memory:8CUDAMemory)",
        "video/x-raw(), width=1",
        "a/b, c=",
        "a/b, c=(int)",
        "a/b, c=(int)x",
        "a/b, c=(int)4294967296",
        "a/b, c=(float)1e39",
        "a/b, c=(double)1e309",
        "a/b, c=(fraction)1/0",
        "a/b, c=(fraction)1/-1",
        "a/b, c=\"open",
        "a/b, c=\"nul\\000\"",
        "a/b, c=\"\\377\"",
        "a/b, c=(buffer)abc",
        "a/b, c=(buffer)\"\"",
        "a/b, c=(taglist)\"x\"",
        "a, c=(taglist)\"x\"",
        "a/b, c=(structure)\"d\\,\\ e\\=1\"",
        "a/b, c=[ a, b=1 ]",
        "a/b, c=(GstElement)x",
        "a/b, c=< 1, text >",
        "nul\0",
        "video/x-raw-yuv, width=1",
    ] {
        assert!(parsed(text).is_none(), "{text}");
    }
}

/// GStreamer recursed on these until the stack was full, the quoted ones too.
#[test]
fn text_that_nests_deeply_is_refused() {
    for text in [
        "<".repeat(50_000),
        format!("a/b, c={}", "<".repeat(50_000)),
        format!("a/b, c={}", "< ".repeat(30_000)),
        format!("a/b, c={}", "[a,b=".repeat(12_000)),
        format!("a/b, c={}", "{".repeat(60_000)),
        format!("a/b, c={}", "(".repeat(60_000)),
        // A quoted bracket closes nothing.
        format!("a/b, c={}", "{\")\",".repeat(11_000)),
        format!("a/b, c={}", "<\")\",".repeat(11_000)),
        format!("a/b, c={}", "[a,b=\")\",c=".repeat(5_000)),
        format!("a/b, c={}", "(structure)\"a\\,b\\=".repeat(2_000)),
        format!("a/b, c={}1{}", "<".repeat(5), ">".repeat(5)),
    ] {
        let text = text.as_str();
        let small = std::thread::Builder::new().stack_size(256 << 10);
        std::thread::scope(|scope| {
            let parse = small.spawn_scoped(scope, || assert!(parsed(text).is_none(), "{text:.40}"));
            parse.unwrap().join().unwrap();
        });
    }
}

/// Frame and sample rates that elements divide by.
#[test]
fn rates_that_gstreamer_cannot_divide_by_are_refused() {
    for (field, bad) in [
        ("framerate=(fraction)", ["-1/1", "1/0", "1/-1", "-2147483648/1"].as_slice()),
        ("max-framerate=(fraction)", &["-30/1"]),
        ("pixel-aspect-ratio=(fraction)", &["0/1", "-1/1"]),
        ("rate=(int)", &["0", "-1"]),
        ("channels=(int)", &["0", "-2147483648"]),
        ("width=(int)", &["0", "-1"]),
    ] {
        assert!(parsed(&format!("audio/x-raw, {field}1")).is_some());
        for bad in bad {
            assert!(parsed(&format!("audio/x-raw, {field}{bad}")).is_none(), "{field}{bad}");
        }
    }
    assert!(parsed("video/x-raw, framerate=(fraction)0/1").is_some());
}

#[test]
fn names_of_caps_are_charged_before_they_are_interned() {
    gst::init().unwrap();
    let budget = Budget::new(20_000);
    let text = |name: &str| format!("a/b(memory:{name}F), {name}=1");
    assert!(parse(&text("framesharetestcapsname"), &budget).is_ok());
    let used = budget.used();
    assert!(used > 100);
    assert!(parse(&text("framesharetestcapsname"), &budget).is_ok());
    assert_eq!(budget.used(), used, "known names are free");
    let long = "l".repeat(200);
    let results: Vec<_> =
        (b'a'..=b'f').map(|c| parse(&text(&format!("{long}{}", char::from(c))), &budget)).collect();
    assert!(matches!(results.last(), Some(Err(Invalid::OverBudget(_)))), "{results:?}");
    assert!(glib::Quark::try_from_str(&format!("{long}f")).is_none(), "it is not interned");
}
