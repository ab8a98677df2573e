// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of `framesharedeviceprovider`, each in a process with a folder of streams of its own.

use frameshare_tests::process::wait_until;
use gst::prelude::*;
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

const PATIENCE: gst::ClockTime = gst::ClockTime::from_seconds(60);
/// The environment variable that names the test which a process runs.
const TEST: &str = "FRAMESHARE_DEVICES_TEST";

/// Runs a test in a process with an empty runtime folder.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(TEST).is_ok_and(|name| name == test) {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let output = again(test).env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// This program, for one test.
fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(TEST, test);
    command
}

fn share(stream: &str) -> gst::Pipeline {
    let pipeline = gst::parse::launch(&format!(
        "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=16,height=16,framerate=50/1 ! \
         framesharesink stream={stream}"
    ));
    let pipeline = pipeline.unwrap().downcast::<gst::Pipeline>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    pipeline
}

/// A process that shares the stream `other`.
fn sharing_process() -> Child {
    again("sharing_process_runs_until_killed").stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn sharing_process_runs_until_killed() {
    if std::env::var(TEST).is_err() {
        return;
    }
    alone("sharing_process_runs_until_killed", || {
        let _pipeline = share("other");
        std::thread::sleep(Duration::from_secs(600));
    });
}

fn provider() -> gst::DeviceProvider {
    gst::DeviceProviderFactory::by_name("framesharedeviceprovider").unwrap()
}

fn names(devices: impl IntoIterator<Item = gst::Device>) -> Vec<String> {
    let mut names: Vec<_> = devices.into_iter().map(|device| device.display_name().to_string()).collect();
    names.sort();
    names
}

/// Returns the next change on a provider's bus: whether a device was added, and the device.
fn change(bus: &gst::Bus) -> (bool, gst::Device) {
    let kinds = [gst::MessageType::DeviceAdded, gst::MessageType::DeviceRemoved];
    let message = bus.timed_pop_filtered(PATIENCE, &kinds).expect("a change");
    match message.view() {
        gst::MessageView::DeviceAdded(added) => (true, added.device()),
        gst::MessageView::DeviceRemoved(removed) => (false, removed.device()),
        _ => unreachable!(),
    }
}

fn is(change: &(bool, gst::Device), added: bool, name: &str) -> bool {
    change.0 == added && change.1.display_name() == name
}

#[test]
fn devices_follow_streams() {
    alone("devices_follow_streams", || {
        let provider = provider();
        let bus = provider.bus();
        assert_eq!(names(provider.devices()), [""; 0], "probed, and the folder is missing");
        provider.start().unwrap();
        assert_eq!(names(provider.devices()), [""; 0]);

        let own = share("own");
        let added = change(&bus);
        assert!(is(&added, true, "own"), "{added:?}");
        let properties = added.1.properties().unwrap();
        let path = format!("{}/frameshare/own.sock", std::env::var("XDG_RUNTIME_DIR").unwrap());
        assert_eq!(properties.get::<String>("stream").unwrap(), "own");
        assert_eq!(properties.get::<String>("socket-path").unwrap(), path);
        assert_eq!(properties.get::<u32>("exporter-pid").unwrap(), std::process::id());
        assert!(!properties.get::<String>("exporter-program").unwrap().is_empty());
        assert!(added.1.has_classes("Source/Video"));

        // An exporter that is killed, and its successor.
        for _ in 0..2 {
            let mut process = sharing_process();
            let added = change(&bus);
            assert!(is(&added, true, "other"), "{added:?}");
            let pid = added.1.properties().unwrap().get::<u32>("exporter-pid").unwrap();
            assert_eq!(pid, process.id());
            assert_eq!(names(provider.devices()), ["other", "own"]);
            process.kill().unwrap();
            process.wait().unwrap();
            let removed = change(&bus);
            assert!(is(&removed, false, "other") && removed.1 == added.1, "{removed:?}");
        }
        own.set_state(gst::State::Null).unwrap();
        let removed = change(&bus);
        assert!(is(&removed, false, "own"), "{removed:?}");
        assert_eq!(names(provider.devices()), [""; 0]);
        provider.stop();
        own.set_state(gst::State::Playing).unwrap();
        wait_until("the stream is probed", || names(provider.devices()) == ["own"]);
        own.set_state(gst::State::Null).unwrap();
    });
}

#[test]
fn device_monitor_lists_streams_that_exist() {
    alone("device_monitor_lists_streams_that_exist", || {
        let exporter = share("own");
        let mut other = sharing_process();
        wait_until("both streams", || names(provider().devices()) == ["other", "own"]);
        let monitor = gst::DeviceMonitor::new();
        let raw = gst::Caps::new_empty_simple("video/x-raw");
        monitor.add_filter(Some("Video/Source"), Some(&raw)).unwrap();
        monitor.start().unwrap();
        let streams = monitor.devices().into_iter().filter(|device| {
            device.properties().is_some_and(|properties| properties.name() == "frameshare-stream")
        });
        assert_eq!(names(streams), ["other", "own"]);
        monitor.stop();
        other.kill().unwrap();
        other.wait().unwrap();
        exporter.set_state(gst::State::Null).unwrap();
    });
}

#[test]
fn device_creates_source_of_its_stream() {
    alone("device_creates_source_of_its_stream", || {
        let exporter = share("own");
        let device = provider().devices().into_iter().next().unwrap();
        let source = device.create_element(Some("camera")).unwrap();
        assert_eq!(source.name(), "camera");
        let sink = gst::ElementFactory::make("fakesink").property("num-buffers", 5).build().unwrap();
        let pipeline = gst::Pipeline::new();
        pipeline.add_many([&source, &sink]).unwrap();
        source.link(&sink).unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let end = pipeline.bus().unwrap().timed_pop_filtered(PATIENCE, &kinds).unwrap();
        assert_eq!(end.type_(), gst::MessageType::Eos, "{end:?}");
        assert!(device.reconfigure_element(&source).is_err(), "the element plays");
        pipeline.set_state(gst::State::Null).unwrap();

        source.set_property("stream", "another");
        source.set_property("socket-path", "/another");
        device.reconfigure_element(&source).unwrap();
        assert_eq!(source.property::<String>("stream"), "own");
        assert_eq!(source.property::<Option<String>>("socket-path"), None);
        assert!(device.reconfigure_element(&sink).is_err(), "another element");
        exporter.set_state(gst::State::Null).unwrap();
    });
}

#[test]
fn repeated_start_and_stop_leak_nothing() {
    alone("repeated_start_and_stop_leak_nothing", || {
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let threads = || {
            let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = all.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.filter(|name| name.trim_end() == "frameshare-list").count()
        };
        let exporter = share("own");
        let provider = provider();
        let cycle = || {
            provider.start().unwrap();
            assert_eq!(names(provider.devices()), ["own"]);
            provider.stop();
        };
        cycle();
        let before = files();
        (0..100).for_each(|_| cycle());
        // A thread that was joined is gone from /proc a moment later, and the exporter closes the
        // connections of the probes. It allocates slots meanwhile; a leak would be at least 100.
        wait_until("threads and files are as before", || threads() == 0 && files() < before + 50);
        provider.start().unwrap();
        wait_until("one thread while it is started", || threads() == 1);
        provider.stop();
        exporter.set_state(gst::State::Null).unwrap();
    });
}

/// The exporter has no caps yet when its socket appears.
#[test]
fn device_shows_caps_and_readers_of_stream() {
    alone("device_shows_caps_and_readers_of_stream", || {
        let provider = provider();
        provider.start().unwrap();
        let own = share("own");
        let shows = |readers: u32| {
            let devices = provider.devices();
            let Some(device) = devices.front() else { return false };
            let (caps, properties) = (device.caps().unwrap(), device.properties().unwrap());
            devices.len() == 1
                && !caps.is_any()
                && caps.structure(0).is_some_and(|caps| caps.get("width") == Ok(16))
                && properties.get::<u32>("readers") == Ok(readers)
        };
        wait_until("caps, and no reader", || shows(0));
        let read = || {
            let reader = gst::parse::launch("framesharesrc stream=own ! fakesink").unwrap();
            reader.set_state(gst::State::Playing).unwrap();
            reader
        };
        let readers = [read(), read()];
        wait_until("two readers", || shows(2));
        // A probe without the thread shows the same.
        let other = glib::Object::with_type(provider.type_()).downcast::<gst::DeviceProvider>().unwrap();
        let caps =
            |provider: &gst::DeviceProvider| provider.devices().front().and_then(|device| device.caps());
        // It asks the exporter, for a short time.
        wait_until("the same of a probe", || caps(&other) == caps(&provider));
        let bus = provider.bus();
        let changed = bus.pop_filtered(&[gst::MessageType::DeviceChanged]).expect("a change is posted");
        let gst::MessageView::DeviceChanged(changed) = changed.view() else { unreachable!() };
        assert_eq!(changed.device_changed().1.display_name(), "own");
        for reader in readers {
            reader.set_state(gst::State::Null).unwrap();
        }
        wait_until("no reader", || shows(0));
        provider.stop();
        own.set_state(gst::State::Null).unwrap();
    });
}
