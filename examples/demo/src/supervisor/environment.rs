// SPDX-License-Identifier: MIT OR Apache-2.0

//! Environment of the child processes: plugin path and socket folder.

use anyhow::{Context, Result};
use frameshare::StreamName;
use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

const PLUGIN: &str = "libgstframeshare.so";
const RUNTIME: &str = "XDG_RUNTIME_DIR";
const PLUGIN_PATH: &str = "GST_PLUGIN_PATH";

/// Environment of all jobs.
pub struct Environment {
    /// Folder of the sockets, if the user has no runtime folder.
    runtime: Option<tempfile::TempDir>,
    /// Folder of the plugin that was built with this program. Without it, the installed plugin is
    /// used.
    plugins: Option<PathBuf>,
}

impl Environment {
    /// Creates the output folder and the missing parts of the environment.
    pub fn new(output: &Path) -> Result<Self> {
        fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
        let runtime = env::var_os(RUNTIME).map(PathBuf::from);
        let runtime = match runtime.filter(|path| path.is_absolute() && path.is_dir()) {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("frameshare-demo-").tempdir()?),
        };
        let plugins = built_plugin().map(|plugin| alone(&plugin, &output.join("plugins"))).transpose()?;
        Ok(Self { runtime, plugins })
    }

    /// Sets the environment of a command.
    pub fn set(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// Returns the command lines of another reader of the stream, in any terminal.
    pub fn joining(&self, stream: &StreamName) -> Vec<String> {
        let runtime = env::var_os(RUNTIME).filter(|_| self.runtime.is_none());
        let variables = runtime.map(|folder| (RUNTIME, folder)).into_iter().chain(self.variables());
        let line =
            |(name, value): (_, OsString)| format!("export {name}={}", quoted(&value.to_string_lossy()));
        let reader = format!("gst-launch-1.0 framesharesrc stream={stream} ! videoconvert ! autovideosink");
        variables.map(line).chain([reader]).collect()
    }

    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let runtime = self.runtime.as_ref().map(|folder| (RUNTIME, folder.path().into()));
        let plugins = self.plugins.as_ref().map(|folder| {
            let mut path = folder.clone().into_os_string();
            if let Some(more) = env::var_os(PLUGIN_PATH) {
                path.push(":");
                path.push(more);
            }
            (PLUGIN_PATH, path)
        });
        runtime.into_iter().chain(plugins).collect()
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = word.chars().all(|c| c.is_alphanumeric() || "/._-:+".contains(c));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Returns the plugin that was built last beside this program.
fn built_plugin() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let beside = program.parent()?;
    let places = [beside.join(PLUGIN), beside.join("deps").join(PLUGIN)];
    let built =
        places.into_iter().filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)));
    built.max().map(|(_, path)| path)
}

/// Returns a folder that contains only the plugin: GStreamer scans every file in a folder, and the
/// build folder contains many other files.
fn alone(plugin: &Path, folder: &Path) -> Result<PathBuf> {
    let attempt = || {
        fs::create_dir_all(folder)?;
        // Atomic, so that a concurrent demo always finds the plugin.
        let fresh = folder.join(format!("{PLUGIN}.{}", std::process::id()));
        symlink(plugin, &fresh)?;
        fs::rename(fresh, folder.join(PLUGIN))?;
        folder.canonicalize()
    };
    attempt().with_context(|| format!("cannot link the plugin into {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_special_characters_are_quoted() {
        assert_eq!(quoted("/run/user/1000"), "/run/user/1000");
        assert_eq!(quoted("/home/me/my videos"), "'/home/me/my videos'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
