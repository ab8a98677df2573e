// SPDX-License-Identifier: MIT OR Apache-2.0

//! The supervisor with real processes and real kills. The cameras are patterns.

mod common;

use common::{Place, is, pid, process, runs, signal, wait};
use frameshare::reader::{self, Frames};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixDatagram,
    sync::{atomic::Ordering::Relaxed, mpsc},
    thread,
    time::Duration,
};

/// Two cameras that only the page reads.
const CAMERAS: &str = "[cameras]
cam0 = 'pattern:ball?width=64&height=64&rate=5'
cam1 = 'pattern:ball?width=64&height=64&rate=5'
[defaults]
record = false
motion = false
[wall]
listen = '127.0.0.1:0'
";

fn are_running(state: &Value) -> bool {
    is(state, "capture-cam0", "cam0", "running") && is(state, "capture-cam1", "cam1", "running")
}

#[test]
fn killed_process_is_restarted_and_others_run_on() {
    let place = Place::new();
    place.configure(CAMERAS);
    let mut site = place.start("run");
    let mut control = place.control();
    let before = control.expect("running cameras", are_running);
    let victim = pid(&before, "capture-cam0").unwrap();
    signal(victim, Signal::KILL);
    let after = control
        .expect("restart", |state| process(state, "capture-cam0")["restarts"] == 1 && are_running(state));
    assert_ne!(pid(&after, "capture-cam0"), Some(victim));
    assert_eq!(process(&after, "capture-cam0")["last_exit"], "killed by signal 9");
    assert_eq!(pid(&after, "capture-cam1"), pid(&before, "capture-cam1"));
    site.expect("capture-cam0: killed by signal 9; next start in ");
    let pids = ["capture-cam0", "capture-cam1"].map(|name| pid(&after, name).unwrap());
    site.stop();
    assert!(!pids.into_iter().any(runs));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn stopped_process_is_killed_and_restarted() {
    let place = Place::new();
    // The signs of life of many processes come in shorter intervals than the supervisor's checks.
    let more: String =
        (2..8).map(|n| format!("cam{n} = 'pattern:ball?width=64&height=64&rate=1'\n")).collect();
    place.configure(&format!(
        "hang-timeout = 5\n{}",
        CAMERAS.replace("[cameras]\n", &format!("[cameras]\n{more}"))
    ));
    let _site = place.start("run");
    let mut control = place.control();
    let before = control.expect("running cameras", are_running);
    signal(pid(&before, "capture-cam0").unwrap(), Signal::STOP);
    let after = control.expect("restart", |state| {
        process(state, "capture-cam0")["restarts"].as_u64() >= Some(1)
            && is(state, "capture-cam0", "cam0", "running")
    });
    let events = after["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["text"] == "no sign of life for 5 s: killed"), "{events:#?}");
}

#[test]
fn reload_changes_only_what_changed() {
    let place = Place::new();
    place.configure(CAMERAS);
    let site = place.start("run");
    let mut control = place.control();
    let before = control.expect("running cameras", are_running);

    place.configure(&CAMERAS.replace("cam0 = ", "cam0 = 5 # "));
    site.signal(Signal::HUP);
    site.expect("the configuration is not changed");
    site.expect("camera-ingest.toml:2: cameras.cam0: ");

    let changed = "cam2 = 'pattern:smpte?rate=5'\ncam1 = 'pattern:snow?width=96&height=64&rate=5'\n# ";
    place.configure(&CAMERAS.replace("cam1 = ", changed));
    site.signal(Signal::HUP);
    let after = control.expect("new cameras", |state| {
        let text = process(state, "capture-cam1")["reports"]["cam1"]["text"].as_str();
        are_running(state)
            && is(state, "capture-cam2", "cam2", "running")
            && text.is_some_and(|text| text.contains("96x64"))
    });
    for name in ["capture-cam0", "capture-cam1"] {
        assert_eq!(pid(&after, name), pid(&before, name), "{name}");
    }

    place.configure(&CAMERAS.replace("cam1 = ", "# "));
    site.signal(Signal::HUP);
    let last = control.expect("removed cameras", |state| {
        process(state, "capture-cam1").is_null() && process(state, "capture-cam2").is_null()
    });
    assert_eq!(pid(&last, "capture-cam0"), pid(&before, "capture-cam0"));
    wait("end of the socket", || (!place.left().contains(&"cam2.sock".to_owned())).then_some(()));
}

/// Forty cameras that are recorded and searched for motion, without the first ones.
fn forty(first: usize) -> String {
    let camera = |n| format!("c{n:02} = 'pattern:ball?width=64&height=64&rate=1'\n");
    let cameras: String = (first..40).map(camera).collect();
    format!("[cameras]\n{cameras}[groups]\ncapture = 8\n[wall]\nlisten = '127.0.0.1:0'\n")
}

/// Process numbers of all processes but the wall.
fn pids(state: &Value) -> BTreeMap<String, u64> {
    let processes = state["processes"].as_array().unwrap().iter();
    let others = processes.filter(|process| process["role"] != "wall");
    others.map(|process| (process["name"].to_string(), process["pid"].as_u64().unwrap_or(0))).collect()
}

#[test]
fn removed_camera_restarts_no_other_process() {
    let place = Place::new();
    place.configure(&forty(0));
    let site = place.start("run");
    let mut control = place.control();
    let group = |n: usize, size: usize| n / size + 1;
    let are_all_running = |state: &Value, first: usize| {
        (first..40).all(|n| {
            let roles = [("capture", 8), ("record", 4), ("motion", 4)];
            let camera = format!("c{n:02}");
            roles
                .iter()
                .all(|(role, size)| is(state, &format!("{role}-{}", group(n, *size)), &camera, "running"))
        })
    };
    let before = control.expect("running cameras", |state| are_all_running(state, 0));
    place.configure(&forty(1));
    site.signal(Signal::HUP);
    let after = control.expect("end of a camera", |state| {
        process(state, "record-1")["cameras"][0] == "c01"
            && !place.left().contains(&"c00.video.sock".to_owned())
            && is(state, "wall", "c01", "running")
    });
    assert!(are_all_running(&after, 1), "{after:#}");
    assert_eq!(pids(&after), pids(&before));
    let units = |state: &Value| process(state, "record-1")["reports"]["c01"]["values"]["received"].as_f64();
    control.expect("further units of the same recording", |state| {
        assert_eq!(pids(state), pids(&before));
        units(state) > units(&after) && units(state) > units(&before)
    });
    let text = site.text();
    let restarts: Vec<_> = text.lines().filter(|line| line.contains("stopped: ")).collect();
    assert!(restarts.len() == 1 && restarts[0].contains("wall: stopped: "), "{restarts:?}");
}

/// Reads results until a box has this label. The stream does not end before.
fn read_label(results: &mut Frames, label: &str) {
    wait(&format!("a box with the label {label}"), || {
        let frame = results.next_within(Duration::from_secs(1)).expect("the stream goes on")?;
        let bytes: Vec<u8> = frame.bytes().iter().map(|byte| byte.load(Relaxed)).collect();
        let result: Value = serde_json::from_slice(&bytes).expect("a result");
        let boxes = result["value"]["boxes"].as_array().expect("boxes");
        boxes.iter().any(|found| found["label"] == label).then_some(())
    });
}

/// Opens a WebSocket of the page, without reading from it.
fn open_page(address: &str) -> TcpStream {
    let mut page = TcpStream::connect(address).unwrap();
    page.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        page,
        "GET /socket HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    page
}

/// Reads messages of a page until one has this text; `None` at the end.
fn read_until(page: &mut TcpStream, part: &str) -> Option<String> {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(part) {
        match page.read(&mut buffer) {
            Ok(0) => return None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            count => text.push_str(&String::from_utf8_lossy(&buffer[..count.unwrap()])),
        }
    }
    Some(text)
}

/// Sends a request of a page, in a masked frame whose mask changes nothing.
fn request(page: &mut TcpStream, request: &Value) {
    let text = request.to_string();
    assert!(text.len() < 126);
    let frame = [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text.as_bytes()].concat();
    page.write_all(&frame).unwrap();
}

/// Connects to the page, and returns it if its first messages have this text.
fn read_page(address: &str, part: &str) -> Option<TcpStream> {
    let mut page = open_page(address);
    read_until(&mut page, "\"type\":\"history\"")?.contains(part).then_some(page)
}

/// Returns process and address of the page.
fn wall_of(state: &Value) -> (u32, String) {
    let address = process(state, "wall")["reports"][""]["text"].as_str().unwrap();
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    (pid(state, "wall").unwrap(), address.to_owned())
}

#[test]
fn greedy_pages_give_way_to_others() {
    let place = Place::new();
    place.configure(CAMERAS);
    let _site = place.start("run");
    let mut control = place.control();
    let state =
        control.expect("running page", |state| is(state, "wall", "cam0", "running") && are_running(state));
    let (wall, address) = wall_of(&state);
    let mut watching = read_page(&address, "hello").expect("a page");
    request(&mut watching, &json!({ "type": "watch", "cameras": [0] }));
    read_until(&mut watching, "\"type\":\"figures\"").expect("a page that is served");

    // Pages that say nothing lose their places to later ones, and not a page that did.
    let silent: Vec<_> = (0..60).map(|_| open_page(&address)).collect();
    let mut late = read_page(&address, "hello").expect("a page beside silent ones");
    request(&mut watching, &json!({ "type": "drawn", "camera": 0 }));
    read_until(&mut watching, "\"type\":\"figures\"").expect("the page that was there before");
    let mut first = silent.into_iter().next().unwrap();
    assert_eq!(read_until(&mut first, "no such text"), None, "the first silent page stays");

    // Each focus would open a pipeline.
    let threads = || fs::read_dir(format!("/proc/{wall}/task")).unwrap().count();
    let (before, mut most) = (threads(), 0);
    for number in 0..4000 {
        request(
            &mut late,
            &json!({ "type": "focus", "focus": number, "camera": number % 2, "mode": "units" }),
        );
        if number % 50 == 0 {
            most = most.max(threads());
        }
    }
    request(&mut late, &json!({ "type": "focus", "focus": 5000, "camera": 0, "mode": "units" }));
    read_until(&mut late, "\"focus\":5000").expect("the last focus");
    assert!(most < before + 40, "{most} threads, {before} before");
    read_until(&mut watching, "\"type\":\"figures\"").expect("another page meanwhile");
}

#[test]
fn zone_applies_at_once_and_restarts_no_process() {
    let place = Place::new();
    let camera = "[cameras.cam0]\nmain = 'pattern:ball?width=320&height=240&rate=10'\n";
    let zone = |name: &str| {
        let points = "[[0, 0], [1, 0], [1, 1], [0, 1]]";
        format!(
            "{camera}zones = [{{ name = '{name}', points = {points} }}]\n[wall]\nlisten = '127.0.0.1:0'\n"
        )
    };
    place.configure(&format!("{camera}[wall]\nlisten = '127.0.0.1:0'\n"));
    let site = place.start("run");
    let mut control = place.control();
    let before = control.expect("running roles", |state| {
        let roles = ["capture-cam0", "record-1", "motion-1", "wall"];
        roles.iter().all(|role| is(state, role, "cam0", "running"))
    });
    let (_, address) = wall_of(&before);
    let mut page = read_page(&address, "\"zones\":[]").expect("a page without zones");
    let mut results = Frames::open(&place.stream("cam0.motion"), reader::Config::default()).unwrap();
    read_label(&mut results, "motion");
    for name in ["door", "gate"] {
        place.configure(&zone(name));
        site.signal(Signal::HUP);
        read_label(&mut results, name);
        wait("the end of the page with the zones before", || {
            (page.read(&mut [0; 4096]).unwrap() == 0).then_some(())
        });
        page = wait("the zone on the page", || read_page(&address, name));
    }
    let after = control.expect("state", |_| true);
    assert_eq!((pids(&after), pid(&after, "wall")), (pids(&before), pid(&before, "wall")));
    for process in after["processes"].as_array().unwrap() {
        assert_eq!(process["restarts"], 0, "{process}");
    }
}

#[test]
fn restart_after_edit_uses_configuration_in_force() {
    let place = Place::new();
    place.configure(CAMERAS);
    let _site = place.start("run");
    let mut control = place.control();
    let before = control.expect("running cameras", are_running);
    place.configure("this is no configuration");
    signal(pid(&before, "capture-cam0").unwrap(), Signal::KILL);
    control.expect("restart", |state| process(state, "capture-cam0")["restarts"] == 1 && are_running(state));
}

#[test]
fn processes_end_with_killed_supervisor() {
    let place = Place::new();
    place.configure(CAMERAS);
    let site = place.start("run");
    let state = place.control().expect("running cameras", are_running);
    site.signal(Signal::KILL);
    for name in ["capture-cam0", "capture-cam1", "wall"] {
        let Some(pid) = pid(&state, name) else { continue };
        wait("end of the process", || (!runs(pid)).then_some(()));
    }
}

#[test]
fn kill_command_needs_demo_mode() {
    let kill = json!({ "command": "kill", "process": "capture-cam0" });
    let place = Place::new();
    place.configure(CAMERAS);
    let mut site = place.start("run");
    let mut control = place.control();
    let state = control.expect("running cameras", are_running);
    assert_eq!(state["demo"], false);
    control.send(&kill);
    site.expect("refused to kill a process");
    assert_eq!(pid(&control.expect("state", |_| true), "capture-cam0"), pid(&state, "capture-cam0"));
    site.stop();

    let site = place.start("run --demo");
    let mut control = place.control();
    assert_eq!(control.expect("running cameras", are_running)["demo"], true);
    control.send(&kill);
    control.expect("restart", |state| process(state, "capture-cam0")["restarts"] == 1 && are_running(state));
    // Other text closes the connection, and nothing else.
    control.send(&json!("nonsense"));
    place.control().expect("state", are_running);
    drop(site);
}

#[test]
fn service_manager_is_notified() {
    let place = Place::new();
    place.configure(CAMERAS);
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    let (received, messages) = mpsc::channel();
    // A service manager takes each message at once; the sender waits for it.
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(size) = socket.recv(&mut buffer) {
            let _ = received.send(String::from_utf8_lossy(&buffer[..size]).into_owned());
        }
    });
    let mut command = place.command("run");
    let mut site = common::Process::start(command.env("NOTIFY_SOCKET", place.path("notify")));
    let expect = |part: &str| {
        let next = || messages.recv_timeout(Duration::from_secs(60)).expect(part);
        while !next().contains(part) {}
    };
    expect("READY=1");
    expect("WATCHDOG=1");
    let state = place.control().expect("running cameras", are_running);
    let environment = fs::read(format!("/proc/{}/environ", pid(&state, "capture-cam0").unwrap())).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
    site.signal(Signal::HUP);
    expect("RELOADING=1");
    expect("READY=1");
    site.signal(Signal::TERM);
    expect("STOPPING=1");
    assert!(site.wait().success());
}

#[test]
fn passwords_are_in_no_log_title_or_state() {
    let place = Place::new();
    fs::write(place.path("secret"), "hunter2\n").unwrap();
    place.configure(&format!(
        "{CAMERAS}
[cameras.cam2]
main = 'rtsp://127.0.0.1:9/x'
user = 'admin'
password-file = 'secret'
[cameras.cam3]
main = 'rtsp://admin:hunter2@127.0.0.1:9/x'
"
    ));
    let site = place.start("run");
    let mut control = place.control();
    let state = control.expect("lost cameras", |state| {
        is(state, "capture-cam2", "cam2", "failed") && is(state, "capture-cam3", "cam3", "failed")
    });
    for process in state["processes"].as_array().unwrap() {
        let Some(pid) = process["pid"].as_u64() else { continue };
        let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&title).contains("hunter2"));
    }
    assert!(!state.to_string().contains("hunter2"));
    assert!(!site.text().contains("hunter2"));
    let output = place.command("capture absent").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("no camera 'absent'") && !error.contains("hunter2"), "{error}");
}
