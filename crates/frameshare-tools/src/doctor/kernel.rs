// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel and its abilities.

use super::Check;
use frameshare::machine::{SocketFeatures, Udmabuf, has_futex_waitv, sealed_memory, udmabuf};
use rustix::system::uname;

const SUBJECT: &str = "kernel";

pub fn checks() -> Vec<Check> {
    let uname = uname();
    let release = uname.release().to_string_lossy();
    let mut checks =
        vec![Check::ok(SUBJECT, format!("Linux {release} on {}", uname.machine().to_string_lossy()))];
    checks.push(match sealed_memory() {
        Ok(()) => Check::ok(SUBJECT, "memory files with seals: yes"),
        Err(error) => Check::error(
            SUBJECT,
            format!("no memory file can be made and sealed: {error}"),
            "nothing can be shared: use Linux 5.1 or later, and let the sandbox allow memfd_create and fcntl",
        ),
    });
    checks.extend(sockets());
    checks.push(wake_ups());
    checks.push(writable_memory());
    checks
}

fn sockets() -> Vec<Check> {
    let features = match SocketFeatures::probe() {
        Ok(features) => features,
        Err(error) => {
            let remedy = "let the sandbox allow socketpair(2)";
            return vec![Check::error(
                SUBJECT,
                format!("no pair of Unix sockets can be made: {error}"),
                remedy,
            )];
        }
    };
    let describe = |name: &str, is_there: bool, without: &str| match is_there {
        true => Check::ok(SUBJECT, format!("{name}: yes")),
        false => Check::ok(SUBJECT, format!("{name}: no; {without}")),
    };
    vec![
        describe(
            "SO_PEERPIDFD (Linux 6.5)",
            features.peer_pidfd,
            "the end of a peer in another PID namespace is noticed by its socket and a file lock",
        ),
        describe(
            "SO_PASSRIGHTS (Linux 6.16)",
            features.pass_rights,
            "descriptors that a peer sends are closed instead of refused",
        ),
    ]
}

fn wake_ups() -> Check {
    let has = if has_futex_waitv() { "yes" } else { "no" };
    Check::ok(SUBJECT, format!("futex_waitv (Linux 5.16): {has}; streams do not need it"))
}

fn writable_memory() -> Check {
    match udmabuf() {
        Udmabuf::Writable => Check::warning(
            SUBJECT,
            "/dev/udmabuf lets readers write into host memory: exporters here refuse readers of other users",
            "update the kernel (fixed in Linux 6.13), or run `modprobe -r udmabuf`, or accept it (allow-udmabuf)",
        ),
        Udmabuf::Untried(why) => {
            Check::ok(SUBJECT, format!("/dev/udmabuf was not tried, for this user may not: {why}"))
        }
        _ => Check::ok(SUBJECT, "/dev/udmabuf: readers cannot write into shared memory through it"),
    }
}
