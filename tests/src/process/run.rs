// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test run: a runtime folder of its own, and the processes that share it.

use super::{
    Process,
    programs::{self, PLUGIN},
    wait_until,
};
use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A runtime folder, in which streams of other tests are not visible. Its processes use it as
/// working directory as well.
#[derive(Debug)]
pub struct TestRun {
    folder: tempfile::TempDir,
}

impl Default for TestRun {
    fn default() -> Self {
        Self::new()
    }
}

impl TestRun {
    /// Creates the folder.
    pub fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("fs").tempdir().expect("a folder") }
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `gst-launch-1.0` with a pipeline. It prints when it stops.
    pub fn gst(&self, pipeline: &str) -> Process {
        let mut command = Command::new("gst-launch-1.0");
        command.args(pipeline.split_whitespace());
        self.start_with_plugin(command, pipeline)
    }

    /// Starts `gst-launch-1.0` by a command that becomes it.
    pub fn gst_by(&self, command: &str, pipeline: &str) -> Process {
        self.command(&format!("{command} gst-launch-1.0 {pipeline}"))
    }

    /// Starts `gst-launch-1.0 -v` with a pipeline: property notifications are printed.
    pub fn gst_verbose(&self, pipeline: &str) -> Process {
        let mut command = Command::new("gst-launch-1.0");
        command.arg("-v").args(pipeline.split_whitespace());
        self.start_with_plugin(command, pipeline)
    }

    /// Starts the test peer.
    pub fn peer(&self, arguments: &str) -> Process {
        let mut command = Command::new(programs::program("peer"));
        command.args(arguments.split_whitespace());
        self.start(command, &format!("peer {arguments}"))
    }

    /// Starts the test peer by a command that becomes it, such as `prlimit --nofile=40`.
    pub fn peer_by(&self, command: &str, arguments: &str) -> Process {
        let copy = self.path("peer");
        let peer = if copy.exists() { copy } else { programs::program("peer") };
        self.command(&format!("{command} {} {arguments}", peer.display()))
    }

    /// Starts the test peer without features of the kernel (see `without`), such as
    /// `pidfd,futex_waitv:EPERM`.
    pub fn peer_without(&self, features: &str, arguments: &str) -> Process {
        self.peer_by(&format!("{} {features} --", programs::program("without").display()), arguments)
    }

    /// Starts the hostile peer.
    pub fn hostile(&self, arguments: &str) -> Process {
        self.command(&format!("{} {arguments}", programs::program("hostile").display()))
    }

    /// Starts any command.
    pub fn command(&self, line: &str) -> Process {
        self.command_of(line.split_whitespace())
    }

    /// Starts a command of these words, which may contain any character.
    pub fn command_of<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Process {
        let words: Vec<_> = words.into_iter().collect();
        let (program, arguments) = words.split_first().expect("a command has a name");
        let mut command = Command::new(program);
        command.args(arguments);
        let line: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        self.start_with_plugin(command, &line.join(" "))
    }

    /// Gives other users access to the folder, and to copies of the peers and of the plugin in it.
    pub fn open_to_others(&self) {
        let plugins = self.path("plugins");
        fs::create_dir(&plugins).expect("a folder for the plugin");
        let copies = [
            (programs::program("peer"), self.path("peer")),
            (programs::program("hostile"), self.path("hostile")),
            (programs::plugin_folder().join(PLUGIN), plugins.join(PLUGIN)),
        ];
        for (from, to) in &copies {
            fs::copy(from, to).expect("there is room for a copy");
        }
        for path in
            [self.folder.path(), &plugins].into_iter().chain(copies.iter().map(|(_, to)| to.as_path()))
        {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the test owns the file");
        }
    }

    /// Returns the bytes of a file in the folder.
    pub fn read(&self, name: impl AsRef<OsStr>) -> Vec<u8> {
        fs::read(self.folder.path().join(name.as_ref())).expect("the file can be read")
    }

    /// Waits until a file in the folder is not empty.
    pub fn wait_for_bytes(&self, name: &str) {
        let path = self.path(name);
        wait_until(&format!("bytes in {name}"), || fs::metadata(&path).is_ok_and(|file| file.len() > 0));
    }

    /// Returns the path at which elements and peers find a stream of this name.
    pub fn socket(&self, stream: &str) -> String {
        // As with `stream=`, with the folder for XDG_RUNTIME_DIR.
        let folder = self.path("frameshare");
        if let Err(error) = fs::create_dir(&folder) {
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}", folder.display());
        }
        folder.join(format!("{stream}.sock")).display().to_string()
    }

    fn start_with_plugin(&self, mut command: Command, what: &str) -> Process {
        if std::env::var_os("GST_REGISTRY").is_none() {
            command.env("GST_REGISTRY", programs::scratch().join("registry.bin"));
        }
        command.env("GST_PLUGIN_PATH", programs::plugin_folder());
        self.start(command, what)
    }

    fn start(&self, mut command: Command, what: &str) -> Process {
        let folder: &Path = self.folder.path();
        command
            .env("XDG_RUNTIME_DIR", folder)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process::start(command, what)
    }
}
