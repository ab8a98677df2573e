// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests named in documents exist.
//!
//! The last column of the table of rules in ARCHITECTURE.md consists of files and folders, suites,
//! fuzz targets, and targets of the Makefile. Every document may name a test by its function
//! (`function_of_test`, `module::function`, `module::begin_of_functions_*`) and a GPU case by its
//! suite and name (`engine-suite/case`, `gst-suite/begin-of-cases-*`).
//!
//! A test, CI or the weekly workflow runs each target of the Makefile. The actions of workflows are
//! pinned.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// A name with this many underscores is that of a test; other code has shorter ones.
const UNDERSCORES: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| match path.is_dir() {
        true if path.file_name() == Some(OsStr::new("target")) => Vec::new(),
        true => files(&path, extension),
        false if path.extension() == Some(OsStr::new(extension)) => vec![path],
        false => Vec::new(),
    };
    paths.flat_map(below).collect()
}

/// Returns the Rust code of the workspace below a folder.
fn code(folder: &str) -> String {
    files(&root().join(folder), "rs").iter().map(|path| read(path)).collect()
}

/// Returns the texts between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the cells of the last column of the table of rules.
fn tests_of_rules(document: &str) -> impl Iterator<Item = &str> {
    let rules = document.split("\n## ").find(|section| section.starts_with("Rules"));
    let rows = rules.unwrap_or_default().lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit(" | ").next())
}

/// Returns whether a name consists of lowercase letters, digits, underscores and these characters.
fn is_made_of(name: &str, others: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || others.contains(c))
}

/// The workspace's tests.
struct Workspace {
    /// All Rust code.
    code: String,
    /// The code of the GPU suites.
    gpu: String,
    makefile: String,
}

impl Workspace {
    fn new() -> Self {
        let code = ["crates", "plugins", "examples", "tests"].map(code).concat();
        Self { code, gpu: self::code("tests/gpu"), makefile: read(&root().join("Makefile")) }
    }

    /// Returns the names in a document that nothing in the workspace has.
    fn missing(&self, document: &str) -> Vec<String> {
        let is_missing = |name: &&str| self.has_test(name) == Some(false);
        let mut missing: Vec<_> = names(document).filter(is_missing).map(str::to_owned).collect();
        for cell in tests_of_rules(document) {
            // A file without a folder lies beside the file or in the folder before it.
            let mut folder = root();
            for name in names(cell) {
                let place = [root(), root().join("crates/frameshare/src"), folder.clone()];
                let found = place.map(|place| place.join(name)).into_iter().find(|path| path.exists());
                match &found {
                    Some(path) if path.is_dir() => folder.clone_from(path),
                    Some(path) => folder = path.parent().expect("a path has a folder").to_owned(),
                    None if !self.has(name) => missing.push(name.to_owned()),
                    None => {}
                }
            }
            if names(cell).next().is_none() {
                missing.push(format!("a test in {cell:?}"));
            }
        }
        missing
    }

    /// Returns whether there is a suite, a fuzz target, a target of the Makefile or a test of this
    /// name.
    fn has(&self, name: &str) -> bool {
        self.gpu.contains(&format!("\"{name}\""))
            || root().join(format!("tests/fuzz/fuzz_targets/{name}.rs")).exists()
            || name
                .strip_prefix("make ")
                .is_some_and(|target| self.makefile.contains(&format!("\n{target}:")))
            || self.has_test(name) == Some(true)
    }

    /// Returns whether the test of this name exists; none if the name is not that of a test.
    fn has_test(&self, name: &str) -> Option<bool> {
        // Ends at the place of the asterisk, if there is one.
        let ends = |begin: &str, end: &str| match begin.strip_suffix('*') {
            Some(begin) => begin.to_owned(),
            None => format!("{begin}{end}"),
        };
        if let Some((suite, case)) = name.split_once('/') {
            let is_case = ["engine-", "gst-"].iter().any(|family| suite.starts_with(family));
            return is_case.then(|| self.gpu.contains(&format!("\"{}", ends(case, "\""))));
        }
        let (module, function) = name.rsplit_once("::").unwrap_or(("", name));
        // Metrics and functions in C begin with their project's name, protocols of Python with two
        // underscores; tests do not.
        let is_foreign = ["frameshare_", "gst_", "__"].iter().any(|project| name.starts_with(project));
        let is_test = function.matches('_').count() >= UNDERSCORES && !is_foreign
            || !module.is_empty() && function.ends_with('*');
        let is_function = is_made_of(module, ":") && is_made_of(function, "*");
        let code = match (module, function) {
            (module, "*") => format!("mod {module};"),
            _ => format!("fn {}", ends(function, "(")),
        };
        (is_test && is_function).then(|| self.code.contains(&code))
    }
}

#[test]
fn tests_named_in_documents_exist() {
    let workspace = Workspace::new();
    let architecture = read(&root().join("ARCHITECTURE.md"));
    assert!(tests_of_rules(&architecture).count() > 20, "the table of rules is not found");
    let top =
        fs::read_dir(root()).expect("the workspace can be read").map(|entry| entry.expect("an entry").path());
    let documents = top.filter(|path| path.extension() == Some(OsStr::new("md")));
    for path in documents.chain(files(&root().join("docs"), "md")) {
        assert_eq!(workspace.missing(&read(&path)), Vec::<String>::new(), "{}", path.display());
    }
}

/// Returns the documented targets of the Makefile that no command runs.
fn targets_not_run<'a>(makefile: &'a str, commands: &str) -> Vec<&'a str> {
    // Besides command lines, the list of the weekly workflow.
    let runs = |line: &&str| line.contains("make ") || line.trim_start().starts_with("check: [");
    let lines = commands.lines().filter(|line| !line.trim_start().starts_with('#')).filter(runs);
    let run: Vec<_> = lines.flat_map(|line| line.split(|c: char| !is_made_of(&c.to_string(), "-"))).collect();
    let targets = makefile.lines().filter_map(|line| Some(line.split_once(" ## ")?.0.split_once(':')?.0));
    targets.filter(|target| is_made_of(target, "-") && !run.contains(target)).collect()
}

#[test]
fn every_make_target_is_run() {
    let scripts = [files(&root().join("tests"), "sh"), files(&root().join(".github/workflows"), "yml")];
    let commands: String = scripts.concat().iter().map(|path| read(path)).collect();
    let commands = commands + &read(&root().join(".ci/run"));
    let makefile = read(&root().join("Makefile"));
    assert_eq!(targets_not_run(&makefile, &commands), Vec::<&str>::new());
    assert_eq!(targets_not_run("none: ## is run by nothing\n", &commands), ["none"]);
}

/// Returns the actions of a workflow that are not pinned: a tag or a branch can be moved to other
/// code, and the version is for people and Dependabot.
fn unpinned(workflow: &str) -> Vec<&str> {
    let uses =
        workflow.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "));
    let is_pinned = |action: &&str| {
        let parts = action.split_once('@').and_then(|(_, version)| version.split_once(" # v"));
        parts.is_some_and(|(commit, version)| {
            let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_commit && version.starts_with(|c: char| c.is_ascii_digit())
        })
    };
    uses.filter(|action| !is_pinned(action)).collect()
}

#[test]
fn actions_are_pinned_by_commit() {
    let workflows = files(&root().join(".github/workflows"), "yml");
    let text: String = workflows.iter().map(|path| read(path)).collect();
    assert!(text.matches("uses: ").count() > 5, "actions were not found");
    assert_eq!(unpinned(&text), Vec::<&str>::new());
    let commit = "0123456789abcdef0123456789abcdef01234567";
    for action in ["a/b@v4", "a/b@release/v1", "a/b@main # v1", "a/b", &format!("a/b@{commit}")] {
        assert_eq!(unpinned(&format!("    steps:\n      - uses: {action}\n")), [action]);
    }
    assert_eq!(unpinned(&format!("      - uses: a/b@{commit} # v1.2.3\n")), [""; 0]);
}

/// Negative control: each kind of name is found missing.
#[test]
fn missing_tests_are_reported() {
    let document =
        "`faults::a_test_without_any_code`, `nowhere::*`, `faults::none_*`, `faults::*` and `publish`;
`engine-crashes/exporter-*`, `engine-crashes/absent-*`, `gst-faults/absent`, `tests/gpu`
## Rules

| rule | test |
| --- | --- |
| x | `tests/tests/hostile`, `exporters.rs`, `none.rs` |
| y | `tests/gpu` `gst-sink`, `gst-none`; fuzz targets `metas`, `absent`; `make loom`, `make none` |
| z | none |
## Next
| a | `none-either` |
";
    let expected = [
        "faults::a_test_without_any_code",
        "nowhere::*",
        "faults::none_*",
        "engine-crashes/absent-*",
        "gst-faults/absent",
        "none.rs",
        "gst-none",
        "absent",
        "make none",
        "a test in \"none\"",
    ];
    assert_eq!(Workspace::new().missing(document), expected);
}
