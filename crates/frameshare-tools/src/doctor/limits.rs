// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits of this process, and /dev/shm.

use super::{Check, size};
use rustix::{
    fs::statvfs,
    process::{Resource, getrlimit},
};
use std::fs;

/// Soft limits below these are worth a warning: files for 256 slots and 32 readers; a file of a 4K
/// frame with 8 bytes for each pixel.
const FILES: u64 = 512;
const FILE_SIZE: u64 = 64 << 20;
/// Events of a process take a file of 80 KiB in /dev/shm.
const SHM: u64 = 1 << 20;

pub fn checks() -> Vec<Check> {
    vec![files(), file_size(), locked_memory(), shared_memory()]
}

fn files() -> Check {
    let limit = getrlimit(Resource::Nofile);
    let text = format!(
        "open files (ulimit -n): {}, at most {}",
        text(limit.current, |number| number.to_string()),
        text(limit.maximum, |number| number.to_string())
    );
    match limit.current {
        Some(limit) if limit < FILES => Check::warning(
            "limits",
            text,
            format!(
                "raise it to {FILES} or more (ulimit -n, LimitNOFILE=): an exporter needs a file for each slot \
                 and eight for each reader"
            ),
        ),
        _ => Check::ok("limits", text),
    }
}

fn file_size() -> Check {
    let limit = getrlimit(Resource::Fsize).current;
    let text = format!("file size (ulimit -f): {}", text(limit, size));
    match limit {
        Some(limit) if limit < FILE_SIZE => {
            let remedy = "raise it (ulimit -f unlimited): larger frames are not shared";
            Check::warning("limits", text, remedy)
        }
        _ => Check::ok("limits", text),
    }
}

fn locked_memory() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    Check::ok("limits", format!("locked memory (ulimit -l): {}; streams lock none", text(limit, size)))
}

fn shared_memory() -> Check {
    const NEED: &str = "only event fences between GPU processes need it";
    let Ok(found) = statvfs("/dev/shm") else {
        return Check::ok("/dev/shm", format!("missing; {NEED}"));
    };
    let free = found.f_bavail * found.f_frsize;
    let options = mount_options("/dev/shm").unwrap_or_else(|| "no mount of its own".to_owned());
    let text = format!("{}, {} free, {options}; {NEED}", size(found.f_blocks * found.f_frsize), size(free));
    match free < SHM {
        true => Check::warning("/dev/shm", text, "remove files from it, or give it more space (--shm-size)"),
        false => Check::ok("/dev/shm", text),
    }
}

/// Returns the options of the last mount at a path (proc_pid_mountinfo(5)).
fn mount_options(path: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.rfind(|fields| fields.get(4) == Some(&path))?;
    Some((*mount.get(5)?).to_owned())
}

fn text(limit: Option<u64>, format: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "no limit".to_owned(), format)
}
