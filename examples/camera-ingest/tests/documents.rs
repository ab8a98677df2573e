// SPDX-License-Identifier: MIT OR Apache-2.0

//! Configurations in documents are valid, and so are the files for systemd.

mod common;

use common::Place;
use std::{fs, path::Path, process::Command};

fn documents() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn configurations_in_documents_are_valid() {
    let text = fs::read_to_string(documents().join("ingest.md")).unwrap();
    let blocks: Vec<_> =
        text.split("```toml\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    assert!(blocks.len() >= 2, "the blocks of ingest.md are not found");
    for block in blocks {
        let place = Place::new();
        place.configure(block);
        for name in ["lobby.mp4", "cam0"] {
            fs::write(place.path(name), "secret").unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_camera-ingest"));
        command.arg("check").arg(place.path("camera-ingest.toml"));
        let output = command.env("CREDENTIALS_DIRECTORY", place.path("")).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("capture-cam0") && !text.contains("secret"), "{text}");
    }
}

/// Returns the complaints of `systemd-analyze verify` about a unit.
fn complaints(name: &str, unit: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name.replace('@', "@decode-cam0"));
    fs::write(&path, unit.replace("/usr/local/bin/camera-ingest", env!("CARGO_BIN_EXE_camera-ingest")))
        .unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // It also complains about the machine's other units.
    let lines = text.lines().filter(|line| line.contains("camera-ingest")).map(str::to_owned);
    lines.chain((!output.status.success()).then(|| format!("{}: {text}", output.status))).collect()
}

#[test]
fn units_are_valid() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("SKIP documents/units_are_valid: systemd-analyze is missing (package systemd)");
        return;
    }
    for name in ["camera-ingest.service", "camera-ingest@.service"] {
        let unit = fs::read_to_string(documents().join("services").join(name)).unwrap();
        assert_eq!(complaints(name, &unit), Vec::<String>::new(), "{name}");
        for (right, wrong) in [("RuntimeDirectory=", "RuntimeFolder="), ("Restart=always", "Restart=ever")] {
            assert!(unit.contains(right));
            assert!(!complaints(name, &unit.replace(right, wrong)).is_empty(), "{name}: {wrong}");
        }
    }
}

/// The commands of the units parse: a file that is missing is the only error.
#[test]
fn commands_of_units_are_understood() {
    for name in ["camera-ingest.service", "camera-ingest@.service"] {
        let unit = fs::read_to_string(documents().join("services").join(name)).unwrap();
        let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let command = command.replace("/etc/camera-ingest/", "/absent/").replace("%i", "decode-cam0");
        let mut words = command.split(' ').skip(1);
        let output = Command::new(env!("CARGO_BIN_EXE_camera-ingest")).args(words.by_ref()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("cannot read /absent/camera-ingest.toml"), "{error}");
    }
}
