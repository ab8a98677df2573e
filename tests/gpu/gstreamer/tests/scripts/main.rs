// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the scripts that run GStreamer's tools on a GPU, with a stand-in for the tools: which
//! failures the scripts detect.

mod commands;
mod decode;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the function `name` of the script of that name in tests/gpu, with `stand_in` in place of
/// gst-launch-1.0, which gets `behavior` in its environment.
fn play(name: &str, stand_in: &str, behavior: &str) -> Output {
    let runtime = tempfile::tempdir().unwrap();
    let at = |name: &str| runtime.path().join(name);
    for folder in ["bin", "tmp", "work"] {
        std::fs::create_dir(at(folder)).unwrap();
    }
    for clip in ["hd.h264", "uhd.h264", "switch.h264", "bigbuckbunny.mp4"] {
        std::fs::write(at("work").join(clip), clip).unwrap();
    }
    let program = at("bin/gst-launch-1.0");
    std::fs::write(&program, stand_in).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    // The runtime is this machine, except for its folder /work.
    let outside = r#"set -uo pipefail; runtime() { :; }; in_gst() { "${@/\/work/$RUNTIME/work}"; }"#;
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{outside}; . tests/gpu/{name}.sh; {name}")]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    command.env("PATH", path).env("RUNTIME", runtime.path()).env("BEHAVIOR", behavior).output().unwrap()
}

/// Returns the output lines of a script that begin with `begin`.
fn lines(output: &Output, begin: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
}
