// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs in C and C++ with the library that cargo has built: the contract of the header, the
//! examples in processes of their own, kills, valgrind, and the simulated CUDA driver.
//! `tests/c-library.sh` builds the examples from an installation.

use frameshare_tests::{
    process::{TestRun, wait_until},
    skip::skip,
};
use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};
use tempfile::TempDir;

/// A folder with the library and programs, which is their runtime folder, too.
struct Programs {
    folder: TempDir,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Programs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let test = std::env::current_exe().expect("a test has a path");
        let library = test.with_file_name("libframeshare_c.so");
        for name in ["libframeshare.so.0", "libframeshare.so"] {
            symlink(&library, folder.path().join(name)).expect("the folder is empty");
        }
        Self { folder }
    }

    /// Builds programs, without a warning.
    fn build(&self, sources: &[&str]) -> &Self {
        for source in sources {
            let (compiler, standard) = match source.ends_with(".cpp") {
                true => ("c++", "-std=c++17"),
                false => ("cc", "-std=c99"),
            };
            let output = Command::new(compiler)
                .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
                .arg(root().join("include"))
                .arg(root().join(source))
                .args(["-lframeshare", "-lpthread", "-ldl", "-L"])
                .arg(self.folder.path())
                .arg("-o")
                .arg(self.program(source))
                .output()
                .unwrap_or_else(|error| panic!("{compiler}: {error}"));
            assert!(output.status.success(), "{source}: {}", text(&output.stderr));
        }
        self
    }

    fn program(&self, source: &str) -> PathBuf {
        let name = Path::new(source).file_name().expect("a source has a name");
        self.folder.path().join(name).with_extension("program")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    fn start(&self, source: &str, arguments: &[&str]) -> Child {
        let mut command = self.command(self.program(source));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap_or_else(|error| panic!("{source}: {error}"))
    }

    fn run(&self, source: &str, arguments: &[&str]) -> Output {
        self.start(source, arguments).wait_with_output().expect("a program can be waited for")
    }

    /// Installs the simulated driver where the programs find it.
    fn simulate_gpu(&self) {
        let install = root().join("../../tests/simcuda/install.sh");
        let status = Command::new(install).arg(self.folder.path()).status().expect("the script runs");
        assert!(status.success(), "the simulated driver cannot be built");
    }
}

fn must_succeed(output: &Output) -> String {
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{errors}", output.status);
    out
}

/// Lines with the number and the checksum of a frame.
fn frames(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("frame ")).collect()
}

const EXPORTER: &str = "../../examples/c/exporter.c";
const READER: &str = "../../examples/c/reader.c";
const CUDA_EXPORTER: &str = "../../examples/c/cuda-exporter.cpp";
const CUDA_CONSUMER: &str = "../../examples/c/cuda-consumer.cpp";

fn has_cplusplus(test: &str) -> bool {
    let found = Command::new("c++").arg("--version").output().is_ok();
    if !found {
        skip(test, "no compiler for C++");
    }
    found
}

#[test]
fn contract_of_header_is_kept_in_c() {
    let programs = Programs::new();
    programs.build(&["tests/c/contract.c"]);
    assert_eq!(must_succeed(&programs.run("tests/c/contract.c", &[])), "contract kept\n");
}

#[test]
fn contract_of_header_is_kept_in_cplusplus() {
    if !has_cplusplus("contract_of_header_is_kept_in_cplusplus") {
        return;
    }
    let programs = Programs::new();
    programs.build(&["tests/c/contract.cpp"]);
    assert_eq!(must_succeed(&programs.run("tests/c/contract.cpp", &["cam0"])), "contract kept\n");
}

/// No invalid access, no uninitialized value, no leak.
#[test]
fn contract_and_examples_are_clean_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("contract_and_examples_are_clean_under_valgrind", "valgrind is missing");
    }
    let programs = Programs::new();
    programs.build(&["tests/c/contract.c", EXPORTER, READER]);
    let valgrind = |source: &str, arguments: &[&str]| {
        let mut command = programs.command("valgrind");
        command
            .args(["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"])
            .args(["--show-leak-kinds=definite,indirect", "--error-exitcode=99", "--fair-sched=try"])
            .arg(concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/c/valgrind.supp"))
            .arg(programs.program(source))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("valgrind runs")
    };
    let output = valgrind("tests/c/contract.c", &[]).wait_with_output().expect("it ends");
    assert_eq!(must_succeed(&output), "contract kept\n");

    // Negative control: a frame that is not released is found.
    let output = valgrind("tests/c/contract.c", &["leak"]).wait_with_output().expect("it ends");
    let errors = text(&output.stderr);
    assert!(output.status.code() == Some(99) && errors.contains("definitely lost"), "{errors}");

    let exporter = valgrind(EXPORTER, &["cam0", "20", "0"]);
    wait_until("the stream", || programs.folder.path().join("frameshare/cam0.sock").exists());
    let reader = valgrind(READER, &["cam0", "lossless", "sums"]);
    let outputs = [exporter, reader].map(|child| must_succeed(&child.wait_with_output().expect("it ends")));
    assert_eq!(frames(&outputs[0]), frames(&outputs[1]));
    assert_eq!(frames(&outputs[0]).len(), 20);
}

#[test]
fn readers_get_every_frame_of_another_process() {
    let programs = Programs::new();
    programs.build(&[EXPORTER, READER]);
    // For two seconds, in which both readers come.
    let exporter = programs.start(EXPORTER, &["cam0", "200", "100"]);
    let readers = [(); 2].map(|()| programs.start(READER, &["cam0", "lossless", "sums"]));
    let [one, two] = readers.map(|reader| must_succeed(&reader.wait_with_output().expect("it ends")));
    let exporter = must_succeed(&exporter.wait_with_output().expect("it ends"));
    let published = frames(&exporter);
    assert_eq!(published.len(), 200);
    // The exporter waits for one of them only: the other one may join later.
    assert!([&one, &two].iter().any(|reader| frames(reader) == published), "{one}{two}");
    for reader in [&one, &two] {
        assert!(published.ends_with(&frames(reader)) && reader.contains(" frames, 0 lost"), "{reader}");
        assert!(frames(reader).is_empty() || reader.contains("NV12 640x360, 2 planes"), "{reader}");
    }
}

#[test]
fn killed_exporter_is_reported_as_lost() {
    let programs = Programs::new();
    programs.build(&[EXPORTER, READER]);
    let mut exporter = programs.start(EXPORTER, &["cam0", "1000000", "100"]);
    let mut reader = programs.start(READER, &["cam0", "lossless", "sums"]);
    let mut lines = std::io::BufReader::new(reader.stdout.take().expect("it is piped"));
    let mut read = String::new();
    while frames(&read).len() < 10 {
        let bytes = std::io::BufRead::read_line(&mut lines, &mut read).expect("the reader prints");
        assert!(bytes > 0, "the reader ended: {read}");
    }
    exporter.kill().expect("it runs");
    let published = exporter.wait_with_output().expect("it ends");
    std::io::Read::read_to_string(&mut lines, &mut read).expect("the reader prints");
    let reader = reader.wait_with_output().expect("it ends");
    let errors = text(&reader.stderr);
    assert_eq!(reader.status.code(), Some(3), "{errors}");
    assert!(errors.contains("exporter lost: connection to the exporter lost"), "{errors}");
    assert!(read.contains(" frames, 0 lost"), "{read}");
    // A frame is published before it is printed.
    let (published, read) = (text(&published.stdout), frames(&read));
    let common = frames(&published).len().min(read.len());
    assert_eq!(frames(&published)[..common], read[..common]);
}

#[test]
fn stopped_exporter_and_missing_stream_have_distinct_errors() {
    let programs = Programs::new();
    programs.build(&[EXPORTER, READER]);
    let taken = programs.start(EXPORTER, &["cam0", "1", "0"]);
    wait_until("the stream", || programs.folder.path().join("frameshare/cam0.sock").exists());
    let second = programs.run(EXPORTER, &["cam0", "1", "0"]);
    assert!(text(&second.stderr).contains("is in use, held by"), "{}", text(&second.stderr));
    let reader = must_succeed(&programs.run(READER, &["cam0", "lossless"]));
    assert!(reader.contains("1 frames, 0 lost"), "{reader}");
    must_succeed(&taken.wait_with_output().expect("it ends"));
    let missing = programs.run(READER, &["cam0"]);
    let errors = text(&missing.stderr);
    assert!(missing.status.code() == Some(1) && errors.contains("not found: no exporter at"), "{errors}");
}

#[test]
fn frame_of_overlapping_rows_is_an_error() {
    let programs = Programs::new();
    programs.build(&[READER]);
    let run = TestRun::new();
    let path = run.path("s.sock").display().to_string();
    let mut attacker = run.hostile(&format!("exporter {path} frame-of-overlapping-rows stay"));
    attacker.wait_for("open");
    let reader = programs.run(READER, &[&path, "latest", "sums"]);
    attacker.kill();
    let errors = text(&reader.stderr);
    assert_eq!(reader.status.code(), Some(1), "{errors}");
    assert!(errors.contains("rows of plane 0 overlap"), "{errors}");
}

#[test]
fn cuda_frames_and_streams_work_on_simulated_driver() {
    if !has_cplusplus("cuda_frames_and_streams_work_on_simulated_driver") {
        return;
    }
    let programs = Programs::new();
    programs.simulate_gpu();
    programs.build(&["tests/c/cuda.cpp", CUDA_EXPORTER, CUDA_CONSUMER, READER]);
    assert_eq!(must_succeed(&programs.run("tests/c/cuda.cpp", &["cam0"])), "contract kept\n");

    let exporter = programs.start(CUDA_EXPORTER, &["gpu0", "50"]);
    let consumer = must_succeed(&programs.run(CUDA_CONSUMER, &["gpu0"]));
    let exporter = must_succeed(&exporter.wait_with_output().expect("it ends"));
    assert_eq!(frames(&exporter), frames(&consumer));
    assert_eq!(frames(&exporter).len(), 50);
    // The kernel runs on a real GPU only.
    assert!(consumer.contains("no kernels in this driver"), "{consumer}");

    // A reader without a GPU gets copies.
    let exporter = programs.start(CUDA_EXPORTER, &["gpu0", "5"]);
    let reader = must_succeed(&programs.run(READER, &["gpu0", "lossless"]));
    assert!(reader.contains("5 frames, 0 lost"), "{reader}");
    must_succeed(&exporter.wait_with_output().expect("it ends"));
}
