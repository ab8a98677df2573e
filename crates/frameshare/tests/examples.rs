// SPDX-License-Identifier: MIT OR Apache-2.0

//! The examples, run as their users run them: one exporter, two readers.

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Starts an example. Cargo has built it together with this test, unless this test alone was asked
/// for.
fn start(example: &str, folder: &Path) -> Child {
    let mut path = env::current_exe().unwrap();
    path.pop();
    let program = path.with_file_name("examples").join(example);
    if !program.exists() {
        let cargo = Command::new(env!("CARGO")).args(["build", "--locked", "--examples"]).status();
        assert!(cargo.unwrap().success());
    }
    let mut command = Command::new(&program);
    command.arg("example").env("XDG_RUNTIME_DIR", folder).stdout(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

#[test]
fn examples_export_and_read_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = start("engine-export", folder.path());
    let readers = [start("engine-read", folder.path()), start("engine-read", folder.path())];
    let outputs = readers.map(|reader| reader.wait_with_output().unwrap());
    assert!(exporter.wait_with_output().unwrap().status.success());
    for output in &outputs {
        assert!(output.status.success());
    }
    // The second reader can join after the first frame, never lose one after that.
    let text = |index: usize| String::from_utf8_lossy(&outputs[index].stdout).into_owned();
    assert!(text(0).contains("90 frames, 0 lost") || text(1).contains("90 frames, 0 lost"));
    for text in [text(0), text(1)] {
        assert!(text.contains("format: video/x-raw") && text.contains(" frames, 0 lost"), "{text}");
        assert!(text.contains("frame 90: mean brightness"), "{text}");
    }
}
