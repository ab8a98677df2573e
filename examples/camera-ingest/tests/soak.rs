// SPDX-License-Identifier: MIT OR Apache-2.0

//! The long run: cameras of different kinds, and a fault every 10 s. `make soak-ingest`.
//!
//! Every frame that a camera delivered is in a recording, or the recorder counted it, or a kill
//! explains it. Two witnesses tell what was delivered: a reader beside the recorder, and ffmpeg
//! beside the site. The supervisor and the wall are never disturbed: their memory and descriptors
//! tell whether the ends of others leave something.

mod common;
mod support;

use common::Server;
use rustix::{fs::statvfs, process::Signal};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use support::{Ffmpeg, Recording, Site, Witness, compare, numbers_of};

/// A name, the video, and frames in 4 s of each camera. One server has all but the last two, which
/// have their own.
const CAMERAS: [(&str, &str, usize); 8] = [
    ("one", "160x96@10,b-frames=1", 40),
    ("two", "160x96@10,b-frames=2", 40),
    ("three", "160x96@10,b-frames=3,pyramid", 40),
    ("variable", "160x96@10,variable", 40),
    ("slow", "160x96@10,every=4", 1),
    ("small", "320x180@10", 40),
    ("pauses", "160x96@10", 40),
    (REBOOTS, "160x96@10", 40),
];
const REBOOTS: &str = "reboots";
const SUB: &str = "small/sub=160x96@10";
/// Sizes of the last camera, which has another one after each restart.
const SIZES: [&str; 2] = ["160x96@10", "192x108@10"];
/// Cameras of one recorder.
const GROUP: usize = 4;
/// Maximum number of frames that are sent after a later one.
const REORDERED: u32 = 7;
const BETWEEN_FAULTS: Duration = Duration::from_secs(10);
/// Frames of a camera, in a loop.
const LOOP: u32 = 2400;
/// The supervisor kills a process without a sign of life for 30 s.
const IS_KILLED_WITHIN: Duration = Duration::from_secs(40);
/// Slots that a stream keeps though it does not use them.
const KEPT_SLOTS: usize = 5;
/// Time until caches and pools of the survivors are full.
const WARM_UP: Duration = Duration::from_secs(60);

fn url(ports: [u16; 3], index: usize) -> String {
    let port = ports[index.saturating_sub(CAMERAS.len() - 3)];
    format!("rtsp://127.0.0.1:{port}/{}", CAMERAS[index].0)
}

/// The configuration. An edit adds a camera in front of all others, and a zone.
fn config(ports: [u16; 3], is_edited: bool) -> String {
    let url = |index| url(ports, index);
    let mut cameras = String::new();
    if is_edited {
        cameras += "[cameras.added]\nmain = \"pattern:ball?width=160&height=96&rate=5\"\n";
    }
    for (index, (name, ..)) in CAMERAS.into_iter().enumerate() {
        cameras += &format!("[cameras.{name}]\nmain = \"{}\"\n", url(index));
        if name == "small" {
            cameras += &format!("sub = \"{}/sub\"\n", url(index));
        }
        if is_edited && name == "one" {
            cameras += "zones = [{ name = \"left\", points = [[0.0, 0.0], [0.5, 0.0], [0.5, 1.0]] }]\n";
        }
    }
    // The disk is full now and then, and nothing is deleted.
    format!(
        "{cameras}[recording]\nfolder = \"recordings\"\nsegment = \"20s\"\nmax-size = \"never\"\nreserve = \"1B\"\n\
         [wall]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
enum Fault {
    Kill(String),
    Stop(String, Duration),
    Edit,
    FullDisk,
    Reboot,
    Pause,
}

impl Fault {
    /// Returns the process that it ends, and how long that process stood still before its end.
    fn kills(&self) -> Option<(&String, Duration)> {
        match self {
            Self::Kill(name) => Some((name, Duration::ZERO)),
            Self::Stop(name, time) if *time >= IS_KILLED_WITHIN => Some((name, IS_KILLED_WITHIN)),
            _ => None,
        }
    }
}

/// The cameras, the site that records them, and what became of it so far.
struct Run {
    seed: u64,
    site: Site,
    servers: [Server; 3],
    is_edited: bool,
    victims: Vec<String>,
    /// Finished segments are kept here: a full disk makes the recorder delete the oldest ones.
    kept: tempfile::TempDir,
    faults: Vec<Fault>,
    /// Frames of each camera that each recorder process has counted as lost.
    lost: BTreeMap<(u64, &'static str), u64>,
}

impl Run {
    fn start(seed: u64) -> Self {
        let all: Vec<_> = CAMERAS[..6].iter().map(|(name, video, _)| format!("{name}={video}")).collect();
        let servers = [
            format!("{} {SUB}", all.join(" ")),
            format!("pauses={}", CAMERAS[6].1),
            format!("reboots={}", SIZES[0]),
        ];
        let servers = servers.map(|cameras| Server::start(0, &format!("--frames {LOOP} {cameras}")));
        let site = Site::start(&config(servers.each_ref().map(|server| server.port), false));
        for (index, (name, ..)) in CAMERAS.into_iter().enumerate() {
            for role in ["record", "motion"] {
                site.wait_for_report(&format!("{role}-{}", 1 + index / GROUP), name, &["running"]);
            }
        }
        let names = site.processes();
        let names = names.iter().filter_map(|process| process["name"].as_str().map(str::to_owned));
        let victims = names.filter(|name| name != "wall").collect();
        let kept = tempfile::tempdir().expect("a folder");
        Self {
            seed,
            site,
            servers,
            is_edited: false,
            victims,
            kept,
            faults: Vec::new(),
            lost: BTreeMap::new(),
        }
    }

    fn ports(&self) -> [u16; 3] {
        self.servers.each_ref().map(|server| server.port)
    }

    /// Keeps the finished segments, and the numbers of lost frames.
    fn keep(&mut self) {
        for process in self.site.processes() {
            let is_recorder = process["name"].as_str().is_some_and(|name| name.starts_with("record-"));
            let Some(pid) = process["pid"].as_u64().filter(|_| is_recorder) else { continue };
            for (name, ..) in CAMERAS {
                if let Some(lost) = process["reports"][name]["values"]["lost"].as_f64() {
                    self.lost.insert((pid, name), lost as u64);
                }
            }
        }
        for (name, ..) in CAMERAS {
            let (from, to) = (self.site.place.path("recordings").join(name), self.kept.path().join(name));
            fs::create_dir_all(&to).expect("a folder");
            for file in fs::read_dir(from).expect("recordings").flatten() {
                if file.path().extension().is_some_and(|ending| ending == "mkv") {
                    // It is there already, or deleted by now.
                    let _ = fs::hard_link(file.path(), to.join(file.file_name()));
                }
            }
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % below
    }

    fn choose(&mut self, can_fill: bool) -> Fault {
        match self.random(12) {
            0..=5 => {
                let victim = self.random(self.victims.len());
                Fault::Kill(self.victims[victim].clone())
            }
            6 | 7 => {
                // Beyond what its queue holds, and beyond what the supervisor bears.
                let seconds = if self.random(3) == 0 { 40 + self.random(20) } else { 1 + self.random(20) };
                let seconds = seconds as u64;
                Fault::Stop(format!("record-{}", 1 + self.random(2)), Duration::from_secs(seconds))
            }
            8 => Fault::Edit,
            9 if can_fill => Fault::FullDisk,
            10 => Fault::Reboot,
            _ => Fault::Pause,
        }
    }

    fn apply(&mut self, fault: Fault) {
        let begin = Instant::now();
        match &fault {
            Fault::Kill(name) => self.site.signal(name, Signal::KILL),
            Fault::Stop(name, time) => {
                self.site.signal(name, Signal::STOP);
                thread::sleep(*time);
                self.site.signal(name, Signal::CONT);
            }
            Fault::Edit => {
                self.is_edited = !self.is_edited;
                self.site.place.configure(&config(self.ports(), self.is_edited));
                common::signal(self.site.supervisor(), Signal::HUP);
            }
            Fault::FullDisk => {
                let path = self.site.place.path("recordings/filler");
                let mut file = File::create(&path).expect("a file");
                while file.write_all(&[1; 1 << 16]).is_ok() {}
                thread::sleep(Duration::from_secs(3));
                fs::remove_file(path).expect("room again");
            }
            Fault::Reboot => {
                let reboots = self.faults.iter().filter(|fault| matches!(fault, Fault::Reboot)).count();
                let size = SIZES[(reboots + 1) % 2];
                let server = &mut self.servers[2];
                server.kill();
                *server = Server::start(server.port, &format!("--frames {LOOP} reboots={size}"));
            }
            Fault::Pause => {
                let server = &self.servers[1].process;
                server.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(4500));
                server.signal(Signal::CONT);
            }
        }
        println!("{fault:?} {:.1} s", begin.elapsed().as_secs_f64());
        self.faults.push(fault);
    }

    /// Number of kills of each process.
    fn kills(&self) -> BTreeMap<String, u64> {
        let mut kills = BTreeMap::new();
        for fault in &self.faults {
            if let Some((name, _)) = fault.kills() {
                *kills.entry(name.clone()).or_default() += 1;
            }
        }
        kills
    }

    /// Returns what explains that recorded frames of a camera are missing.
    fn explained(&self, camera: usize) -> Explained {
        let (name, _, frames) = CAMERAS[camera];
        let (capture, recorder) = (format!("capture-{name}"), format!("record-{}", 1 + camera / GROUP));
        let kills = self.faults.iter().filter_map(Fault::kills);
        let kills = kills.filter(|(name, _)| **name == capture || **name == recorder);
        // Frames on their way, and those until the next start.
        let killed = kills.clone().map(|(_, stood)| frames * (4 + stood.as_secs() as usize) / 4 + 1).sum();
        let others = self.faults.iter().filter(|fault| match fault {
            Fault::Stop(name, time) => *name == recorder && *time < IS_KILLED_WITHIN,
            Fault::FullDisk => true,
            _ => false,
        });
        let lost = self.lost.iter().filter(|((_, of), _)| *of == name).map(|(_, lost)| *lost as usize);
        Explained { places: kills.count() + others.count(), killed, counted: lost.sum() }
    }
}

/// Reasons why frames are missing in the recordings of a camera.
struct Explained {
    /// Number of faults that may cost frames.
    places: usize,
    /// Frames that kills may cost.
    killed: usize,
    /// Frames that the recorder has counted.
    counted: usize,
}

/// Compares the recordings of a camera with what a witness has seen, prints the result, and returns
/// what is not explained.
fn unexplained(name: &str, witness: &str, recorded: &[u32], sent: &[u32], by: &Explained) -> Option<String> {
    // A witness that joins between key units gets units that cannot be decoded: the cells that
    // they leave white make a number beyond the loop.
    let sent: Vec<_> = sent.iter().copied().filter(|number| *number < LOOP).collect();
    let mut found = compare(recorded, &sent);
    // The recorder was stopped before frames that are shown in front of its last one.
    let is_at_end = |(_, last): &mut (u32, u32)| {
        recorded.last().is_some_and(|end| (end + LOOP - *last) % LOOP <= REORDERED)
    };
    found.missing.pop_if(is_at_end);
    let count = |(first, last): &(u32, u32)| ((last + LOOP - first) % LOOP + 1) as usize;
    let missing: usize = found.missing.iter().map(count).sum();
    // Frames of one place are not in the order in which they were sent.
    let mut places = found.missing.clone();
    places.dedup_by(|next, last| (next.0 + LOOP - last.1) % LOOP <= REORDERED);
    let Explained { places: faults, killed, counted } = by;
    println!(
        "{name}, {witness}: {} of {} frames recorded, {missing} missing in {} places; \
         {faults} faults explain {counted} counted and up to {killed} of kills",
        recorded.len(),
        sent.len(),
        places.len()
    );
    // The end of a capture process may cost the witness more of the last frames than the recorder.
    let is_explained =
        places.len() <= *faults && missing <= killed + counted && found.foreign.len() <= *killed;
    (!is_explained).then(|| format!("{name}, {witness}: {found:?}"))
}

#[test]
#[ignore = "it takes as long as MINUTES says: make soak-ingest"]
fn every_frame_is_recorded_or_explained_for_long() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("MINUTES").unwrap_or(60);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as u64;
    let seed = number("SEED").unwrap_or(now) | 1;
    println!("{minutes} minutes, SEED={seed}");
    let mut run = Run::start(seed);
    // A disk of its own can be filled; witnesses write beside it.
    let disk = statvfs(run.site.place.path("recordings")).expect("a folder");
    let can_fill = disk.f_blocks * disk.f_frsize < 4 << 30;
    if !can_fill {
        println!("SKIP soak-ingest/full-disk: the recordings have no small disk of their own");
    }
    let beside = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let witnesses = CAMERAS.map(|(name, ..)| {
        let stream = run.site.place.stream(&format!("{name}.video"));
        Witness::start(&stream, &beside.path().join(name))
    });
    let rivals: Vec<_> = if Ffmpeg::is_installed() {
        let start = |(index, (name, ..)): (usize, &(&str, _, _))| {
            Ffmpeg::start(&url(run.ports(), index), &beside.path().join(format!("{name}.ffmpeg")))
        };
        CAMERAS.iter().enumerate().map(start).collect()
    } else {
        println!("SKIP soak-ingest/ffmpeg: it is not installed");
        Vec::new()
    };
    let begin = Instant::now();
    let (mut usages, mut last) = (Vec::new(), survivors(&run.site));
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        let fault = run.choose(can_fill);
        run.keep();
        run.apply(fault);
        thread::sleep(BETWEEN_FAULTS);
        let usage = survivors(&run.site);
        print_growth(&last, &usage, begin.elapsed());
        last.clone_from(&usage);
        if begin.elapsed() >= WARM_UP {
            usages.push(usage);
        }
    }
    // The last one has to be back, and nothing else was ever away.
    for (name, count) in &run.kills() {
        run.site.wait_for_restarts(name, *count);
    }
    for process in run.site.processes() {
        let killed = run.kills().get(process["name"].as_str().expect("a name")).copied();
        assert_eq!(process["restarts"].as_u64(), Some(killed.unwrap_or(0)), "{process}");
    }
    run.keep();
    let explained: Vec<_> = (0..CAMERAS.len()).map(|camera| run.explained(camera)).collect();
    println!("{} faults", run.faults.len());
    let reboots = run.faults.iter().filter(|fault| matches!(fault, Fault::Reboot)).count();
    let Run { site, kept, .. } = run;
    let place = site.stop();
    check_usages(&usages);
    let mut faults = Vec::new();
    let mut rivals = rivals.into_iter();
    for ((witness, (name, ..)), explained) in witnesses.into_iter().zip(CAMERAS).zip(explained) {
        for file in fs::read_dir(place.path("recordings").join(name)).expect("recordings").flatten() {
            let _ = fs::rename(file.path(), kept.path().join(name).join(file.file_name()));
        }
        let recorded = Recording::numbers(&Recording::all(&kept.path().join(name)));
        let sent = numbers_of(&witness.end());
        faults.extend(unexplained(name, "reader", &recorded, &sent, &explained));
        if let Some(rival) = rivals.next() {
            // It connects again in its own time.
            let reboots = if name == REBOOTS { reboots } else { 0 };
            let places = explained.places + reboots;
            let explained = Explained { places, killed: explained.killed + reboots * 40, ..explained };
            faults.extend(unexplained(name, "ffmpeg", &recorded, &numbers_of(&rival.end()), &explained));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
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

/// Processes that are never disturbed, and their usage.
fn survivors(site: &Site) -> BTreeMap<String, Usage> {
    let usages = [("wall", site.pid("wall")), ("supervisor", site.supervisor())];
    usages.map(|(name, pid)| (name.to_owned(), Usage::of(pid))).into()
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
        assert!(after.slots() <= KEPT_SLOTS * CAMERAS.len() * 4, "{name}: {after:?}");
        assert!(after.kilobytes <= before.kilobytes * 5 / 4 + 8192, "{name}: {before:?}, then {after:?}");
    }
}
