// SPDX-License-Identifier: MIT OR Apache-2.0

//! The long run: 8 cameras, and a kill of a random process every 10 s. `make soak-ingest`.
//!
//! The supervisor, the wall, the recorder and the motion detection of the last four cameras are
//! never killed: their memory and descriptors tell whether the ends of others leave something.

mod common;
mod support;

use common::Server;
use rustix::process::Signal;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use support::{Recording, Site, runs};

const CAMERAS: usize = 8;
const BETWEEN_KILLS: Duration = Duration::from_secs(10);
/// Frames of a camera, in a loop.
const LOOP: u32 = 600;
/// Slots that a stream keeps though it does not use them.
const KEPT_SLOTS: usize = 5;
/// Time until caches and pools of the survivors are full.
const WARM_UP: Duration = Duration::from_secs(60);

fn config(port: u16) -> String {
    // Encoded beforehand: a busy machine would not encode every frame of a pattern.
    let camera = |camera: usize| format!("cam{camera} = \"rtsp://127.0.0.1:{port}/cam{camera}\"\n");
    let cameras: String = (0..CAMERAS).map(camera).collect();
    format!(
        "[cameras]\n{cameras}[recording]\nfolder = \"recordings\"\nsegment = \"30s\"\n[wall]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// Memory and descriptors of a process.
#[derive(Clone, Debug)]
struct Usage {
    kilobytes: u64,
    /// Number of descriptors of each kind.
    descriptors: BTreeMap<String, usize>,
}

impl Usage {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
        let kilobytes = line.split_whitespace().next().and_then(|number| number.parse().ok());
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // One that was closed in between has no target.
            if let Ok(target) = fs::read_link(entry.path()) {
                *descriptors.entry(kind(&target.to_string_lossy())).or_default() += 1;
            }
        }
        Self { kilobytes: kilobytes.unwrap_or(0), descriptors }
    }

    /// Number of descriptors without slots, of which a stream keeps some when it has needed them.
    fn number_of_descriptors(&self) -> usize {
        self.descriptors.values().sum::<usize>() - self.slots()
    }

    fn slots(&self) -> usize {
        let slots = self.descriptors.iter().filter(|(kind, _)| kind.contains("frameshare-slot:"));
        slots.map(|(_, count)| count).sum()
    }
}

/// Kind of a descriptor: its target without the numbers that tell one from another.
fn kind(target: &str) -> String {
    target.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Processes that are never killed, and their usage.
fn survivors(site: &Site) -> BTreeMap<String, Usage> {
    let names = ["record-2", "motion-2", "wall"];
    let usages = names.map(|name| (name.to_owned(), Usage::of(site.pid(name))));
    usages.into_iter().chain([("supervisor".to_owned(), Usage::of(site.supervisor()))]).collect()
}

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

#[test]
#[ignore = "it takes as long as MINUTES says: make soak-ingest"]
fn killed_processes_leave_nothing_behind_for_long() {
    let minutes = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(60_u64);
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as u64 | 1;
    println!("{minutes} minutes, seed {seed}");
    let rtsp: Vec<_> = (0..CAMERAS).map(|camera| format!("cam{camera}=320x180@10")).collect();
    let cameras = Server::start(0, &format!("--frames {LOOP} {}", rtsp.join(" ")));
    let site = Site::start(&config(cameras.port));
    for camera in 0..CAMERAS {
        let group = 1 + camera / 4;
        site.wait_for_report(&format!("record-{group}"), &format!("cam{camera}"), &["running"]);
        site.wait_for_report(&format!("motion-{group}"), &format!("cam{camera}"), &["running"]);
    }
    let victims: Vec<_> = site
        .processes()
        .iter()
        .filter_map(|process| process["name"].as_str().map(str::to_owned))
        .filter(|name| !survivors(&site).contains_key(name))
        .collect();
    println!("victims: {}", victims.join(", "));

    let begin = Instant::now();
    let mut kills = BTreeMap::<String, u64>::new();
    let (mut usages, mut last) = (Vec::new(), survivors(&site));
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        let victim = &victims[random(&mut seed) % victims.len()];
        *kills.entry(victim.clone()).or_default() += 1;
        site.signal(victim, Signal::KILL);
        thread::sleep(BETWEEN_KILLS);
        let usage = survivors(&site);
        print_growth(&last, &usage, begin.elapsed());
        last.clone_from(&usage);
        if begin.elapsed() >= WARM_UP {
            usages.push(usage);
        }
    }
    // The last one has to be back.
    for (victim, count) in &kills {
        site.wait_for_restarts(victim, *count);
    }
    for process in site.processes() {
        let name = process["name"].as_str().expect("a name");
        let killed = kills.get(name).copied().unwrap_or(0);
        assert_eq!(process["restarts"].as_u64(), Some(killed), "{process}");
    }
    let place = site.stop();
    println!("{} kills: {kills:?}", kills.values().sum::<u64>());
    check_usages(&usages);
    (0..CAMERAS).for_each(|camera| check_recording(&place.path("recordings"), camera, &kills));
}

/// Prints processes with more descriptors than before, with the kinds of all of them.
fn print_growth(before: &BTreeMap<String, Usage>, now: &BTreeMap<String, Usage>, time: Duration) {
    for (name, usage) in now {
        let (last, count) = (before[name].number_of_descriptors(), usage.number_of_descriptors());
        if count > last {
            println!(
                "{} s: {name}: {last}, then {count} descriptors: {:?}",
                time.as_secs(),
                usage.descriptors
            );
        }
    }
}

/// The least usage of the second half is no more than that of the first one, but for what the
/// allocator keeps: peaks while others start again pass, leaks stay.
fn check_usages(usages: &[BTreeMap<String, Usage>]) {
    let (first, second) = usages.split_at(usages.len() / 2);
    let least = |part: &[BTreeMap<String, Usage>], name: &str| {
        let kilobytes = part.iter().map(|usage| usage[name].kilobytes).min();
        let descriptors =
            part.iter().map(|usage| &usage[name]).min_by_key(|usage| usage.number_of_descriptors());
        Usage {
            kilobytes: kilobytes.unwrap_or(0),
            descriptors: descriptors.map(|usage| usage.descriptors.clone()).unwrap_or_default(),
        }
    };
    let names = usages.first().expect("the run is longer than the warm-up").keys();
    for name in names {
        let (before, after) = (least(first, name), least(second, name));
        println!("{name}: {before:?}, then {after:?}");
        assert!(
            after.number_of_descriptors() <= before.number_of_descriptors() + 8,
            "{name}: {before:?}, then {after:?}"
        );
        assert!(after.slots() <= KEPT_SLOTS * CAMERAS / 2, "{name}: {after:?}");
        assert!(after.kilobytes <= before.kilobytes * 5 / 4 + 8192, "{name}: {before:?}, then {after:?}");
    }
}

/// Each break in the numbers is a kill of the camera's capture or of its recorder.
fn check_recording(folder: &Path, camera: usize, kills: &BTreeMap<String, u64>) {
    let recordings = Recording::all(&folder.join(format!("cam{camera}")));
    let found = runs(&recordings, LOOP);
    let killed = |name: String| kills.get(&name).copied().unwrap_or(0);
    let (capture, recorder) =
        (killed(format!("capture-cam{camera}")), killed(format!("record-{}", 1 + camera / 4)));
    let frames = recordings.iter().map(|segment| segment.frames.len()).sum::<usize>();
    let runs = found.len();
    println!(
        "cam{camera}: {frames} frames in {runs} runs, {capture} kills of capture, {recorder} of its recorder"
    );
    assert!(runs as u64 <= 1 + capture + recorder, "cam{camera}: {found:?}");
}
