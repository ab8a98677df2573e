// SPDX-License-Identifier: MIT OR Apache-2.0

//! Paths of the test programs and of the plugin.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// File name of the plugin.
pub(super) const PLUGIN: &str = "libgstframeshare.so";

/// Folder of the running program. Cargo places test binaries in `deps`, below the folder of the
/// other programs.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("a program has a path");
    own.parent().expect("a program lies in a folder").to_owned()
});

/// The folder contains only the plugin, so that GStreamer scans nothing else.
static PLUGINS: LazyLock<PathBuf> = LazyLock::new(|| {
    let newest = built(PLUGIN).max_by_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok());
    let newest = newest.unwrap_or_else(|| {
        panic!("no {PLUGIN} near {}: cargo build -p gst-plugin-frameshare", FOLDER.display())
    });
    let folder = scratch().join("plugins");
    fs::create_dir_all(&folder).expect("a folder for the plugin");
    let link = folder.join(format!("{PLUGIN}.{}", std::process::id()));
    symlink(newest, &link).expect("a link to the plugin");
    fs::rename(link, folder.join(PLUGIN)).expect("the link has its name");
    folder
});

/// Returns the existing files of this name among the build results.
fn built(name: &str) -> impl Iterator<Item = PathBuf> {
    let above = FOLDER.parent().unwrap_or(&FOLDER);
    [FOLDER.join(name), above.join(name)].into_iter().filter(|path| path.exists())
}

/// Returns the path of a program of this package.
pub(super) fn program(name: &str) -> PathBuf {
    let program = built(name).next();
    program.unwrap_or_else(|| panic!("no {name} near {}: cargo build -p frameshare-tests", FOLDER.display()))
}

/// Returns the folder that contains the plugin.
pub(super) fn plugin_folder() -> &'static Path {
    &PLUGINS
}

/// Returns a folder for files that several test runs share.
pub(super) fn scratch() -> PathBuf {
    let folder = FOLDER.join("testkit");
    fs::create_dir_all(&folder).expect("a folder beside the program");
    folder
}
