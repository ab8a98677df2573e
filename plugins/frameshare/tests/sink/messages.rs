// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages for operators, and the disconnection of readers.

use super::*;
use frameshare::reader::ReadError;

const GRAY: &str = "video/x-raw,format=GRAY8,width=8,height=8,framerate=30/1";

/// Returns the text of the next message of a kind.
fn text_on(bus: &gst::Bus, kind: gst::MessageType) -> String {
    let message = bus.timed_pop_filtered(gst::ClockTime::from_seconds(10), &[kind]).expect("a message");
    match message.view() {
        gst::MessageView::Info(info) => info.error().message().to_owned(),
        gst::MessageView::Warning(warning) => warning.error().message().to_owned(),
        _ => unreachable!(),
    }
}

/// Returns the number of further warnings.
fn warnings(bus: &gst::Bus) -> usize {
    std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Warning])).count()
}

fn with_bus(caps: &str, properties: &[(&str, &str)]) -> (Sink, gst::Bus) {
    let sink = Sink::new(caps, properties);
    let bus = gst::Bus::new();
    sink.element().set_bus(Some(&bus));
    (sink, bus)
}

#[test]
fn info_message_says_how_to_read_the_stream() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s").display().to_string();
    let name = format!("@frameshare-test-{}", std::process::id());
    for (socket, read_by) in [(path, ""), (name, " exporter-uid=")] {
        let sink = element(Path::new(&socket), &[]);
        let bus = gst::Bus::new();
        sink.set_bus(Some(&bus));
        sink.set_state(gst::State::Paused).unwrap();
        let text = text_on(&bus, gst::MessageType::Info);
        assert!(text.contains(&format!("framesharesrc socket-path={socket}{read_by}")), "{text}");
        sink.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn refused_reader_is_named_by_one_warning_a_second() {
    let (sink, bus) = with_bus(GRAY, &[("lossless-readers", "none")]);
    let endpoint = Endpoint::at(sink.folder.path().join("s")).unwrap();
    let config = reader::Config::default().policy(Policy::Lossless);
    let begin = Instant::now();
    for _ in 0..5 {
        Reader::connect(&endpoint, config.clone(), &Interrupt::new().unwrap()).unwrap_err();
    }
    let text = text_on(&bus, gst::MessageType::Warning);
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains("lossless"), "{text}");
    let more = warnings(&bus);
    let elapsed = begin.elapsed().as_secs();
    assert!(more as u64 <= elapsed, "{more} more warnings in {elapsed} s");
}

#[test]
fn disconnected_reader_gets_reason_and_is_named() {
    let (mut sink, bus) = with_bus(GRAY, &[]);
    let added = Arc::new(Mutex::new(Vec::new()));
    let note = added.clone();
    sink.element().connect("reader-added", false, move |values| {
        let reader = values[1].get::<gst::Structure>().unwrap();
        note.lock().unwrap().push(reader.get::<u64>("id").unwrap());
        None
    });
    let endpoint = Endpoint::at(sink.folder.path().join("s")).unwrap();
    // The name is the reader's own text; it must not control a terminal.
    let config = reader::Config::default().name("door\u{1b}[2Jcam").policy(Policy::Lossless);
    let mut reader = Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap();
    let mut other = sink.reader(Policy::Latest, 2);
    wait_until("two readers", || added.lock().unwrap().len() == 2);
    let id = added.lock().unwrap()[0];
    let disconnect =
        |id: u64, why: Option<&str>| sink.element().emit_by_name::<bool>("disconnect-reader", &[&id, &why]);
    assert!(!disconnect(id + 1000, None));
    assert!(disconnect(id, Some("maintenance")));
    assert!(!disconnect(id, None), "it is disconnected already");
    let error = loop {
        match reader.next(Some(PATIENCE), &Interrupt::new().unwrap()) {
            Ok(item) => assert!(item.is_some()),
            Err(error) => break error,
        }
    };
    let ReadError::CutOff { reason, text } = &error else { panic!("{error:?}") };
    assert_eq!((*reason, text.as_str()), (frameshare::Reason::Disconnected, "maintenance"));
    let text = text_on(&bus, gst::MessageType::Warning);
    assert!(text.contains("maintenance") && text.contains("cam"), "{text:?}");
    assert!(!text.chars().any(char::is_control), "{text:?}");
    // The other reader goes on.
    sink.push(gst::Buffer::from_slice([7; 64]));
    assert_eq!(bytes(&next_frame(&mut other)), [7; 64]);
}

#[test]
fn first_copy_of_raw_video_is_a_warning() {
    let (mut sink, bus) = with_bus(GRAY, &[]);
    for _ in 0..3 {
        sink.push(gst::Buffer::from_slice([1; 64]));
    }
    let text = text_on(&bus, gst::MessageType::Warning);
    assert!(text.contains("copied") && text.contains("memory of its own"), "{text}");
    assert_eq!((sink.copies(), warnings(&bus)), (3, 0));

    // Frames in slots, and encoded units, are no reason for one.
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let (mut sink, pool) = Sink::with_pool(&info, &[]);
    let bus = gst::Bus::new();
    sink.element().set_bus(Some(&bus));
    sink.push(pool.acquire_buffer(None).unwrap());
    assert_eq!((sink.copies(), warnings(&bus)), (0, 0));
    let (mut sink, bus) = with_bus("audio/x-opus", &[("encoded", "true")]);
    sink.push(gst::Buffer::from_slice([1; 64]));
    assert_eq!((sink.copies(), warnings(&bus)), (1, 0));
}
