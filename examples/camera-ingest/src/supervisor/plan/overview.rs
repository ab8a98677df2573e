// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plan of a configuration as text: cameras, processes, streams and their readers.

use super::processes;
use crate::{
    config::{Access, Camera, Config, Decode, units::rounded},
    roles::{Role, record::retention::Recordings},
};
use std::{
    fmt,
    time::{Duration, SystemTime},
};

/// Bytes a second of a camera of which nothing is recorded yet.
const USUAL_RATE: f64 = 250_000.0;

/// Prints a plan.
pub struct Overview<'a>(pub &'a Config);

impl fmt::Display for Overview<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        let processes = processes(config, &[]);
        writeln!(f, "cameras")?;
        for camera in &config.cameras {
            writeln!(f, "  {:<16} {}", camera.name, sources(camera))?;
        }
        writeln!(f, "\nprocesses")?;
        for process in &processes {
            writeln!(f, "  {:<16} {}", process.name, process.names().join(" "))?;
        }
        writeln!(f, "\nstreams          exported by      read by")?;
        for camera in &config.cameras {
            let find = |role| {
                let mut of_role = processes.iter().filter(|process| process.role == role);
                of_role.find(|process| process.cameras.contains(camera)).map(|process| process.name.as_str())
            };
            for (stream, exporter, readers) in streams(camera) {
                let read = |(role, policy)| Some(format!("{} ({policy})", find(role)?));
                let readers: Vec<_> = readers.into_iter().filter_map(read).collect();
                let exporter = find(exporter).unwrap_or("-");
                writeln!(f, "  {stream:<16} {exporter:<16} {}", readers.join(", "))?;
            }
        }
        write!(f, "\nrecordings in {}", config.recording.folder.display())?;
        writeln!(f, "{}", filling(config).unwrap_or_default())?;
        writeln!(f, "page at http://{}/", config.wall.listen)?;
        let Access { users, groups } = &config.access;
        writeln!(f, "streams are for this user, root, users {users:?} and groups {groups:?}")
    }
}

/// Says how far back recordings go, if their size is limited.
fn filling(config: &Config) -> Option<String> {
    let bytes = config.recording.max_bytes? as f64;
    let recordings = Recordings::read(&config.recording.folder).unwrap_or_default();
    let cameras = config.cameras.iter().filter(|camera| camera.record).count();
    let (rate, what) = match recordings.rate(SystemTime::now()) {
        0.0 => (cameras as f64 * USUAL_RATE, "2 Mbit/s a camera"),
        rate => (rate, "the rate of the last hour"),
    };
    let time = Duration::try_from_secs_f64(bytes / rate).ok()?;
    Some(format!(", the last {} within max-size, at {what}", rounded(time)))
}

/// A stream of a camera, its exporter, and its planned readers with their policies.
type Stream = (String, Role, Vec<(Role, String)>);

fn sources(camera: &Camera) -> String {
    let decoded = match camera.decode {
        _ if camera.main.is_raw() => "raw: nothing is decoded",
        Decode::Main => "main is decoded",
        Decode::Sub => "sub is decoded",
        Decode::Never => "nothing is decoded",
    };
    match &camera.sub {
        Some(sub) => format!("{}, sub {sub}; {decoded}", camera.main),
        None => format!("{}; {decoded}", camera.main),
    }
}

fn streams(camera: &Camera) -> Vec<Stream> {
    let reader = |role, policy: frameshare::Policy| (role, format!("{policy:?}").to_lowercase());
    let latest = frameshare::Policy::Latest;
    let is_raw = camera.main.is_raw();
    let decoder = |from: Decode| (camera.decode == from && !is_raw).then(|| reader(Role::Decode, latest));
    let recorder = reader(Role::Record, camera.policies.record);
    let wall = || reader(Role::Wall, latest);
    let encoded = [recorder.clone()].into_iter().chain(decoder(Decode::Main)).chain([wall()]).collect();
    let mut streams = vec![(camera.encoded(), Role::Capture, encoded)];
    if camera.sub.is_some() {
        let readers = decoder(Decode::Sub).into_iter().collect();
        streams.push((camera.encoded_sub(), Role::Capture, readers));
    }
    if !is_raw {
        streams.push((camera.audio(), Role::Capture, vec![recorder]));
    }
    if is_raw || camera.decode != Decode::Never {
        let motion = reader(Role::Motion, camera.policies.motion);
        let model = reader(Role::Model, camera.policies.model);
        let exporter = if is_raw { Role::Capture } else { Role::Decode };
        streams.push((camera.frames(), exporter, vec![motion, model, wall()]));
    }
    for (name, role) in [(camera.motion_results(), Role::Motion), (camera.model_results(), Role::Model)] {
        if role.takes(camera) {
            streams.push((name, role, vec![reader(Role::Record, latest), wall()]));
        }
    }
    streams
}
