// SPDX-License-Identifier: MIT OR Apache-2.0

//! Users and groups that have no number in this user namespace (user_namespaces(7)).
//!
//! The kernel reports all of them by one number, 65534 by default. If the namespace maps it, that
//! is also the number of a user of its own. Such a number therefore identifies no user, unless the
//! namespace has a number for every user, as that of the machine has.

use super::PerProcess;
use std::{fs, path::Path};

/// The number of users without one; none if every user has one.
static OVERFLOW_UID: PerProcess<Option<u32>> = PerProcess::new(|| overflow("uid"));
static OVERFLOW_GID: PerProcess<Option<u32>> = PerProcess::new(|| overflow("gid"));

/// `DEFAULT_OVERFLOWUID` of the kernel.
const DEFAULT: u32 = 65534;

/// The number of users without one in this user namespace; none if every user has one.
pub fn overflow_uid() -> Option<u32> {
    *OVERFLOW_UID
}

/// Returns whether this number stands for every user without one.
pub fn is_overflow_uid(uid: u32) -> bool {
    *OVERFLOW_UID == Some(uid)
}

/// Returns whether this number stands for every group without one.
pub fn is_overflow_gid(gid: u32) -> bool {
    *OVERFLOW_GID == Some(gid)
}

/// Returns an explanation to follow the number of a user in an error. `whose` namespace is this
/// process's, which the reader of the error may see from outside.
pub fn note_on_user(uid: u32, whose: &str) -> String {
    if is_overflow_uid(uid) {
        format!(
            " (every user that {whose} user namespace does not map: run both processes as the same user, \
             and map it, as podman does with --userns=keep-id)"
        )
    } else {
        String::new()
    }
}

fn overflow(kind: &str) -> Option<u32> {
    match fs::read_to_string(format!("/proc/self/{kind}_map")) {
        Ok(map) if maps_all(&map) => return None,
        // A kernel without user namespaces.
        Err(_) if Path::new("/proc/self/fd").exists() => return None,
        _ => {}
    }
    let number = fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}"));
    Some(number.ok().and_then(|number| number.trim().parse().ok()).unwrap_or(DEFAULT))
}

/// Returns whether a map has every number but the last, which is none.
fn maps_all(map: &str) -> bool {
    let lengths = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    lengths.sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_of_machine_is_complete() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 0 1000\n1000 1000 4294966295\n"));
        for partial in ["", "0 1000 1\n", "0 100000 65536\n", "0 1000 1\n1 100000 65536\n"] {
            assert!(!maps_all(partial), "{partial}");
        }
    }
}
