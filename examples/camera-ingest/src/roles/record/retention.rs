// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deletion of the oldest segments, of all cameras together.
//!
//! Every recorder process does it; two at once do no harm. Segments that are being written are
//! counted, and never deleted.

use super::files::{self, PART, RESULTS, SEGMENT};
use crate::config::Recording;
use anyhow::{Context, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// A file of a recording.
struct Entry {
    path: PathBuf,
    changed: SystemTime,
    bytes: u64,
}

/// Deletes finished segments, with their results, that are older than the configuration allows, or
/// beyond its number of bytes. Returns the number of segments.
pub fn apply(recording: &Recording, now: SystemTime) -> Result<usize> {
    let entries = scan(&recording.folder).with_context(|| format!("in {}", recording.folder.display()))?;
    let mut total = entries.iter().map(|entry| entry.bytes).sum::<u64>();
    let mut segments: Vec<_> =
        entries.iter().filter(|entry| entry.path.to_string_lossy().ends_with(SEGMENT)).collect();
    segments.sort_by_key(|segment| segment.changed);
    let mut deleted = 0;
    for segment in segments {
        let age = now.duration_since(segment.changed).unwrap_or(Duration::ZERO);
        let is_old = recording.max_age.is_some_and(|limit| age > limit);
        if !is_old && recording.max_bytes.is_none_or(|limit| total <= limit) {
            break;
        }
        let results = files::results(&segment.path);
        let of_results = entries.iter().find(|entry| entry.path == results).map_or(0, |entry| entry.bytes);
        remove(&segment.path)?;
        remove(&results)?;
        total = total.saturating_sub(segment.bytes + of_results);
        deleted += 1;
    }
    Ok(deleted)
}

/// Returns all files of recordings.
fn scan(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for camera in fs::read_dir(folder)? {
        let camera = camera?;
        if !camera.file_type()?.is_dir() {
            continue;
        }
        for ending in [SEGMENT, PART, RESULTS] {
            for path in files::list(&camera.path(), ending)? {
                // Another process may have renamed or deleted it.
                let Ok(file) = fs::metadata(&path) else { continue };
                found.push(Entry { changed: file.modified()?, bytes: file.len(), path });
            }
        }
    }
    Ok(found)
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
    use std::fs::File;

    fn recording(folder: &Path, max_age: Option<u64>, max_bytes: Option<u64>) -> Recording {
        Recording {
            folder: folder.to_owned(),
            segment: Duration::from_secs(60),
            max_age: max_age.map(Duration::from_secs),
            max_bytes,
        }
    }

    /// Makes a file of 100 bytes that was changed at this time.
    fn add(folder: &Path, name: &str, seconds: u64) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, [0; 100]).unwrap();
        File::options().append(true).open(&path).unwrap().set_modified(time(seconds)).unwrap();
    }

    fn time(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = scan(folder)
            .unwrap()
            .iter()
            .map(|entry| entry.path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn oldest_segments_of_all_cameras_are_deleted_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for (name, seconds) in
            [("cam0/a.mkv", 10), ("cam1/a.mkv", 20), ("cam0/b.mkv", 30), ("cam1/b.mkv.part", 5)]
        {
            add(folder, name, seconds);
        }
        add(folder, "cam0/a.jsonl", 11);
        assert_eq!(apply(&recording(folder, None, None), time(1000)).unwrap(), 0);
        assert_eq!(apply(&recording(folder, None, Some(500)), time(1000)).unwrap(), 0);
        assert_eq!(apply(&recording(folder, None, Some(499)), time(1000)).unwrap(), 1);
        assert_eq!(names(folder), ["cam0/b.mkv", "cam1/a.mkv", "cam1/b.mkv.part"]);
        assert_eq!(apply(&recording(folder, Some(70), None), time(100)).unwrap(), 1);
        assert_eq!(names(folder), ["cam0/b.mkv", "cam1/b.mkv.part"]);
        // Negative control: no limit deletes a segment that is being written.
        assert_eq!(apply(&recording(folder, Some(1), Some(0)), time(1000)).unwrap(), 1);
        assert_eq!(names(folder), ["cam1/b.mkv.part"]);
    }

    #[test]
    fn missing_folder_is_an_error() {
        let error = apply(&recording(Path::new("/no/such"), None, None), time(0)).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
