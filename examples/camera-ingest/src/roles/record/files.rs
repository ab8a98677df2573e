// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of recordings: `CAMERA/2026-11-25T01-02-03.mkv`, in UTC.
//!
//! A segment that is being written has `.part` behind its name. A recorder that was killed leaves
//! such a file, which is readable; the next one of the camera gives it its name.

use anyhow::{Context, Result, bail};
use glib::DateTime;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Ending of a segment, and of one that is being written.
pub const SEGMENT: &str = ".mkv";
pub const PART: &str = ".mkv.part";
/// Ending of the results beside a segment.
pub const RESULTS: &str = ".jsonl";

/// The folder of a camera's recordings, with one recorder at a time.
pub struct Folder {
    path: PathBuf,
    /// Locked while the recorder lives.
    _lock: File,
}

impl Folder {
    /// Opens the folder of a camera, makes it if there is none, and names what a killed recorder
    /// has left.
    ///
    /// # Errors
    /// If the folder cannot be made or written, and if another recorder has it.
    pub fn open(recordings: &Path, camera: &str) -> Result<Self> {
        let path = recordings.join(camera);
        let cannot = || format!("cannot record into {}", path.display());
        fs::create_dir_all(&path).with_context(cannot)?;
        let lock = File::open(&path).with_context(cannot)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!("another recorder writes into {}: stop it", path.display()),
            Err(error) => return Err(error).with_context(cannot),
        }
        let folder = Self { path, _lock: lock };
        folder.name_leftovers()?;
        Ok(folder)
    }

    /// Names segments that were not finished. Empty ones are deleted.
    fn name_leftovers(&self) -> Result<()> {
        for part in list(&self.path, PART)? {
            if fs::metadata(&part)?.len() == 0 {
                fs::remove_file(&part)?;
            } else {
                fs::rename(&part, finished(&part))?;
            }
        }
        Ok(())
    }

    /// Returns the path of a segment that begins at a time, in ns since 1970, while it is written.
    pub fn part(&self, time: u64) -> PathBuf {
        let name = name_of(SystemTime::UNIX_EPOCH + Duration::from_nanos(time));
        let numbers = 1..;
        let names = numbers.map(|number| if number == 1 { name.clone() } else { format!("{name}_{number}") });
        let is_free = |name: &String| {
            let taken = |ending| self.path.join(format!("{name}{ending}")).exists();
            !taken(SEGMENT) && !taken(PART) && !taken(RESULTS)
        };
        let mut free = names.filter(is_free);
        self.path.join(format!("{}{PART}", free.next().unwrap_or(name.clone())))
    }
}

/// Returns the name of a finished segment.
pub fn finished(part: &Path) -> PathBuf {
    with_ending(part, SEGMENT)
}

/// Returns the name of the results beside a segment.
pub fn results(segment: &Path) -> PathBuf {
    with_ending(segment, RESULTS)
}

fn with_ending(segment: &Path, ending: &str) -> PathBuf {
    let stem = stem(segment, &[PART, SEGMENT, RESULTS]).unwrap_or_default();
    segment.with_file_name(format!("{stem}{ending}"))
}

/// Returns the files in a folder whose names end so, in the order of their names.
pub fn list(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(ending) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the name of a file without its folder, and without one of these endings.
pub fn stem<'a>(file: &'a Path, endings: &[&str]) -> Option<&'a str> {
    let name = file.file_name()?.to_str()?;
    endings.iter().find_map(|ending| name.strip_suffix(ending))
}

/// Returns the name of a segment that begins at a time: `2026-11-25T01-02-03`. Names have the order
/// of their times.
pub fn name_of(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let date = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_unix_utc(seconds).ok());
    let name = date.and_then(|date| date.format("%Y-%m-%dT%H-%M-%S").ok());
    name.map_or_else(|| seconds.to_string(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_times_in_utc() {
        let of = |seconds: u64| name_of(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 999));
        assert_eq!(of(0), "1970-01-01T00-00-00");
        assert_eq!(of(1_795_568_523), "2026-11-25T01-02-03");
    }

    #[test]
    fn names_are_free_and_leftovers_are_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path(), "cam0").unwrap();
        let first = folder.part(0);
        assert_eq!(first, place.path().join("cam0/1970-01-01T00-00-00.mkv.part"));
        fs::write(&first, "half").unwrap();
        let second = folder.part(1);
        assert_eq!(second, place.path().join("cam0/1970-01-01T00-00-00_2.mkv.part"));
        fs::write(&second, "").unwrap();
        let refused = Folder::open(place.path(), "cam0").err().unwrap().to_string();
        assert!(refused.starts_with("another recorder writes into "), "{refused}");
        drop(folder);
        drop(Folder::open(place.path(), "cam0").unwrap());
        assert_eq!(list(&place.path().join("cam0"), "").unwrap(), [finished(&first)]);
        assert_eq!(results(&first), place.path().join("cam0/1970-01-01T00-00-00.jsonl"));
    }
}
