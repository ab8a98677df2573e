// SPDX-License-Identifier: MIT OR Apache-2.0

//! PipeWire: a daemon with a runtime folder of its own, and links made by `pw-link` in place of a
//! session manager.

use anyhow::{Context, Result};
use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Environment variable with the folder of PipeWire's socket.
const FOLDER: &str = "PIPEWIRE_RUNTIME_DIR";

/// Returns whether the daemon and its tool are installed.
pub fn is_installed() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    ["pipewire", "pw-link"]
        .iter()
        .all(|name| env::split_paths(&path).any(|folder| folder.join(name).exists()))
}

/// Lets a process use the daemon of a folder.
pub fn enter<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command.env(FOLDER, folder)
}

/// Name of the node of a process.
pub fn node(process: u32) -> String {
    format!("frameshare-bench-{process}")
}

/// Properties of the node of this process.
pub fn properties() -> gst::Structure {
    gst::Structure::builder("props").field("node.name", node(std::process::id())).build()
}

/// Becomes the daemon.
pub fn serve() -> Result<()> {
    Err(Command::new("pipewire").stdout(Stdio::null()).stderr(Stdio::null()).exec())
        .context("cannot run pipewire")
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    process: Child,
    folder: PathBuf,
}

impl Daemon {
    /// Starts a daemon in a folder, and waits for its socket.
    pub fn start(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(env::current_exe()?);
        let process = enter(command.arg("pipewire"), &folder).spawn().context("cannot start pipewire")?;
        let daemon = Self { process, folder };
        until(|| daemon.folder.join("pipewire-0").exists()).context("pipewire has no socket after 5 s")?;
        Ok(daemon)
    }

    /// Process id of the daemon.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Links the nodes of two processes, after both exist.
    pub fn link(&self, from: u32, to: u32) -> Result<()> {
        let link = || {
            let mut command = Command::new("pw-link");
            command.args([node(from), node(to)]).stdout(Stdio::null()).stderr(Stdio::null());
            enter(&mut command, &self.folder).status().is_ok_and(|status| status.success())
        };
        until(link).context("pw-link links no nodes for 5 s")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn until(mut is_done: impl FnMut() -> bool) -> Option<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_done() {
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Some(())
}
