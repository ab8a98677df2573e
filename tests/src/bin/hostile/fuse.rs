// SPDX-License-Identifier: MIT OR Apache-2.0

//! A FUSE file whose server answers neither GETATTR nor FLUSH: fstat(2) and close(2) of it block,
//! and cannot be killed.
//!
//! The server is a process of its own that has no descriptor of the file. Its exit closes
//! /dev/fuse, which aborts the connection and unblocks every process. It must run in a mount
//! namespace of its own, where the mount vanishes with it.

use crate::Result;
use frameshare_tests::raw::foreign::Trap;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    mount::{MountFlags, mount},
};
use serde_json::json;
use std::{ffi::CString, fs, os::fd::AsRawFd, os::unix::fs::symlink, path::Path};

/// Name of the link to the file, beside the socket that is attacked.
const LINK: &str = "fuse-file";
/// Longest time between two requests after which the server exits, in seconds: a test that was
/// killed leaves nothing.
const DEADLINE: i64 = 120;

/// Request codes (linux/fuse.h).
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Bytes of `fuse_in_header` and `fuse_out_header`.
const HEADER: usize = 40;
const ENOSYS: i32 = 38;

/// Opens the file of the server that serves at the folder of a socket.
pub fn file(socket: &Path) -> Result<Trap> {
    let link = socket.with_file_name(LINK);
    Ok(Trap::new(rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
}

/// Mounts at a new folder in `folder`, and serves until the process is killed.
pub fn serve(folder: &Path) -> Result<()> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let target = folder.join("fuse");
    fs::create_dir(&target)?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options)?;
    mount("fuse", &target, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
    // Others open it by the root of this process, since they do not have the mount.
    let inside = Path::new("/proc").join(std::process::id().to_string()).join("root");
    symlink(inside.join(target.strip_prefix("/")?).join("file"), folder.join(LINK))?;
    println!("{}", json!({ "event": "serving" }));

    let mut request = vec![0; 1 << 17];
    loop {
        let mut fds = [PollFd::new(&device, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec { tv_sec: DEADLINE, tv_nsec: 0 }))? == 0 {
            return Err(format!("no request within {DEADLINE} s").into());
        }
        let length = rustix::io::read(&device, &mut *request)?;
        let Some(header) = request[..length].first_chunk::<HEADER>() else { continue };
        let code = u32::from_ne_bytes(header[4..8].try_into()?);
        let (error, body) = match code {
            GETATTR | FLUSH => {
                let thread = u32::from_ne_bytes(header[32..36].try_into()?);
                println!("{}", json!({ "event": "blocked", "code": code, "thread": thread }));
                continue;
            }
            INIT => (0, initialized()),
            LOOKUP => (0, entry()),
            OPEN => (0, vec![0; 16]),
            _ => (-ENOSYS, Vec::new()),
        };
        let mut answer = u32::try_from(16 + body.len())?.to_ne_bytes().to_vec();
        answer.extend(i32::to_ne_bytes(error));
        answer.extend(&header[8..16]);
        answer.extend(body);
        // ENOENT: the request was interrupted, or wants no answer.
        let _ = rustix::io::write(&device, &answer);
    }
}

/// `fuse_init_out` of protocol 7.31.
fn initialized() -> Vec<u8> {
    let mut body = Vec::new();
    // Version, no read-ahead, no flags, defaults for requests in the background, 4 KiB a write.
    for word in [7_u32, 31, 0, 0, 0, 4096] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(64, 0);
    body
}

/// `fuse_entry_out` of a regular file whose name stays valid for an hour, and whose attributes are
/// never valid.
fn entry() -> Vec<u8> {
    let (node, generation, name_valid, attributes_valid) = (2_u64, 0, 3600, 0);
    let mut body: Vec<u8> =
        [node, generation, name_valid, attributes_valid, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
    // `fuse_attr`: inode number, size, blocks and three times; then nanoseconds, mode, links, owner
    // and sizes.
    body.extend([node, 8192, 16, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes));
    body.extend([0, 0, 0, 0o100_666, 1, 0, 0, 0, 4096, 0].into_iter().flat_map(u32::to_ne_bytes));
    body
}
