// SPDX-License-Identifier: MIT OR Apache-2.0

//! Secrets of cameras and hostile cameras: which processes get passwords, which text and memory
//! a camera can reach.

mod common;

use common::{Place, Process, Server, is, pid, process, signal, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

/// A server for RTSP that answers each request with the text of a function.
struct Camera {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Camera {
    /// Starts a server; after each answer `also` may write more.
    fn start(
        answer: impl Fn(&str) -> String + Send + Sync + 'static,
        also: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (kept, functions) = (requests.clone(), Arc::new((answer, also)));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, functions) = (kept.clone(), functions.clone());
                thread::spawn(move || serve(stream, &kept, &functions.0, &functions.1));
            }
        });
        Self { port, requests }
    }

    fn url(&self) -> String {
        format!("rtsp://127.0.0.1:{}/cam", self.port)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    kept: &Mutex<Vec<String>>,
    answer: impl Fn(&str) -> String,
    also: impl Fn(&str, &mut TcpStream),
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    loop {
        let request: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let Some(number) = request.iter().find(|line| line.starts_with("CSeq")) else { return };
        let text = request.join("\n");
        kept.lock().unwrap().push(text.clone());
        let (status, headers) =
            answer(&text).split_once('|').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        if write!(stream, "RTSP/1.0 {status}\r\n{number}\r\n{headers}\r\n").is_err() {
            return;
        }
        also(&text, &mut stream);
    }
}

const OPTIONS: &str = "200 OK|Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n";

/// Returns the private memory of a process.
fn memory(pid: u32) -> Vec<u8> {
    let file = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = Vec::new();
    for line in read_proc(pid, "maps").lines().filter(|line| line.contains(" rw-p ")) {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut part = vec![0; usize::try_from(end - begin).unwrap()];
        // A part may be gone by now.
        if file.read_exact_at(&mut part, begin).is_ok() {
            found.append(&mut part);
        }
    }
    found
}

/// Returns the content of all files of a folder.
fn content(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let read = |path: std::path::PathBuf| match path.is_dir() {
        true => content(&path),
        false => String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned(),
    };
    entries.map(read).collect()
}

fn read_proc(pid: u32, name: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap()).into_owned()
}

#[test]
fn secrets_reach_capture_alone() {
    const SECRETS: [&str; 4] = ["hunter2", "in-query", "in-path", "in%2Furl"];
    let place = Place::new();
    let server = Server::start(0, "--login admin:hunter2 --frames 20 cam/main=64x64@10");
    let url = server.url("cam/main");
    place.configure(&format!(
        "[cameras.cam0]\nmain = '{url}?token=in-query'\nuser = 'admin'\npassword-env = 'CAM0_PASSWORD'\nmodel = true
         [cameras]\ncam1 = 'rtsp://127.0.0.1:1/user=admin&password=in-path&channel=1'
         cam2 = 'rtsp://admin:in%2Furl@127.0.0.1:1/x'
         [defaults]\nrecord = false\n[wall]\nlisten = '127.0.0.1:0'\n"
    ));
    let start = |words| Process::start(place.command(words).env("CAM0_PASSWORD", "hunter2"));
    let site = start("run");
    let state = place.control().expect("cameras", |state| {
        let failed = |n| is(state, &format!("capture-cam{n}"), &format!("cam{n}"), "failed");
        is(state, "capture-cam0", "cam0", "running") && failed(1) && failed(2)
    });
    let shown = [state.to_string(), site.text()].concat();
    for secret in SECRETS.into_iter().chain(["in/url"]) {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    for running in state["processes"].as_array().unwrap() {
        let (name, pid) = (running["name"].as_str().unwrap(), running["pid"].as_u64().unwrap());
        let pid = pid.try_into().unwrap();
        assert!(!read_proc(pid, "environ").contains("hunter2"), "{name}");
        let memory = memory(pid);
        let own: &[&str] = match name {
            "capture-cam0" => &["hunter2", "in-query"],
            "capture-cam1" => &["in-path"],
            "capture-cam2" => &["in/url", "in%2Furl"],
            _ => &[],
        };
        for secret in SECRETS.into_iter().chain(["in/url"]) {
            let has_it = memory.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
            assert_eq!(has_it, own.contains(&secret), "{secret} of {name}");
        }
    }
    signal(site.pid(), Signal::KILL);
    let left = content(&place.path("tmp"));
    assert!(!SECRETS.iter().any(|secret| left.contains(secret)), "{left}");

    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_camera-ingest"));
    check.arg("check").arg(place.path("camera-ingest.toml")).env("CAM0_PASSWORD", "hunter2");
    let output = check.output().unwrap();
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && plan.contains("token=***"), "{plan}");
    assert!(!SECRETS.iter().any(|secret| plan.contains(secret)), "{plan}");
}

#[test]
fn redirect_to_another_server_gets_no_login() {
    // The base64 form of "admin:hunter2".
    const LOGIN: &str = "Authorization: Basic YWRtaW46aHVudGVyMg==";
    let unauthorized = |_: &str| "401 Unauthorized|WWW-Authenticate: Basic realm=\"cam\"\r\n".to_owned();
    for has_name_of_camera in [false, true] {
        let other = Camera::start(unauthorized, |_, _| {});
        let port = other.port;
        let camera = Camera::start(
            move |request| {
                let own = request.split('/').nth(2).unwrap();
                let user = if has_name_of_camera { format!("{own}@") } else { String::new() };
                match request.split(' ').next() {
                    _ if !request.contains(LOGIN) => unauthorized(request),
                    Some("OPTIONS") => OPTIONS.into(),
                    _ if request.contains("/moved") => {
                        format!("302 Moved|Location: rtsp://{user}127.0.0.1:{port}/cam\r\n")
                    }
                    // A redirect within the camera, which keeps the login.
                    _ => format!("302 Moved|Location: rtsp://{own}/moved\r\n"),
                }
            },
            |_, _| {},
        );
        let place = Place::new();
        let url = camera.url().replace("//", "//admin:hunter2@");
        place.configure(&format!("[cameras]\ncam0 = '{url}'\n"));
        let capture = place.start("capture cam0");
        capture.expect("next attempt in ");
        let (requests, others) = (camera.requests(), other.requests());
        let is_moved = |request: &String| request.contains("/moved") && request.contains(LOGIN);
        assert!(requests.iter().any(is_moved), "{requests:#?}");
        assert!(!others.is_empty());
        assert!(!others.join("\n").contains(LOGIN), "{others:#?}");
    }
}

/// Bytes of a body, more than `capture` may hold.
const BODY: usize = 5 << 28;

#[test]
fn endless_answer_is_not_stored() {
    let sent = Arc::new(Mutex::new(None));
    let count = sent.clone();
    let camera = Camera::start(
        |request| match request.starts_with("DESCRIBE") {
            true => "200 OK|Content-Type: application/sdp\r\nContent-Length: 2000000000\r\n".into(),
            false => OPTIONS.into(),
        },
        move |request, stream| {
            let part = vec![b'x'; 1 << 20];
            if request.starts_with("DESCRIBE") {
                let parts = (0..BODY / part.len()).take_while(|_| stream.write_all(&part).is_ok()).count();
                let _ = stream.shutdown(std::net::Shutdown::Both);
                count.lock().unwrap().get_or_insert(parts * part.len());
            }
        },
    );
    let place = Place::new();
    place.configure(&format!(
        "[cameras]\ncam0 = '{}'\ncam1 = 'pattern:ball?width=64&height=64&rate=10'
         [defaults]\nrecord = false\nmotion = false\n[wall]\nlisten = '127.0.0.1:0'\n",
        camera.url()
    ));
    let _site = place.start("run");
    let mut control = place.control();
    let before = control.expect("another camera", |state| is(state, "capture-cam1", "cam1", "running"));
    let taken = wait("end of the answer", || *sent.lock().unwrap());
    assert!(taken < BODY, "{taken} bytes were taken");
    let has_ended = |event: &Value| {
        let text = event["text"].as_str().unwrap();
        event["process"] == "capture-cam0" && (text.contains("next attempt") || text.contains("next start"))
    };
    let after = control.expect("report", |state| state["events"].as_array().unwrap().iter().any(has_ended));
    assert_eq!(pid(&after, "capture-cam1"), pid(&before, "capture-cam1"));
    assert_eq!(process(&after, "capture-cam1")["restarts"], 0);
}

#[test]
fn text_of_a_camera_cannot_control_the_terminal() {
    let camera = Camera::start(|_| "404 \u{1b}]0;title\u{7}\u{9b}2J|".into(), |_, _| {});
    let place = Place::new();
    place.configure(&format!(
        "[cameras]\ncam0 = '{}'\n[defaults]\nrecord = false\nmotion = false\n[wall]\nlisten = '127.0.0.1:0'\n",
        camera.url()
    ));
    let site = place.start("run");
    let state = place.control().expect("error", |state| is(state, "capture-cam0", "cam0", "failed"));
    let text = process(&state, "capture-cam0")["reports"]["cam0"]["text"].as_str().unwrap().to_owned();
    site.expect("next attempt in ");
    for text in [text, site.text()] {
        assert!(text.contains("]0;title"), "{text:?}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}

#[test]
fn recordings_are_not_readable_by_others() {
    let place = Place::new();
    place.configure(
        "[cameras]\ncam0 = 'pattern:ball?width=64&height=64&rate=10'\n[recording]\nfolder = 'recordings'\n",
    );
    let (_capture, record) = (place.start("capture cam0"), place.start("record cam0"));
    record.expect("cam0: running");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file =
        wait("recording", || Some(fs::read_dir(place.path("recordings/cam0")).ok()?.next()?.unwrap().path()));
    assert_eq!(mode(&file), 0o640);
    for folder in ["recordings", "recordings/cam0"] {
        assert_eq!(mode(&place.path(folder)), 0o750, "{folder}");
    }
}

#[test]
fn memory_of_capture_is_bounded_by_the_number_of_its_cameras() {
    let place = Place::new();
    let camera = |number| format!("cam{number} = 'pattern:ball?width=64&height=64&rate=10'\n");
    place.configure(&format!("[cameras]\n{}{}{}", camera(0), camera(1), camera(2)));
    let mut capture = place.start("capture");
    (0..3).for_each(|number| _ = capture.expect(&format!("cam{number}: running")));
    let limits = read_proc(capture.pid(), "limits");
    let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert_eq!(data.split_whitespace().nth(3), Some((1024 << 20).to_string().as_str()), "{data}");
    capture.stop();
}
