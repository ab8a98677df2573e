// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration from its file form: defaults, and checks of values.

use super::{
    Camera, Config, Decode, Groups, Model, Passwords, Policies, Recording, Secret, Source, Wall, Zone,
    file::{CameraTable, File, PolicyFile, Readers, Reading, ZoneFile},
    parse::{Document, Problem},
    secret,
    source::{self, Login},
    units,
};
use frameshare::{Policy, StreamName};
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Suffix of the longest stream name of a camera.
const LONGEST_SUFFIX: &str = ".motion";

/// Builds a configuration; problems are added to the list.
pub struct Builder<'a> {
    pub document: &'a Document<'a>,
    /// Folder of the configuration, to which paths are relative.
    pub folder: &'a Path,
    pub passwords: Passwords,
    pub problems: Vec<Problem>,
}

impl Builder<'_> {
    pub fn build(&mut self, file: File) -> Config {
        let File { cameras, defaults, recording, model, wall, groups, access, hang_timeout } = file;
        let mut cameras: Vec<_> = cameras.into_iter().collect();
        cameras.sort_by_key(|(name, _)| self.document.offset(&["cameras", name]));
        if cameras.is_empty() && !self.problems.iter().any(|problem| problem.key.starts_with("cameras")) {
            self.add(&["cameras"], "no cameras: add one as [cameras] cam0 = \"rtsp://host/path\"");
        }
        let cameras = cameras.into_iter().filter_map(|(name, file)| self.camera(name, file, &defaults));
        let cameras = cameras.collect();
        let recording = Recording {
            folder: self.folder.join(recording.folder.unwrap_or("recordings".into())),
            segment: self
                .value(&["recording", "segment"], recording.segment, units::duration)
                .unwrap_or(Duration::from_secs(60)),
            max_age: self.limit(&["recording", "max-age"], recording.max_age, "7d", units::duration),
            max_bytes: self.limit(&["recording", "max-size"], recording.max_size, "10GB", units::size),
            reserve: self.value(&["recording", "reserve"], recording.reserve, units::size),
        };
        let mut group = |key: &str, size: Option<usize>, default: usize| match size {
            Some(0) => {
                self.add(&["groups", key], "0 cameras a process: expected at least 1");
                default
            }
            size => size.unwrap_or(default),
        };
        let groups = Groups {
            capture: group("capture", groups.capture, 1),
            decode: group("decode", groups.decode, 1),
            record: group("record", groups.record, 4),
            motion: group("motion", groups.motion, 4),
            model: group("model", groups.model, 4),
        };
        Config {
            cameras,
            recording,
            model: Model {
                program: self.folder.join(model.program.unwrap_or("model.py".into())),
                device: model.device,
            },
            wall: Wall { listen: wall.listen.unwrap_or(([127, 0, 0, 1], 8080).into()) },
            groups,
            access,
            hang_timeout: Some(hang_timeout.unwrap_or(30)).filter(|time| *time > 0).map(Duration::from_secs),
        }
    }

    fn add(&mut self, path: &[&str], text: impl std::fmt::Display) {
        self.problems.push(self.document.problem_of(path, text));
    }

    fn value<T>(
        &mut self,
        path: &[&str],
        text: Option<String>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let result = parse(&text?);
        result.map_err(|error| self.add(path, error)).ok()
    }

    /// Parses a limit that "never" removes.
    fn limit<T>(
        &mut self,
        path: &[&str],
        text: Option<String>,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = text.unwrap_or_else(|| default.to_owned());
        if text == "never" { None } else { self.value(path, Some(text), parse) }
    }

    fn camera(&mut self, name: String, table: CameraTable, defaults: &Readers) -> Option<Camera> {
        let at = ["cameras", name.as_str()];
        let key = |key| [at[0], at[1], key];
        if name.contains('.') || format!("{name}{LONGEST_SUFFIX}").parse::<StreamName>().is_err() {
            self.add(&at, format!("invalid name '{name}': expected 1 to 57 of A-Z a-z 0-9 _ -"));
            return None;
        }
        let login = self.login(&name, &table);
        // A source that is the camera's only text has the line of the camera.
        let Some(main) = &table.main else {
            // A `main` that was left out for its type has a problem of its own.
            if self.document.offset(&key("main")) == self.document.offset(&at) {
                self.add(&at, "no main stream: add main = \"rtsp://host/path\"");
            }
            return None;
        };
        let main =
            source::parse(main, self.folder, &login).map_err(|error| self.add(&key("main"), error)).ok();
        let sub = table.sub.as_ref().and_then(|sub| {
            source::parse(sub, self.folder, &login).map_err(|error| self.add(&key("sub"), error)).ok()
        });
        if matches!(sub, Some(Source::Device(_) | Source::Pattern { .. })) {
            self.add(&key("sub"), "a sub-stream is an RTSP URL or a file: raw video has nothing to decode");
        }
        let decode = match table.decode {
            Some(Decode::Sub) if table.sub.is_none() => {
                self.add(&key("decode"), "there is no sub-stream: add sub = \"rtsp://host/path\"");
                return None;
            }
            Some(decode) => decode,
            None if table.sub.is_some() => Decode::Sub,
            None => Decode::Main,
        };
        let read = |own: Option<Reading>, all: Option<Reading>, usual, default| match own.or(all) {
            None => (default, usual),
            Some(Reading::IsOn(is_on)) => (is_on, usual),
            Some(Reading::With(PolicyFile::Latest)) => (true, Policy::Latest),
            Some(Reading::With(PolicyFile::Lossless)) => (true, Policy::Lossless),
        };
        let (record, record_policy) = read(table.record, defaults.record, Policy::Lossless, true);
        let (motion, motion_policy) = read(table.motion, defaults.motion, Policy::Latest, true);
        let (model, model_policy) = read(table.model, defaults.model, Policy::Latest, false);
        let is_decoded = decode != Decode::Never;
        for (role, own) in [("motion", table.motion), ("model", table.model)] {
            if !is_decoded && own.is_some_and(|own| own != Reading::IsOn(false)) {
                self.add(&key(role), "the camera is not decoded (decode = \"never\")");
            }
        }
        let zones = self.zones(&name, table.zones.unwrap_or_default());
        Some(Camera {
            main: main?,
            sub,
            decode,
            zones,
            record,
            motion: motion && is_decoded,
            model: model && is_decoded,
            policies: Policies { record: record_policy, motion: motion_policy, model: model_policy },
            name,
        })
    }

    fn zones(&mut self, camera: &str, zones: Vec<ZoneFile>) -> Vec<Zone> {
        let path = ["cameras", camera, "zones"];
        let mut built: Vec<Zone> = Vec::new();
        for (number, zone) in zones.into_iter().enumerate() {
            let name = zone.name.unwrap_or_else(|| format!("zone {}", number + 1));
            let points = zone.points.unwrap_or_default();
            if points.len() < 3 {
                self.add(&path, format!("'{name}' has {} points: expected at least 3", points.len()));
            } else if let Some(point) = points.iter().flatten().find(|part| !(0.0..=1.0).contains(*part)) {
                self.add(&path, format!("'{name}' has a coordinate {point}: expected 0 to 1"));
            } else if built.iter().any(|zone| zone.name == name) {
                self.add(&path, format!("two zones are named '{name}'"));
            } else {
                built.push(Zone { name, points });
            }
        }
        built
    }

    fn login(&mut self, camera: &str, table: &CameraTable) -> Login {
        table.password_env.iter().for_each(|name| secret::note_variable(name));
        let ways = [
            ("password-file", &table.password_file),
            ("password-env", &table.password_env),
            ("password-credential", &table.password_credential),
        ];
        let mut given = ways.into_iter().filter_map(|(key, name)| Some((key, name.as_deref()?)));
        let Some((key, name)) = given.next() else {
            return Login { user: table.user.clone(), password: None };
        };
        for (other, _) in given {
            self.add(&["cameras", camera, other], "there is another password: remove one");
        }
        if table.user.is_none() {
            self.add(&["cameras", camera], "a password without a user: add user = \"...\"");
        }
        let mut password = None;
        if self.passwords == Passwords::Read {
            let result = match key {
                "password-file" => self.read(&self.folder.join(name)),
                "password-env" => variable(name),
                _ => self.credential(name),
            };
            match result {
                Ok(text) => password = Some(Secret::from(text)),
                Err(error) => self.add(&["cameras", camera, key], error),
            }
        }
        Login { user: table.user.clone(), password }
    }

    fn credential(&self, name: &str) -> Result<String, String> {
        let folder = env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| {
            format!("no credentials of systemd here: start as a unit with LoadCredential={name}:FILE")
        })?;
        if name.contains('/') || name.is_empty() {
            return Err(format!("invalid name of a credential '{name}'"));
        }
        self.read(&PathBuf::from(folder).join(name))
    }

    fn read(&self, file: &Path) -> Result<String, String> {
        let text =
            fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(format!("{} is empty", file.display())),
            text => Ok(text.to_owned()),
        }
    }
}

fn variable(name: &str) -> Result<String, String> {
    match env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("environment variable {name} is not set")),
    }
}
