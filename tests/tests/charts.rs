// SPDX-License-Identifier: MIT OR Apache-2.0

//! Charts and tables of documents are those that `tools/charts.py` makes of the raw files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn check(checkout: &Path) -> Output {
    Command::new("python3")
        .arg(checkout.join("tools/charts.py"))
        .arg("--check")
        .output()
        .expect("python3 starts")
}

fn copy(name: &str, folder: &Path) {
    let (from, to) = (root().join(name), folder.join(name));
    if from.is_file() {
        fs::create_dir_all(to.parent().expect("a folder")).expect("the folder is made");
        fs::copy(&from, &to).expect("the file is copied");
        return;
    }
    for entry in fs::read_dir(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("an entry");
        if entry.path().is_file() {
            copy(&format!("{name}/{}", entry.file_name().to_string_lossy()), folder);
        }
    }
}

#[test]
fn charts_and_tables_agree_with_raw_files() {
    let checked = check(&root());
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Negative control: a changed raw file, chart and table are reported.
#[test]
fn changed_figures_are_reported() {
    let copied = tempfile::tempdir().expect("a folder");
    let (raw, chart, table) = ("tests/bench/results", "docs/charts", "docs/performance.md");
    for name in ["tools", raw, "tests/gpu/results", chart, table, "README.md"] {
        copy(name, copied.path());
    }
    assert!(check(copied.path()).status.success());
    let changes = [
        ("docs/charts/latency.svg", "<rect", "<path"),
        (table, "lost frames", "frames lost"),
        ("tests/bench/results/iceoryx2.jsonl", "\"p50\":", "\"p50\":1"),
    ];
    for (name, from, to) in changes {
        let path = copied.path().join(name);
        let text = fs::read_to_string(&path).expect("the file is there");
        fs::write(&path, text.replace(from, to)).expect("the file is changed");
        let checked = check(copied.path());
        assert!(!checked.status.success(), "{name} is changed and not reported");
        assert!(String::from_utf8_lossy(&checked.stderr).contains("make charts"), "{checked:?}");
        fs::write(&path, text).expect("the file is restored");
    }
}
