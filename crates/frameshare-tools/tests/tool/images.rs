// SPDX-License-Identifier: MIT OR Apache-2.0

//! `snapshot`, `view` and the test pattern of `publish`.

use crate::{TOOL, export, json, parse, ran, run_tool, terminal::Terminal, tool};
use frameshare::{
    Endpoint, Wait,
    exporter::VideoExporter,
    observer::Observer,
    video::{Fraction, VideoFormat},
};
use frameshare_tests::{
    process::{PATIENCE, Process, TestRun, wait_until},
    raw::{Listener, Offer, show_snapshot},
};
use png::{BitDepth, ColorType, Decoder, Encoder};
use serde_json::Value;
use std::{
    ffi::OsStr, fs, io::Cursor, os::unix::ffi::OsStrExt, path::Path, process::Command, thread, time::Duration,
};

/// A PNG file in RGB, decoded.
pub struct Image {
    pub size: (u32, u32),
    pub pixels: Vec<[u8; 3]>,
}

impl Image {
    pub fn decode(png: &[u8]) -> Self {
        let mut reader = Decoder::new(Cursor::new(png)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (ColorType::Rgb, BitDepth::Eight));
        let (pixels, rest) = bytes[..info.buffer_size()].as_chunks();
        assert!(rest.is_empty());
        Self { size: (info.width, info.height), pixels: pixels.to_vec() }
    }

    fn pixel(&self, x: u32, y: u32) -> [u8; 3] {
        self.pixels[(y * self.size.0 + x) as usize]
    }
}

/// Publishes the test pattern as the stream `s`.
fn publish(run: &TestRun, options: &str) -> Process {
    let process = run.command(&format!("{TOOL} publish {} {options}", run.socket("s")));
    wait_until("the stream has a frame", || {
        let info = run_tool(run, "info s --json");
        let info: Value = serde_json::from_str(&info.stdout).unwrap_or_default();
        info["published"].as_u64().is_some_and(|count| count > 0)
    });
    process
}

/// Each row of the claimed image is inside the frame, and all of them together are 2.7 GB.
#[test]
fn frame_of_overlapping_rows_is_refused() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    let observer = Observer::connect(&Endpoint::at(run.socket("s")).unwrap(), PATIENCE).unwrap();
    for command in ["snapshot", "view"] {
        let path = run.path(&format!("{command}.sock"));
        let listener = Listener::bind(&path).unwrap();
        thread::scope(|scope| {
            let attack = scope.spawn(|| {
                // The command observes the stream before it reads.
                let observed = show_snapshot(&listener, observer.latest(), observer.rights()).unwrap();
                let mut exporter = Offer::new(4, 2, 1).unwrap().send(&listener, PATIENCE).unwrap();
                exporter.publish_overlapping_rows().unwrap();
                assert!(exporter.channel.hangs_up(PATIENCE));
                drop(observed);
            });
            let mut limited = Command::new("prlimit");
            limited.args(["--as=500000000", TOOL, command]).arg(&path).args(["--timeout", "60"]);
            if command == "snapshot" {
                limited.arg(run.path("s.png"));
            }
            let ran = ran(&mut limited);
            assert_eq!(ran.status, 1, "{command}: {}", ran.stderr);
            let text = "rows of plane 0 overlap: their stride is 1, but a row has 90000 bytes";
            assert!(ran.stderr.contains(text), "{command}: {}", ran.stderr);
            attack.join().unwrap();
        });
    }
}

/// The shape of the pixels would make the view of 64 columns billions of rows high.
#[test]
fn height_of_view_is_bounded() {
    let run = TestRun::new();
    let mut format = VideoFormat::new("GRAY8".parse().unwrap(), 64, 48);
    format.pixel_aspect_ratio = Fraction { numerator: 1, denominator: i32::MAX as u32 };
    let stream = run.socket("s");
    let exporter = VideoExporter::new(&stream, format).unwrap();
    let ran = thread::scope(|scope| {
        let viewing = scope.spawn(|| {
            let mut limited = Command::new("prlimit");
            ran(limited.args(["--as=500000000", TOOL, "view", &stream, "--columns", "64"]))
        });
        while !viewing.is_finished() {
            let frame = exporter.acquire(Wait::Forever).unwrap();
            exporter.publish(&frame, Wait::Forever).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        viewing.join().unwrap()
    });
    assert_eq!((ran.status, ran.stdout.lines().count()), (0, 1000), "{}", ran.stderr);
}

#[test]
fn snapshot_has_colors_of_stream_in_many_formats() {
    let run = TestRun::new();
    for format in ["NV12", "I420", "YUY2", "P010_10LE", "I420_10LE", "RGB", "BGRx", "GRAY8", "Y444_16BE"] {
        let publisher = publish(&run, &format!("--format {format} --size 320x240"));
        let report = json(&run, "snapshot s s.png");
        assert_eq!((&report["format"], &report["width"]), (&format.into(), &320.into()), "{report}");
        let bytes = run.read("s.png");
        assert_eq!(report["size"], bytes.len());
        let image = Image::decode(&bytes);
        assert_eq!(image.size, (320, 240));
        let bars = [[255, 255, 255], [255, 255, 0], [0, 255, 255], [0, 255, 0], [255, 0, 255], [255, 0, 0]];
        for (index, bar) in bars.into_iter().enumerate() {
            let found = image.pixel(40 * index as u32 + 20, 10);
            let [r, g, b] = bar.map(f64::from);
            let gray = [(0.299 * r + 0.587 * g + 0.114 * b).round() as u8; 3];
            let expected = if format == "GRAY8" { gray } else { bar };
            let is_near = |at: usize| found[at].abs_diff(expected[at]) <= 2;
            assert!((0..3).all(is_near), "{format}: {found:?} for {expected:?}");
        }
        publisher.interrupt();
        assert_eq!(publisher.expect_success().stderr, "");
    }
}

/// Between two frames of a slow stream, the last one.
#[test]
fn snapshot_is_written_to_file_and_stdout() {
    let run = TestRun::new();
    let _publisher = publish(&run, "--rate 1/100 --size 64x48");
    let text = run_tool(&run, "snapshot s image.PNG").stdout;
    assert_eq!(text, "image.PNG: frame 1, 64x48\n");
    let output = tool(&run, "snapshot s -").output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, run.read("image.PNG"));
}

#[test]
fn images_that_cannot_be_made_are_errors() {
    let run = TestRun::new();
    let exporter = export(&run, "");
    let mut silent = run.peer(&format!("export --socket {} --readers 9", run.socket("silent")));
    silent.wait_for("open");
    for (arguments, status, text) in [
        ("snapshot s s.jpg", 2, "give a name that ends in .png"),
        ("snapshot s - --json", 2, "- for stdout without --json"),
        ("snapshot none s.png", 3, "`frameshare list` lists the streams"),
        ("view none", 3, "`frameshare list` lists the streams"),
        ("snapshot s s.png", 1, "application/x-frameshare-test"),
        ("view s", 1, "decode or convert the stream first"),
        ("snapshot silent s.png -t 0.2", 1, "`frameshare doctor silent` says why"),
        ("view s -t 0", 2, "from 0.1 to 86400"),
    ] {
        let ran = run_tool(&run, arguments);
        assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(text), "{arguments}: {}", ran.stderr);
    }
    assert!(!run.path("s.png").exists() && !run.path("s.jpg").exists());
    drop(exporter);
    let publisher = publish(&run, "--size 8x8");
    let ran = run_tool(&run, "snapshot s /nowhere/s.png");
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("cannot write /nowhere/s.png: No such file"), "{}", ran.stderr);
    drop(publisher);
}

#[test]
fn view_shows_characters_without_terminal_and_rows_as_json() {
    let run = TestRun::new();
    let _publisher = publish(&run, "--size 64x48 --format RGB");
    let ran = run_tool(&run, "view s --columns 16");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!((ran.status, lines.len()), (0, 6), "{}", ran.stdout);
    assert_eq!(lines[0], "@@%%@@++::==..  ".replace("@@%%@@++::==..", &lines[0][..14]));
    assert!(lines[0].starts_with("@@") && lines.iter().all(|line| line.len() == 16), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}'));
    let value = json(&run, "view s --columns 16");
    assert_eq!((&value["width"], &value["format"]), (&64.into(), &"RGB".into()));
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    assert!(rows[0].as_str().unwrap().starts_with("ffffffffffffffff00ffff00"), "{value}");
}

/// In a pseudo-terminal: a character has the colors of two pixels.
#[test]
fn view_shows_blocks_in_terminal() {
    let run = TestRun::new();
    let _publisher = publish(&run, "--size 64x48 --format RGB");
    let mut terminal = Terminal::start(&run, "view s", (13, 80));
    terminal.wait_for_end();
    // 12 rows of characters for 48 of pixels, so 32 columns for 64.
    let lines = terminal.lines();
    assert!(lines[..12].iter().all(|line| *line == "\u{2580}".repeat(32)), "{}", lines.join("\n"));
    assert_eq!(terminal.colors(0, 1), Some(([255, 255, 255], [255, 255, 255])));
    assert_eq!(terminal.colors(0, 5), Some(([255, 255, 0], [255, 255, 0])));
    assert_eq!(terminal.colors(5, 21), Some(([255, 0, 0], [255, 0, 0])));
    terminal.expect_success();

    let mut command = std::process::Command::new("script");
    command.args(["-qec", &format!("{TOOL} view s --columns 16"), "/dev/null"]).env("TERM", "xterm");
    let ran = ran(command.env("XDG_RUNTIME_DIR", run.path("")).env("NO_COLOR", "1"));
    assert!(ran.stdout.starts_with("@@") && !ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
}

#[test]
fn pattern_has_size_rate_and_count() {
    let run = TestRun::new();
    let mut reader = run.peer(&format!("read --socket {} --policy lossless --quiet yes", run.socket("s")));
    let publisher = run.command(&format!("{TOOL} publish s --json -n 20 --rate 100 --readers 1"));
    reader.wait_for("connected");
    let outcome = publisher.expect_success();
    assert_eq!(parse("publish", &outcome.lines[0]), serde_json::json!({ "frames": 20, "stream": "s" }));
    assert_eq!(reader.finish().summary()["frames"], 20);
    for (arguments, text) in [
        ("publish s --size 0x4", "such as 640x480"),
        ("publish s --rate 0", "such as 25 or 30000/1001"),
        ("publish s --format NV13", "NV13"),
        ("publish s --format MT2110T", "choose another --format"),
        ("publish s x.mp4 --format NV12", "cannot be used with"),
        ("publish .s", "give a name such as cam0"),
    ] {
        let ran = run_tool(&run, arguments);
        assert_eq!((ran.status, ran.stdout.as_str()), (2, ""), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(text), "{arguments}: {}", ran.stderr);
    }
    let _first = publish(&run, "--rate 100");
    let second = run_tool(&run, "publish s");
    assert_eq!(second.status, 1);
    assert!(second.stderr.contains("in use"), "{}", second.stderr);
}

/// The pattern is never published in place of a file.
#[test]
fn video_file_without_gstreamer_or_plugin_is_an_error() {
    let run = TestRun::new();
    let missing = run_tool(&run, "publish s none.mp4");
    assert_eq!(missing.status, 1);
    assert!(missing.stderr.contains("cannot read none.mp4: No such file"), "{}", missing.stderr);
    fs::write(run.path("video.mp4"), "no video").unwrap();
    let without = ran(tool(&run, "publish s video.mp4").env("PATH", run.path("")));
    assert_eq!((without.status, without.stdout.as_str()), (1, ""));
    assert!(without.stderr.contains("apt-get install gstreamer1.0-tools"), "{}", without.stderr);
    // With another file for the registry, or the installed one would be changed.
    let mut command = tool(&run, "publish s video.mp4");
    command.env("GST_PLUGIN_PATH", "").env("GST_PLUGIN_SYSTEM_PATH", run.path(""));
    let without = ran(command.env("GST_REGISTRY", run.path("registry.bin")));
    assert_eq!((without.status, without.stdout.as_str()), (1, ""));
    assert!(without.stderr.contains("GST_PLUGIN_PATH"), "{}", without.stderr);
    assert_eq!(json(&run, "list"), Value::Array(Vec::new()));
}

#[test]
fn video_file_is_published_through_gstreamer() {
    let run = TestRun::new();
    let pipeline = "-q videotestsrc num-buffers=150 pattern=red ! video/x-raw,format=I420,width=64,height=48 ! \
        x264enc ! mp4mux ! filesink location=video.mp4";
    run.gst(pipeline).expect_success();
    let publisher = run.command(&format!("{TOOL} publish s video.mp4"));
    wait_until("an image", || run_tool(&run, "snapshot s s.png -t 1").status == 0);
    let [r, g, b] = Image::decode(&run.read("s.png")).pixel(30, 20);
    assert!(r > 245 && g < 10 && b < 10, "{r} {g} {b}");
    assert_eq!(publisher.expect_success().stderr, "");

    fs::write(run.path("none.mp4"), "no video").unwrap();
    let error = run.command(&format!("{TOOL} publish s none.mp4")).expect_failure();
    assert!(error.contains("gst-launch-1.0 could not play none.mp4"), "{error}");
}

/// The parser of pipelines splits words at any blank, and removes backslashes and quotes.
#[test]
fn names_of_files_and_sockets_add_nothing_to_the_pipeline() {
    let run = TestRun::new();
    let pipeline = "-q videotestsrc num-buffers=2 ! video/x-raw,width=64,height=48 ! x264enc ! mp4mux ! \
        filesink location=v.mp4";
    run.gst(pipeline).expect_success();
    let names: [&[u8]; 11] = [
        b"v.mp4\t!\tfilesink\tlocation=pwned\tfilesrc\tlocation=v.mp4",
        b"v.mp4\n!\nfilesink\nlocation=pwned\nfilesrc\nlocation=v.mp4",
        b"v.mp4 ! filesink location=pwned filesrc location=v.mp4",
        b"b\\b.mp4",
        b"\\",
        b"a'b.mp4",
        b"\"a b\".mp4",
        b"\"",
        b"!",
        b"-v",
        b"\xff\xfe.mp4",
    ];
    let video = run.read("v.mp4");
    for name in names {
        let name = OsStr::from_bytes(name);
        fs::write(Path::new(&run.path("")).join(name), &video).unwrap();
        let words = [TOOL, "publish", "s", "--"].map(OsStr::new).into_iter().chain([name]);
        assert_eq!(run.command_of(words).expect_success().stderr, "", "{name:?}");
    }
    for socket in ["./a b.sock", "./a\t!\tfilesink\tlocation=pwned", "./\"'\\!%41=.sock", "@abstract"] {
        let words = [TOOL, "publish", socket, "v.mp4"];
        assert_eq!(run.command_of(words).expect_success().stderr, "", "{socket:?}");
    }
    assert!(!fs::exists(run.path("pwned")).unwrap(), "a name has written a file");
}

/// A file of 109 kB whose image has 900 MB, one of a drawing that has 3.6 GB, and a wide video. A
/// decoder takes memory for one image at most before it is refused, and none for the drawing.
#[test]
fn video_that_is_too_large_is_an_error() {
    let run = TestRun::new();
    let side = 30_000;
    let mut encoder = Encoder::new(fs::File::create(run.path("bomb.png")).unwrap(), side, side);
    encoder.set_color(ColorType::Grayscale);
    encoder.set_depth(BitDepth::One);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![0; (side * side / 8) as usize]).unwrap();
    drop(writer);
    let pipeline = "-q videotestsrc num-buffers=60 ! video/x-raw,width=8208,height=16 ! x264enc ! mp4mux ! \
        filesink location=wide.mp4";
    run.gst(pipeline).expect_success();
    let drawing =
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="30000" height="30000"><path d="M0 0"/></svg>"#;
    fs::write(run.path("bomb.svg"), drawing).unwrap();
    // Far more than a pipeline and one frame of the image need, far less than one of the drawing.
    // More threads at once would reserve more arenas, and leave no room for plugins.
    let limit = "env MALLOC_ARENA_MAX=2 prlimit --as=2400000000 --";
    for (file, why) in
        [("bomb.png", "not-negotiated"), ("wide.mp4", "not-negotiated"), ("bomb.svg", "image/svg+xml")]
    {
        let error = run.command(&format!("{limit} {TOOL} publish s {file}")).expect_failure();
        assert!(error.contains("at most 8192") && error.contains(why), "{file}: {error}");
    }
}
