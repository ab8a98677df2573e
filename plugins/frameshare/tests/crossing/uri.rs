// SPDX-License-Identifier: MIT OR Apache-2.0

//! URIs of both elements, alone and in the elements that play URIs.

use super::{
    media::{collect, collected, difference},
    *,
};

const VIDEO: &str =
    "videotestsrc num-buffers=20 pattern=ball ! video/x-raw,format=I420,width=64,height=48,framerate=30/1";
const END: &str = "fakesink name=end sync=false enable-last-sample=false";

fn make(factory: &str) -> gst::Element {
    init();
    gst::ElementFactory::make(factory).build().unwrap()
}

fn handler(element: &gst::Element) -> &gst::URIHandler {
    element.dynamic_cast_ref().unwrap()
}

fn nick(element: &gst::Element, property: &str) -> String {
    glib::EnumValue::from_value(&element.property_value(property)).unwrap().1.nick().into()
}

#[test]
fn uri_sets_stream_and_properties() {
    let source = make("framesharesrc");
    let set = |uri: &str| handler(&source).set_uri(uri).unwrap();
    set("frameshare://cam0?policy=lossless&max-held=8&on-disconnect=wait&connection-timeout=-1&fence=event");
    assert_eq!(source.property::<String>("stream"), "cam0");
    assert_eq!((nick(&source, "policy"), nick(&source, "fence")), ("lossless".into(), "event".into()));
    assert_eq!((source.property::<u32>("max-held"), nick(&source, "on-disconnect")), (8, "wait".into()));
    // Another stream, with the same properties.
    set("frameshare:///srv/a%20b.sock?policy=latest");
    assert_eq!(source.property::<Option<String>>("stream"), None);
    assert_eq!(source.property::<String>("socket-path"), "/srv/a b.sock");
    assert_eq!((nick(&source, "policy"), source.property::<u32>("max-held")), ("latest".into(), 8));

    let sink = make("framesharesink");
    let uri = "frameshare:///srv/s?allowed-uids=<1,65534>&socket-mode=432&history=0&sync=false";
    handler(&sink).set_uri(uri).unwrap();
    let uids = sink.property::<gst::Array>("allowed-uids");
    assert_eq!(uids.iter().map(|uid| uid.get::<u32>().unwrap()).collect::<Vec<_>>(), [1, 65534]);
    assert_eq!((sink.property::<u32>("socket-mode"), sink.property::<bool>("sync")), (0o660, false));
    assert_eq!(sink.property::<String>("history"), "0");
}

#[test]
fn uri_of_element_sets_another_one_alike() {
    for (factory, uri) in [
        ("framesharesrc", "frameshare://cam0"),
        ("framesharesrc", "frameshare://cam0?policy=lossless&max-held=8&do-timestamp=true"),
        (
            "framesharesink",
            "frameshare:///srv/a%20%25b.sock?allowed-uids=<1>&socket-mode=0666&sync=false&encoded=true",
        ),
    ] {
        let (one, other) = (make(factory), make(factory));
        assert_eq!(handler(&one).uri(), None);
        handler(&one).set_uri(uri).unwrap();
        let text = handler(&one).uri().unwrap();
        handler(&other).set_uri(&text).unwrap();
        assert_eq!(handler(&other).uri().unwrap(), text);
        for spec in
            one.list_properties().iter().filter(|spec| spec.owner_type() != gst::Object::static_type())
        {
            if !spec.flags().contains(glib::ParamFlags::READWRITE) {
                continue;
            }
            let text = |element: &gst::Element| element.property_value(spec.name()).serialize().ok();
            assert_eq!(text(&one), text(&other), "{}", spec.name());
        }
    }
    let source = make("framesharesrc");
    source.set_property("stream", "cam1");
    source.set_property("latency", 5_u64);
    assert_eq!(handler(&source).uri().unwrap(), "frameshare://cam1?latency=5");
    assert_eq!(
        make("framesharesink").dynamic_cast_ref::<gst::URIHandler>().unwrap().uri_type(),
        gst::URIType::Sink
    );
}

#[test]
fn invalid_uris_change_nothing() {
    for factory in ["framesharesrc", "framesharesink"] {
        let element = make(factory);
        let good = "frameshare://before?max-lateness=7";
        let good = if factory == "framesharesrc" { "frameshare://before?max-held=7" } else { good };
        handler(&element).set_uri(good).unwrap();
        let before = handler(&element).uri();
        assert_eq!(before.as_deref(), Some(good));
        let first = good.split_once('?').unwrap().1.replace('7', "8");
        for (part, words) in [
            ("polcy=latest", "polcy"),
            ("stats=x", "stats"),
            ("name=x", "name"),
            ("parent=x", "parent"),
            ("fence=sometimes", "event"),
            ("fence-timeout=-5", "a number from"),
            ("fence-timeout=x", "fence-timeout"),
            ("cuda-device-id=-2", "from -1 to"),
            ("cuda-device-id=99999999999", "from -1 to"),
        ] {
            let uri = format!("frameshare://after?{first}&{part}");
            let error = handler(&element).set_uri(&uri).unwrap_err();
            assert!(
                error.matches(gst::URIError::BadUri) && error.message().contains(words),
                "{uri}: {error}"
            );
            assert_eq!(handler(&element).uri(), before, "{uri}");
        }
        assert!(handler(&element).set_uri("file:///x").is_err());
    }
}

#[test]
fn running_element_keeps_its_uri() {
    let mut exporter = Exporter::new(GRAY);
    let uri = format!("frameshare://{}", exporter.path.display());
    let reader = Reader::watch(launch(&format!("framesharesrc name=source ! {END}")).tap(&uri));
    exporter.push_value(1);
    reader.buffer();
    let source = reader.pipeline.by_name("source").unwrap();
    let error = handler(&source).set_uri("frameshare://other").unwrap_err();
    assert!(error.matches(gst::URIError::BadState), "{error}");
    assert_eq!(handler(&source).uri().unwrap(), uri);
}

trait Tap {
    fn tap(self, uri: &str) -> Self;
}

impl Tap for gst::Pipeline {
    /// Sets the URI of the element `source`.
    fn tap(self, uri: &str) -> Self {
        handler(&self.by_name("source").unwrap()).set_uri(uri).unwrap();
        self
    }
}

/// Checks what a pipeline with a sink `end` gets from an exporter of `upstream`.
fn expect_frames(upstream: &str, expected: &[Vec<u8>], case: &str, reader: impl FnOnce(&str) -> Reader) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s p").display().to_string();
    let exporter =
        launch(&format!("{upstream} ! framesharesink name=sink wait-for-connection=true sync=false"));
    let uri = format!("frameshare://{}?encoded=true", path.replace(' ', "%20"));
    handler(&exporter.by_name("sink").unwrap()).set_uri(&uri).unwrap();
    exporter.set_state(gst::State::Playing).unwrap();
    let reader = reader(&format!("frameshare://{}?policy=lossless", path.replace(' ', "%20")));
    let frames = collect(&reader);
    // Autopluggers send events of their own.
    reader.order.lock().unwrap().violations.clear();
    exporter.set_state(gst::State::Null).unwrap();
    assert!(frames == expected, "{case}: {}", difference(expected, &frames));
}

/// The streams, and what they decode to.
fn streams() -> Vec<(String, Vec<Vec<u8>>)> {
    let raw = collected(&format!("{VIDEO} ! {END}"));
    let mut streams = vec![(VIDEO.to_owned(), raw)];
    if media::has(&["x264enc", "h264parse", "avdec_h264"]) {
        let encoded = format!(
            "{VIDEO} ! x264enc tune=zerolatency threads=1 ! video/x-h264,profile=baseline ! h264parse"
        );
        let decoded = collected(&format!("{encoded} ! avdec_h264 ! {END}"));
        streams.push((encoded, decoded));
    }
    streams
}

#[test]
fn uri_decoders_read_streams() {
    for (upstream, expected) in streams() {
        for decoder in ["uridecodebin", "uridecodebin3"] {
            let case = format!("{upstream} to {decoder}");
            expect_frames(&upstream, &expected, &case, |uri| {
                Reader::watch(launch(&format!("{decoder} uri={uri} ! {END}")))
            });
        }
    }
}

#[test]
fn players_play_streams() {
    for (upstream, expected) in streams() {
        for player in ["playbin", "playbin3"] {
            let case = format!("{upstream} to {player}");
            expect_frames(&upstream, &expected, &case, |uri| {
                let end = gst::ElementFactory::make("fakesink").property("sync", false).build().unwrap();
                let player = gst::ElementFactory::make(player).property("uri", uri);
                let player = player.property("video-sink", &end).build().unwrap();
                Reader::at(player.downcast().unwrap(), &end, &[])
            });
        }
    }
}
