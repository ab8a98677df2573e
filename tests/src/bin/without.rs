// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs a command as on an older kernel, or in a sandbox:
//! `without FEATURE[:EPERM][,FEATURE...] -- COMMAND [ARGUMENT...]`.
//!
//! A seccomp filter makes the system calls of a feature fail as a kernel without it would, or with
//! EPERM as in a sandbox. The command and all its children inherit the filter. Features:
//!
//! - `SO_PASSRIGHTS`: getsockopt and setsockopt of it return ENOPROTOOPT (before Linux 6.16)
//! - `pidfd`: getsockopt of SO_PEERPIDFD returns ENOPROTOOPT (before Linux 6.5), pidfd_open ENOSYS
//!   (before Linux 5.3)
//! - a system call of [`CALLS`]: it returns ENOSYS
//!
//! The exit status is the command's, or 126 if the filter or the command could not be started.
//!
//! # Safety
//!
//! The filter is an array that lives during the two prctl(2) calls, which only read it.
#![allow(unsafe_code)]

use libc::{c_int, sock_filter, sock_fprog};
use std::{env, io, os::unix::process::CommandExt, process::Command, process::ExitCode};

/// The value of `seccomp_data.arch` for system calls of this program (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in `seccomp_data` (linux/seccomp.h), on little-endian machines; of an argument, of its
/// lower half.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const LEVEL_AT: u32 = 16 + 8;
const OPTION_AT: u32 = 16 + 2 * 8;

const SO_PASSRIGHTS: u32 = 83;
const SO_PEERPIDFD: u32 = 77;

/// System calls that can be denied by their name.
const CALLS: [(&str, libc::c_long); 13] = [
    ("epoll_create1", libc::SYS_epoll_create1),
    ("eventfd2", libc::SYS_eventfd2),
    ("futex_waitv", libc::SYS_futex_waitv),
    ("getrandom", libc::SYS_getrandom),
    ("memfd_create", libc::SYS_memfd_create),
    ("prctl", libc::SYS_prctl),
    ("prlimit64", libc::SYS_prlimit64),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("socketpair", libc::SYS_socketpair),
    ("statx", libc::SYS_statx),
    ("sysinfo", libc::SYS_sysinfo),
    ("timerfd_create", libc::SYS_timerfd_create),
];

/// A system call that fails.
struct Denied {
    number: libc::c_long,
    /// Only for this option of level SOL_SOCKET.
    option: Option<u32>,
    error: c_int,
}

fn denied_by(feature: &str) -> Option<Vec<Denied>> {
    let (feature, error) = match feature.strip_suffix(":EPERM") {
        Some(feature) => (feature, Some(libc::EPERM)),
        None => (feature, None),
    };
    let call = |number| Denied { number, option: None, error: error.unwrap_or(libc::ENOSYS) };
    let option = |number, option| {
        let error = error.unwrap_or(libc::ENOPROTOOPT);
        Denied { number, option: Some(option), error }
    };
    Some(match feature {
        "SO_PASSRIGHTS" => {
            vec![option(libc::SYS_setsockopt, SO_PASSRIGHTS), option(libc::SYS_getsockopt, SO_PASSRIGHTS)]
        }
        "pidfd" => vec![option(libc::SYS_getsockopt, SO_PEERPIDFD), call(libc::SYS_pidfd_open)],
        name => vec![call(CALLS.iter().find(|(call, _)| *call == name)?.1)],
    })
}

fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

/// Skips `skipped` instructions unless the loaded value is `value`.
fn unless_equal(value: u32, skipped: u8) -> sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    sock_filter { code, jt: 0, jf: skipped, k: value }
}

fn program(denied: &[Denied]) -> Vec<sock_filter> {
    let end = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    // System calls of another architecture (32-bit programs) have other numbers, and pass.
    let mut program = vec![
        load(ARCHITECTURE_AT),
        unless_equal(ARCHITECTURE, 1),
        statement(libc::BPF_JMP | libc::BPF_JA, 1),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    for Denied { number, option, error } in denied {
        let fail = end(libc::SECCOMP_RET_ERRNO | *error as u32);
        program.push(load(NUMBER_AT));
        match option {
            None => program.extend([unless_equal(*number as u32, 1), fail]),
            Some(option) => program.extend([
                unless_equal(*number as u32, 5),
                load(LEVEL_AT),
                unless_equal(libc::SOL_SOCKET as u32, 3),
                load(OPTION_AT),
                unless_equal(*option, 1),
                fail,
            ]),
        }
    }
    program.push(end(libc::SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter for this thread and for all threads and processes that it starts.
fn deny(denied: &[Denied]) -> io::Result<()> {
    let mut program = program(denied);
    let filter = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let unless_failed = |result: c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the call takes integers only.
    unless_failed(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `filter` points to `program`, and both live until the call returns.
    unless_failed(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) })
}

fn run() -> Result<(), String> {
    const USAGE: &str = "without FEATURE[:EPERM][,FEATURE...] -- COMMAND [ARGUMENT...]";
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let (features, command) = match &arguments[..] {
        [features, dashes, command @ ..] if dashes == "--" && !command.is_empty() => (features, command),
        _ => return Err(USAGE.into()),
    };
    let mut denied = Vec::new();
    for feature in features.to_string_lossy().split(',') {
        denied.extend(denied_by(feature).ok_or_else(|| format!("unknown feature {feature:?}: {USAGE}"))?);
    }
    deny(&denied).map_err(|error| format!("cannot install the seccomp filter: {error}"))?;
    Err(format!(
        "cannot run {}: {}",
        command[0].display(),
        Command::new(&command[0]).args(&command[1..]).exec()
    ))
}

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("without: {error}");
    ExitCode::from(126)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::{fd::AsRawFd, unix::net::UnixStream};

    /// The errno of a getsockopt and a setsockopt of an option of SOL_SOCKET, and of pidfd_open of
    /// this process.
    fn errors(option: c_int) -> [Option<i32>; 3] {
        let socket = UnixStream::pair().expect("a pair").0;
        let (fd, mut value) = (socket.as_raw_fd(), 0_i32);
        let mut length = size_of::<i32>() as libc::socklen_t;
        let error =
            |result: libc::c_long| (result < 0).then(|| io::Error::last_os_error().raw_os_error()).flatten();
        // SAFETY: `value` has `length` bytes.
        let got = error(unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length).into()
        });
        // SAFETY: as above.
        let set = error(unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), length).into()
        });
        // SAFETY: the call takes integers only.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
        [got, set, error(opened)]
    }

    /// Runs in a thread of its own, since a filter applies to its thread.
    fn errors_without(feature: &'static str, option: c_int) -> [Option<i32>; 3] {
        let run = move || {
            deny(&denied_by(feature).expect("it is known")).expect("the filter is installed");
            errors(option)
        };
        std::thread::spawn(run).join().expect("no panic")
    }

    #[test]
    fn denied_feature_fails_as_on_older_kernel() {
        let (missing, there) = (Some(libc::ENOPROTOOPT), None);
        assert_eq!(errors_without("SO_PASSRIGHTS", SO_PASSRIGHTS as c_int)[..2], [missing, missing]);
        let [got, _, opened] = errors_without("pidfd", SO_PEERPIDFD as c_int);
        assert_eq!([got, opened], [missing, Some(libc::ENOSYS)]);
        let refused = Some(libc::EPERM);
        let [got, _, opened] = errors_without("pidfd:EPERM", SO_PEERPIDFD as c_int);
        assert_eq!([got, opened], [refused, refused]);
        assert!(denied_by("no_such_call").is_none());
        for feature in ["SO_PASSRIGHTS", "pidfd"] {
            assert_eq!(errors_without(feature, libc::SO_SNDBUF)[..2], [there, there], "{feature}");
        }
    }
}
