// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folders that are searched for streams.

use super::Check;
use frameshare::{StreamFolder, stream_folders};
use std::{env, fs, io, os::unix::fs::MetadataExt, path::Path};

const SUBJECT: &str = "folder";

pub fn checks() -> Vec<Check> {
    let variable = match env::var_os("XDG_RUNTIME_DIR") {
        None => Check::ok(SUBJECT, "XDG_RUNTIME_DIR is not set: names are searched in /run/frameshare"),
        Some(path) if Path::new(&path).is_absolute() => {
            Check::ok(SUBJECT, format!("XDG_RUNTIME_DIR={}", path.display()))
        }
        Some(path) => Check::warning(
            SUBJECT,
            format!(
                "XDG_RUNTIME_DIR={} is no absolute path: names are searched in /run/frameshare",
                path.display()
            ),
            "set it to a folder of this user, such as /run/user/1000, or unset it",
        ),
    };
    [variable].into_iter().chain(stream_folders().iter().map(check)).collect()
}

fn check(folder: &StreamFolder) -> Check {
    let path = folder.path.display();
    let role = if folder.is_own { "names of this user" } else { "FRAMESHARE_PATH" };
    match &folder.problem {
        None => {}
        Some(error) if folder.is_own && error.kind() == io::ErrorKind::NotFound => return missing(folder),
        Some(error) if folder.is_own => {
            return Check::error(SUBJECT, format!("{role}: refused: {error}"), "until then use socket paths");
        }
        Some(error) => {
            let remedy = "correct FRAMESHARE_PATH, or have the folder's owner let this user in";
            return Check::warning(SUBJECT, format!("{role}: {path} is not searched: {error}"), remedy);
        }
    }
    let found = fs::metadata(&folder.path);
    let owner = found.map_or_else(
        |error| error.to_string(),
        |found| format!("user {}, mode 0{:o}", found.uid(), found.mode() & 0o7777),
    );
    let open = match &folder.open_to_others {
        None => String::new(),
        Some(open) => format!(
            "; others can write to {}: exporters of other users than this one and root are refused unless \
             exporter-uid names them",
            open.display()
        ),
    };
    Check::ok(SUBJECT, format!("{role}: {path}, {owner}{open}"))
}

/// The first exporter makes the own folder if it can write to the one above.
fn missing(folder: &StreamFolder) -> Check {
    let path = folder.path.display();
    let above = folder.path.parent().unwrap_or(Path::new("/"));
    match rustix::fs::access(above, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) => Check::ok(SUBJECT, format!("names of this user: {path} is made by the first exporter")),
        Err(error) => Check::error(
            SUBJECT,
            format!("names of this user: {path} is missing, and this user cannot make it: {error}"),
            "set XDG_RUNTIME_DIR to a folder of this user, or use socket paths",
        ),
    }
}
