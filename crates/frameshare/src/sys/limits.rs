// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits of this process and of the machine. None is assumed where a sandbox forbids the question.
//!
//! # Safety
//!
//! Two calls fill structures of this stack frame. rustix's panic if a seccomp filter denies them.
#![allow(unsafe_code)]

use std::{io, mem::MaybeUninit, ptr};

/// Maximum number of open files of this process (RLIMIT_NOFILE, soft); none without a limit.
pub fn file_limit() -> Option<u64> {
    limit(libc::RLIMIT_NOFILE as libc::c_long)
}

/// Maximum size of a file of this process in bytes (RLIMIT_FSIZE, soft); none without a limit.
pub(super) fn file_size_limit() -> Option<u64> {
    limit(libc::RLIMIT_FSIZE as libc::c_long)
}

/// Number of files that this process may still open; none if the system does not say.
pub fn files_left() -> Option<u64> {
    let limit = file_limit()?;
    match std::fs::read_dir("/proc/self/fd") {
        Ok(open) => Some(limit.saturating_sub(open.count() as u64)),
        Err(error) => is_lack_of_files(&error).then_some(0),
    }
}

/// Returns whether an error means that no further file can be opened.
pub(super) fn is_lack_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Memory of the machine in bytes; none if the kernel does not say.
pub(super) fn total_memory() -> Option<u64> {
    let mut found = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: `found` has room for the structure, and outlives the call.
    let result = unsafe { libc::sysinfo(found.as_mut_ptr()) };
    // SAFETY: all zero is a valid value of its integers, whether or not the call wrote them.
    let found = unsafe { found.assume_init() };
    (result == 0).then(|| found.totalram.saturating_mul(found.mem_unit.into()))
}

/// By number: the types of getrlimit(3) differ between C libraries.
fn limit(resource: libc::c_long) -> Option<u64> {
    // The soft and the hard limit, as the kernel's `struct rlimit64`.
    let mut found = [0_u64; 2];
    // SAFETY: the call fills `found`, and keeps no pointer to it.
    let result =
        unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, ptr::null::<u64>(), found.as_mut_ptr()) };
    (result == 0 && found[0] != u64::MAX).then_some(found[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, getrlimit};

    #[test]
    fn limits_are_those_of_the_kernel() {
        assert_eq!(file_limit(), getrlimit(Resource::Nofile).current);
        assert_eq!(file_size_limit(), getrlimit(Resource::Fsize).current);
        let memory = rustix::system::sysinfo();
        assert_eq!(total_memory(), Some(memory.totalram * u64::from(memory.mem_unit)));
        assert!(files_left() < file_limit());
    }
}
