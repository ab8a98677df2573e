// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deletion of the oldest segments, of all cameras together, also of those that are no longer
//! configured.
//!
//! One recorder process of a site does it: the one that has the lock of the folder. It knows all
//! segments by their names, which are their times. It reads a camera's folder once, and again when
//! a name in it has changed; sizes are asked for once.

use super::files::{self, PART, RESULTS, SEGMENT};
use crate::config::Recording;
use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock, statvfs};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Space that is left free, unless the configuration says how much: an hour of recordings, at least
/// this, and at most this part of the disk.
const LEAST_RESERVE: u64 = 1 << 30;
const RESERVE_PART: u64 = 10;
const HOUR: Duration = Duration::from_secs(3600);
/// Age at which the time of a folder's last change is final.
const SETTLED: Duration = Duration::from_secs(2);

/// Bytes of the disk, as the system tells them.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    pub size: u64,
    pub free: u64,
}

/// All recordings of a site.
pub struct Retention {
    /// Locked while the process lives.
    _lock: File,
    recordings: Recordings,
}

/// The state after a round.
#[derive(Debug, Default, PartialEq)]
pub struct Round {
    pub deleted: usize,
    /// Some of them for lack of space.
    pub was_tight: bool,
    pub free: u64,
    pub reserve: u64,
    /// Time until segments are deleted for their size or for lack of space, at the rate of the last
    /// hour.
    pub left: Option<Duration>,
}

/// The segments in a folder, by camera.
#[derive(Default)]
pub struct Recordings(BTreeMap<PathBuf, Folder>);

#[derive(Default)]
struct Folder {
    /// When its names last changed.
    changed: Option<SystemTime>,
    /// Bytes of finished segments, with their results, by their names without an ending.
    segments: BTreeMap<Box<str>, u64>,
    /// Files that are being written.
    growing: Vec<PathBuf>,
}

impl Disk {
    /// # Errors
    /// Those of the system.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let disk = statvfs(folder)?;
        Ok(Self { size: disk.f_blocks * disk.f_frsize, free: disk.f_bavail * disk.f_frsize })
    }
}

impl Retention {
    /// Takes the lock of the recordings. None if another process has it.
    ///
    /// # Errors
    /// If the folder cannot be made or opened.
    pub fn open(recordings: &Path) -> Result<Option<Self>> {
        let cannot = || format!("in {}", recordings.display());
        fs::create_dir_all(recordings).with_context(cannot)?;
        let lock = File::open(recordings).with_context(cannot)?;
        let is_free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        Ok(is_free.then(|| Self { _lock: lock, recordings: Recordings::default() }))
    }

    /// Deletes finished segments, with their results, that are older than the configuration allows,
    /// beyond its number of bytes, or in the way of new ones.
    ///
    /// # Errors
    /// If a folder cannot be read, or a file cannot be deleted. Others are deleted all the same.
    pub fn apply(&mut self, recording: &Recording, now: SystemTime) -> Result<Round> {
        let disk =
            Disk::of(&recording.folder).with_context(|| format!("in {}", recording.folder.display()))?;
        self.recordings.apply(recording, now, disk)
    }
}

impl Recordings {
    /// Reads all recordings in a folder.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut recordings = Self::default();
        recordings.refresh(folder)?;
        Ok(recordings)
    }

    /// Bytes a second that were recorded in the last hour.
    pub fn rate(&self, now: SystemTime) -> f64 {
        self.last_hour(now) as f64 / HOUR.as_secs_f64()
    }

    fn apply(&mut self, recording: &Recording, now: SystemTime, disk: Disk) -> Result<Round> {
        let mut problem = self.refresh(&recording.folder);
        let usual = LEAST_RESERVE.max(self.last_hour(now)).min(disk.size / RESERVE_PART);
        let reserve = recording.reserve.unwrap_or(usual);
        let oldest_name = recording.max_age.and_then(|age| now.checked_sub(age)).map(files::name_of);
        let (mut used, mut free) = (self.bytes(), disk.free);
        let mut round = Round { reserve, ..Round::default() };
        while let Some((folder, name, bytes)) = self.oldest() {
            let is_old = oldest_name.as_ref().is_some_and(|oldest| *name < **oldest);
            let is_tight = free < reserve;
            if !is_old && !is_tight && recording.max_bytes.is_none_or(|limit| used <= limit) {
                break;
            }
            round.was_tight |= is_tight;
            if let Some(folder) = self.0.get_mut(&folder) {
                folder.segments.remove(&name);
            }
            for ending in [SEGMENT, RESULTS] {
                let removed = remove(&folder.join(format!("{name}{ending}")));
                problem = problem.and(removed);
            }
            round.deleted += 1;
            used = used.saturating_sub(bytes);
            free += bytes;
        }
        let room = recording.max_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let room = room.min(free.saturating_sub(reserve)) as f64;
        round.left = Duration::try_from_secs_f64(room / self.rate(now)).ok();
        round.free = free;
        problem.map(|()| round)
    }

    /// Reads the folders whose names have changed.
    fn refresh(&mut self, recordings: &Path) -> Result<()> {
        let cannot = || format!("in {}", recordings.display());
        let mut before = std::mem::take(&mut self.0);
        let mut problem = Ok(());
        for camera in fs::read_dir(recordings).with_context(cannot)? {
            let camera = camera.with_context(cannot)?;
            if !camera.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = camera.path();
            let mut folder = before.remove(&path).unwrap_or_default();
            let read = folder.refresh(&path).with_context(|| format!("in {}", path.display()));
            problem = problem.and(read);
            self.0.insert(path, folder);
        }
        problem
    }

    fn bytes(&self) -> u64 {
        let growing = self.0.values().flat_map(|folder| &folder.growing).map(|file| size(file)).sum::<u64>();
        growing + self.0.values().flat_map(|folder| folder.segments.values()).sum::<u64>()
    }

    fn last_hour(&self, now: SystemTime) -> u64 {
        let Some(begin) = now.checked_sub(HOUR).map(|time| files::name_of(time).into_boxed_str()) else {
            return 0;
        };
        let ranges = self.0.values().flat_map(|folder| folder.segments.range(begin.clone()..));
        ranges.map(|(_, bytes)| bytes).sum()
    }

    /// Folder, name and bytes of the oldest finished segment.
    fn oldest(&self) -> Option<(PathBuf, Box<str>, u64)> {
        let first =
            self.0.iter().filter_map(|(path, folder)| Some((path, folder.segments.first_key_value()?)));
        let (path, (name, bytes)) = first.min_by_key(|(_, (name, _))| *name)?;
        Some((path.clone(), name.clone(), *bytes))
    }
}

impl Folder {
    fn refresh(&mut self, path: &Path) -> io::Result<()> {
        let changed = fs::metadata(path)?.modified()?;
        if self.changed == Some(changed) {
            return Ok(());
        }
        // Another change may follow at the same time.
        self.changed = changed.elapsed().is_ok_and(|age| age > SETTLED).then_some(changed);
        let mut before = std::mem::take(&mut self.segments);
        let names = files::list(path, "")?;
        let parts: Vec<_> = names.iter().filter_map(|name| files::stem(name, &[PART])).collect();
        let (finished, growing) = names.iter().partition::<Vec<_>, _>(|file| {
            files::stem(file, &[SEGMENT, RESULTS]).is_some_and(|name| !parts.contains(&name))
        });
        let is_part = |file: &&&PathBuf| files::stem(file, &[PART, RESULTS]).is_some();
        self.growing = growing.iter().filter(is_part).map(|file| file.to_path_buf()).collect();
        for file in finished {
            let Some(name) = files::stem(file, &[SEGMENT, RESULTS]) else { continue };
            if !self.segments.contains_key(name) {
                let asked = || size(&files::finished(file)) + size(&files::results(file));
                self.segments.insert(name.into(), before.remove(name).unwrap_or_else(asked));
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a file; 0 if another process has renamed or deleted it.
fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |file| file.len())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot delete {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: Disk = Disk { size: 1 << 40, free: 1 << 39 };

    fn recording(folder: &Path, max_age: Option<u64>, max_bytes: Option<u64>) -> Recording {
        Recording {
            folder: folder.to_owned(),
            segment: Duration::from_secs(60),
            max_age: max_age.map(Duration::from_secs),
            max_bytes,
            reserve: None,
        }
    }

    /// Makes a file of 100 bytes for this time.
    fn add(folder: &Path, camera: &str, seconds: u64, ending: &str) {
        let path = folder.join(camera).join(format!("{}{ending}", files::name_of(time(seconds))));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, [0; 100]).unwrap();
    }

    fn time(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Camera and second of each segment that is left.
    fn names(folder: &Path) -> Vec<String> {
        let files = ["cam0", "cam1"].map(|camera| files::list(&folder.join(camera), "").unwrap_or_default());
        let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
        files.iter().flatten().map(name).map(|name| name.replace("1970-01-01T00-00-", "")).collect()
    }

    #[test]
    fn oldest_segments_of_all_cameras_are_deleted_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut all = Recordings::default();
        let mut apply = |age, bytes, now: u64| {
            all.apply(&recording(folder, age, bytes), time(now), ROOMY).unwrap().deleted
        };
        assert_eq!(apply(None, Some(0), 1000), 0);
        for (camera, seconds, ending) in
            [("cam0", 10, SEGMENT), ("cam1", 20, SEGMENT), ("cam0", 30, SEGMENT), ("cam1", 5, PART)]
        {
            add(folder, camera, seconds, ending);
        }
        add(folder, "cam0", 10, RESULTS);
        assert_eq!(apply(None, None, 1000), 0);
        assert_eq!(apply(None, Some(500), 1000), 0);
        assert_eq!(apply(None, Some(499), 1000), 1);
        assert_eq!(names(folder), ["cam0/30.mkv", "cam1/05.mkv.part", "cam1/20.mkv"]);
        assert_eq!(apply(Some(70), None, 95), 1);
        assert_eq!(names(folder), ["cam0/30.mkv", "cam1/05.mkv.part"]);
        // A segment that another process has finished is found.
        add(folder, "cam1", 1, SEGMENT);
        assert_eq!(apply(None, Some(299), 95), 1);
        assert_eq!(names(folder), ["cam0/30.mkv", "cam1/05.mkv.part"]);
        // Negative control: no limit deletes a segment that is being written.
        assert_eq!(apply(Some(1), Some(0), 1000), 1);
        assert_eq!(names(folder), ["cam1/05.mkv.part"]);
    }

    #[test]
    fn oldest_segments_make_room_before_the_reserve_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for seconds in [10, 20, 30] {
            add(folder, "cam0", seconds, SEGMENT);
        }
        let mut all = Recordings::default();
        let mut apply = |reserve, free| {
            let recording = Recording { reserve, ..recording(folder, None, None) };
            all.apply(&recording, time(60), Disk { size: 100_000, free }).unwrap()
        };
        // A tenth of a small disk.
        let Round { deleted, reserve, was_tight, .. } = apply(None, 10_000);
        assert_eq!((deleted, reserve, was_tight), (0, 10_000, false));
        let Round { deleted, free, was_tight, .. } = apply(None, 9_900);
        assert_eq!((deleted, free, was_tight), (1, 10_000, true));
        assert_eq!(names(folder), ["cam0/20.mkv", "cam0/30.mkv"]);
        // 200 bytes an hour, and 300 are left.
        assert_eq!(apply(Some(500), 800).left, Some(HOUR * 3 / 2));
        assert_eq!(apply(Some(500), 0).deleted, 2);
    }

    #[test]
    fn missing_folder_is_an_error() {
        let error = Recordings::read(Path::new("/no/such")).err().unwrap();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
