// SPDX-License-Identifier: MIT OR Apache-2.0

//! This process's user, and its user namespace.

use super::Check;
use frameshare::machine::overflow_uid;
use rustix::process::{getegid, geteuid, getgroups, getuid};
use std::fs;

pub fn checks() -> Vec<Check> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let groups = getgroups().unwrap_or_default();
    let groups = groups.iter().map(|group| group.as_raw().to_string()).collect::<Vec<_>>().join(" ");
    let mut checks = vec![Check::ok("user", format!("user {uid}, group {gid}, further groups: {groups}"))];
    if getuid().as_raw() != uid {
        let text = format!("the real user is {}: exporters see the effective one", getuid().as_raw());
        checks.push(Check::ok("user", text));
    }
    checks.extend(namespace(uid, overflow_uid(), &map()));
    checks
}

fn namespace(uid: u32, overflow: Option<u32>, map: &str) -> Vec<Check> {
    let Some(overflow) = overflow else {
        return vec![Check::ok(
            "user",
            "the user namespace has every user: exporters and readers in it see each other's numbers",
        )];
    };
    let mut checks = vec![Check::ok(
        "user",
        format!(
            "a user namespace of its own ({map}): users that it does not map appear here as {overflow}, and \
             exporters outside see this user by its number there"
        ),
    )];
    if uid == overflow {
        checks.push(Check::error(
            "user",
            format!("this user has no number in its namespace: {overflow} stands for all of them"),
            "map the user, as podman does with --userns=keep-id: exporters here accept no other process",
        ));
    }
    checks
}

/// Returns the map of the namespace: its first number, that outside, and the count, of each range.
fn map() -> String {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let ranges = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    ranges.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn user_without_number_is_an_error() {
        let level =
            |uid, overflow| namespace(uid, overflow, "0 1000 1").iter().map(|check| check.level).max();
        assert_eq!(level(1000, None), Some(Level::Ok));
        assert_eq!(level(65534, None), Some(Level::Ok));
        assert_eq!(level(0, Some(65534)), Some(Level::Ok));
        assert_eq!(level(65534, Some(65534)), Some(Level::Error));
    }
}
