// SPDX-License-Identifier: MIT OR Apache-2.0

//! The version and the date of a release agree in all files, and `tools/version.py` sets both.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const FILES: [&str; 9] = [
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "crates/frameshare-c/Cargo.toml",
    "crates/frameshare-c/tests/c/contract.c",
    "meson.build",
    "packaging/debian/changelog",
    "plugins/frameshare/Cargo.toml",
    "tests/fuzz/Cargo.lock",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `tools/version.py` on a checkout; returns its output, or its error.
fn version(checkout: &Path, arguments: &[&str]) -> Result<String, String> {
    let script = root().join("tools/version.py");
    let mut command = Command::new("python3");
    let output = command.arg(script).arg("--root").arg(checkout).args(arguments).output();
    let output = output.expect("python3 runs tools/version.py");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Copies the files that have the version, and closes the changes to come with one entry.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in FILES {
        let copy = folder.path().join(name);
        fs::create_dir_all(copy.parent().expect("a folder")).expect("folders");
        fs::copy(root().join(name), copy).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let changes =
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- One change.\n\n## 0.0.1 (2026-01-01)\n\n- Old.\n";
    fs::write(folder.path().join("CHANGELOG.md"), changes).expect("a changelog");
    folder
}

fn replace(checkout: &Path, name: &str, old: &str, new: &str) {
    let text = fs::read_to_string(checkout.join(name)).expect("the file is read");
    assert!(text.contains(old), "{name} has no {old:?}");
    fs::write(checkout.join(name), text.replacen(old, new, 1)).expect("the file is written");
}

#[test]
fn versions_and_dates_of_files_agree() {
    assert_eq!(version(&root(), &["check"]), Ok(env!("CARGO_PKG_VERSION").to_owned()));
}

#[test]
fn release_sets_version_date_and_changes() {
    let folder = checkout();
    let checkout = folder.path();
    assert_eq!(version(checkout, &["set", "9.1.0", "2027-02-03"]), Ok(String::new()));
    assert_eq!(version(checkout, &["check"]).as_deref(), Ok("9.1.0"));
    assert_eq!(version(checkout, &["changes", "9.1.0"]).as_deref(), Ok("### Added\n\n- One change."));
    let read = |name| fs::read_to_string(checkout.join(name)).expect("the file is read");
    assert!(read("plugins/frameshare/Cargo.toml").contains("release_date = \"2027-02-03\""));
    let debian = read("packaging/debian/changelog");
    assert!(debian.starts_with("frameshare (9.1.0-1) "), "{debian}");
    assert!(debian.contains("Wed, 03 Feb 2027 12:00:00 +0000\n\nframeshare ("), "{debian}");
    assert!(read("CHANGELOG.md").contains("## Unreleased\n\n## 9.1.0 (2027-02-03)\n"));
    // Versions of other packages stay.
    let others = |lock: String| lock.matches("\nsource = ").count();
    assert_eq!(
        others(read("Cargo.lock")),
        others(fs::read_to_string(root().join("Cargo.lock")).expect("a lock"))
    );
    assert_eq!(read("Cargo.lock").matches("version = \"9.1.0\"").count(), {
        let lock = fs::read_to_string(root().join("Cargo.lock")).expect("a lock");
        let own = |block: &&str| !block.contains("\nsource = ") && !block.contains("version = \"0.0.0\"");
        lock.split("\n[[package]]\n").skip(1).filter(own).count()
    });
}

/// Negative controls: a version or a date that disagrees, and releases that cannot be.
#[test]
fn wrong_versions_dates_and_releases_are_refused() {
    let refused = |name: &str, old: &str, new: &str, arguments: &[&str], expected: &str| {
        let folder = checkout();
        replace(folder.path(), name, old, new);
        let error = version(folder.path(), arguments).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    };
    let own = concat!("version: '", env!("CARGO_PKG_VERSION"));
    refused("meson.build", own, "version: '0.0.7", &["check"], "meson.build has version 0.0.7: expected");
    let lock = concat!("name = \"frameshare\"\nversion = \"", env!("CARGO_PKG_VERSION"));
    let wrong = "name = \"frameshare\"\nversion = \"0.0.7";
    refused("Cargo.lock", lock, wrong, &["check"], "Cargo.lock: frameshare has version 0.0.7");
    let plugin = "plugins/frameshare/Cargo.toml";
    refused(plugin, "release_date = \"2", "release_date = \"1", &["check"], "has release_date 1");
    let set = ["set", "9.1.0", "2027-02-03"];
    refused("CHANGELOG.md", "- One change.", "", &set, "no entries under Unreleased");
    let set = |version| ["set", version, "2027-02-03"];
    refused("CHANGELOG.md", "One", "One", &set("0.0.1"), "version 0.0.1 is older");
    refused("CHANGELOG.md", "One", "One", &set("1.0"), "invalid version \"1.0\"");
    refused("CHANGELOG.md", "One", "One", &["changes", "9.1.0"], "no section 9.1.0");
}
