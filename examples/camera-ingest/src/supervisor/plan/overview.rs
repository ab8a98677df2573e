// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plan of a configuration as text: cameras, processes, streams and their readers.

use super::{Planned, processes};
use crate::{
    config::{Camera, Config, Decode, units::rounded},
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
        let processes = processes(config);
        writeln!(f, "cameras")?;
        for camera in &config.cameras {
            writeln!(f, "  {:<16} {}", camera.name, sources(camera))?;
        }
        writeln!(f, "\nprocesses")?;
        for process in &processes {
            writeln!(f, "  {:<16} {}", process.name, process.cameras.join(" "))?;
        }
        writeln!(f, "\nstreams          exported by      read by")?;
        for camera in &config.cameras {
            for stream in streams(camera) {
                let name = |role| find(&processes, role, camera).unwrap_or("-");
                let readers: Vec<_> = stream
                    .readers
                    .iter()
                    .filter_map(|(role, policy)| {
                        Some(format!("{} ({policy})", find(&processes, *role, camera)?))
                    })
                    .collect();
                writeln!(f, "  {:<16} {:<16} {}", stream.name, name(stream.exporter), readers.join(", "))?;
            }
        }
        write!(f, "\nrecordings in {}", config.recording.folder.display())?;
        writeln!(f, "{}", filling(config).unwrap_or_default())?;
        writeln!(f, "page at http://{}/", config.wall.listen)?;
        let access = &config.access;
        if access.users.is_empty() && access.groups.is_empty() {
            return writeln!(f, "streams are for this user and root");
        }
        writeln!(
            f,
            "streams are for this user, root, users {:?} and groups {:?}",
            access.users, access.groups
        )
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

/// A stream of a camera and its planned readers.
struct Stream {
    name: String,
    exporter: Role,
    readers: Vec<(Role, String)>,
}

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

fn find<'a>(processes: &'a [Planned], role: Role, camera: &Camera) -> Option<&'a str> {
    let process =
        processes.iter().find(|process| process.role == role && process.cameras.contains(&camera.name));
    process.map(|process| process.name.as_str())
}

fn streams(camera: &Camera) -> Vec<Stream> {
    let reader = |role, policy: frameshare::Policy| (role, format!("{policy:?}").to_lowercase());
    let latest = frameshare::Policy::Latest;
    let is_raw = camera.main.is_raw();
    let decoder = |from: Decode| (camera.decode == from && !is_raw).then(|| reader(Role::Decode, latest));
    let recorder = reader(Role::Record, camera.policies.record);
    let wall = || reader(Role::Wall, latest);
    let mut streams = vec![Stream {
        name: camera.encoded(),
        exporter: Role::Capture,
        readers: [recorder.clone()].into_iter().chain(decoder(Decode::Main)).chain([wall()]).collect(),
    }];
    if camera.sub.is_some() {
        let readers = decoder(Decode::Sub).into_iter().collect();
        streams.push(Stream { name: camera.encoded_sub(), exporter: Role::Capture, readers });
    }
    if !is_raw {
        streams.push(Stream { name: camera.audio(), exporter: Role::Capture, readers: vec![recorder] });
    }
    if is_raw || camera.decode != Decode::Never {
        let motion = reader(Role::Motion, camera.policies.motion);
        let model = reader(Role::Model, camera.policies.model);
        let exporter = if is_raw { Role::Capture } else { Role::Decode };
        streams.push(Stream { name: camera.frames(), exporter, readers: vec![motion, model, wall()] });
    }
    for (name, role, is_on) in [
        (camera.motion_results(), Role::Motion, camera.motion),
        (camera.model_results(), Role::Model, camera.model),
    ] {
        if is_on {
            let readers = vec![reader(Role::Record, latest), wall()];
            streams.push(Stream { name, exporter: role, readers });
        }
    }
    streams
}
