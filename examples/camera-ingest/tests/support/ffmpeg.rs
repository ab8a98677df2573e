// SPDX-License-Identifier: MIT OR Apache-2.0

//! A recorder that is not ours, of the same cameras.

use crate::common::wait;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(200);

/// `ffmpeg -c copy`, started again whenever the camera ends.
pub struct Ffmpeg {
    stop: Arc<AtomicBool>,
    /// Number of the process that runs.
    pid: Arc<AtomicU32>,
    thread: thread::JoinHandle<()>,
    file: PathBuf,
}

impl Ffmpeg {
    pub fn is_installed() -> bool {
        Command::new("ffmpeg")
            .arg("-version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Records the H.264 of a camera into a file.
    pub fn start(url: &str, file: &Path) -> Self {
        let (stop, pid) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (is_over, running, url) = (stop.clone(), pid.clone(), url.to_owned());
        let target = File::create(file).unwrap();
        let thread = thread::spawn(move || {
            while !is_over.load(SeqCst) {
                let mut child = spawn(&url, target.try_clone().unwrap());
                running.store(child.id(), SeqCst);
                child.wait().unwrap();
                thread::sleep(BETWEEN_ATTEMPTS);
            }
        });
        Self { stop, pid, thread, file: file.to_owned() }
    }

    /// Ends the recording. Returns the file with all units.
    pub fn end(self) -> PathBuf {
        self.stop.store(true, SeqCst);
        wait("end of ffmpeg", || {
            let pid = Pid::from_raw(self.pid.load(SeqCst).cast_signed());
            // One that has ended by itself is not there.
            let _ = pid.map(|pid| kill_process(pid, Signal::INT));
            self.thread.is_finished().then_some(())
        });
        self.thread.join().expect("no panic");
        self.file
    }
}

/// Parameter sets, which are in the description of the session, go in front of each key unit.
fn spawn(url: &str, file: File) -> Child {
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-loglevel", "error", "-rtsp_transport", "tcp", "-i", url]);
    command.args([
        "-map",
        "0:v",
        "-c",
        "copy",
        "-bsf:v",
        "dump_extra",
        "-flush_packets",
        "1",
        "-f",
        "h264",
        "pipe:1",
    ]);
    command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null()).spawn().unwrap()
}
