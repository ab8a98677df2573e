// SPDX-License-Identifier: MIT OR Apache-2.0

//! docs/compatibility.md agrees with the records of the long targets, which `tools/results.py`
//! writes.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `tools/results.py` on a checkout.
fn results(checkout: &Path, arguments: &[&str]) -> Output {
    let script = root().join("tools/results.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--root").arg(checkout).args(arguments).env_remove("PYTEST");
    command.output().expect("python3 runs tools/results.py")
}

/// A checkout of what the page is made from, with one target.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::create_dir_all(path.join("docs")).expect("a folder for the page");
    fs::create_dir_all(path.join("tests/gpu")).expect("a folder for results");
    symlink(root().canonicalize().expect("a path").join("Cargo.toml"), path.join("Cargo.toml"))
        .expect("a link");
    let makefile = "long: build ## test long, some 3 minutes\n\t@tools/results.py run long true\n";
    fs::write(path.join("Makefile"), makefile).expect("a Makefile");
    folder
}

fn row(checkout: &Path) -> String {
    let page = fs::read_to_string(checkout.join("docs/compatibility.md")).expect("the page is written");
    page.lines().find(|line| line.starts_with("| `make long`")).expect("the target has a row").to_owned()
}

#[test]
fn compatibility_page_agrees_with_records() {
    let output = results(&root(), &["check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn results_are_recorded_when_commands_end() {
    let folder = checkout();
    let checkout = folder.path();
    assert!(results(checkout, &["page"]).status.success());
    assert_eq!(row(checkout), "| `make long` | test long | no record |  |  |  |");
    let run = |script| results(checkout, &["run", "long", "sh", "-c", script]).status.code();

    let passes = "echo PASS a; echo PASS b; echo 'SKIP c: no GPU'; echo 'VERSION python 3.13.1'";
    assert_eq!(run(passes), Some(0));
    assert!(row(checkout).contains("| passed (2, 1 skipped) |"), "{}", row(checkout));
    assert!(row(checkout).ends_with(", python 3.13.1 |"), "{}", row(checkout));
    assert!(results(checkout, &["check"]).status.success());

    // A test of libtest that prints why it is skipped has passed for its summary.
    let libtest = "echo 'SKIP d: not root'; echo 'test result: ok. 5 passed; 0 failed; 1 ignored'";
    assert_eq!(run(libtest), Some(0));
    assert!(row(checkout).contains("| passed (4, 2 skipped) |"), "{}", row(checkout));
    assert_eq!(run(passes), Some(0));

    // Nothing is tested: the record stays.
    assert_eq!(run("echo 'SKIP all: not root'"), Some(0));
    assert!(row(checkout).contains("| passed (2, 1 skipped) |"), "{}", row(checkout));

    assert_eq!(run("echo '3 passed, 2 failed in 1.20s'; exit 4"), Some(4));
    assert!(row(checkout).contains("| **failed** (3, 2 failed) |"), "{}", row(checkout));
    // A command that dies before a test is a failure, too.
    assert_eq!(run("kill -9 $$"), Some(137));
    assert!(row(checkout).contains("| **failed** |"), "{}", row(checkout));
}

/// Negative control: a record that the page does not show is reported, and one of no target.
#[test]
fn page_that_differs_from_records_is_reported() {
    let folder = checkout();
    let checkout = folder.path();
    assert_eq!(results(checkout, &["run", "long", "true"]).status.code(), Some(0));
    assert!(results(checkout, &["check"]).status.success());
    let record = checkout.join("tests/results/long.json");
    let text = fs::read_to_string(&record).expect("a record");
    fs::write(&record, text.replace("passed\",", "failed\",")).expect("a changed record");
    let output = results(checkout, &["check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("run tools/results.py page"));

    fs::write(&record, text.replace("\"long\"", "\"gone\"")).expect("a record of no target");
    let output = results(checkout, &["page"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no target of the Makefile records gone"));
}
