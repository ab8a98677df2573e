// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layers of the workspace, checked over `cargo metadata`: imports run downward only.
//!
//! `cargo deny` (see deny.toml) watches the whole tree of dependencies; this test watches the
//! workspace's own manifests, dev-dependencies too, and says which rule an edge breaks.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use frameshare_tests::imports::{self, leaves, sources};
use serde_json::{Value, json};

/// One crate of the product: which of ours it may use, and which families of outside crates it may
/// not see.
struct Layer {
    name: &'static str,
    uses: &'static [&'static str],
    never: &'static [&'static str],
}

/// Crates that reach GStreamer; a name stands for its whole family (`gstreamer` for
/// `gstreamer-video` too).
const GSTREAMER: [&str; 5] = ["gstreamer", "gst", "gst-plugin", "glib", "gio"];
/// Crates that talk to the operating system.
const SYSTEM: [&str; 6] = ["rustix", "libc", "nix", "memmap2", "mio", "socket2"];

const LAYERS: [Layer; 12] = [
    // Below all: state that a forked child does not share with its parent.
    Layer { name: "frameshare-process", uses: &[], never: &GSTREAMER },
    // Messages and shared layouts: no I/O, no CUDA.
    Layer { name: "frameshare-protocol", uses: &[], never: &SYSTEM },
    // The queue of one reader, on words of any kind: the engine's, loom's, a simulator's.
    Layer { name: "frameshare-queue", uses: &["frameshare-protocol"], never: &SYSTEM },
    // The decisions of exporters and readers: no I/O, no clock, no CUDA.
    Layer { name: "frameshare-core", uses: &["frameshare-protocol", "frameshare-queue"], never: &SYSTEM },
    // The only crate that calls CUDA. Engine and plugin use it.
    Layer { name: "frameshare-cuda", uses: &["frameshare-process"], never: &[] },
    // The engine: no GStreamer, no driver call of its own. Of CUDA it re-exports the types of its
    // signatures only.
    Layer {
        name: "frameshare",
        uses: &[
            "frameshare-process",
            "frameshare-protocol",
            "frameshare-queue",
            "frameshare-core",
            "frameshare-cuda",
        ],
        never: &[],
    },
    Layer { name: "gst-cuda", uses: &[], never: &[] },
    // The plugin copies and uploads with frameshare-cuda, not through the engine.
    Layer {
        name: "gst-plugin-frameshare",
        uses: &["frameshare", "frameshare-cuda", "gst-cuda"],
        never: &["frameshare-protocol"],
    },
    // The library for C is a border of the engine's public interface: no driver call of its own.
    Layer { name: "frameshare-c", uses: &["frameshare"], never: &["tokio"] },
    // The Python package is a border of the engine, and copies frames between GPU and host.
    Layer {
        name: "frameshare-python",
        uses: &["frameshare", "frameshare-cuda", "frameshare-process"],
        never: &["numpy", "tokio"],
    },
    // The HTTP server of the command and of the example with a page: no streams.
    Layer { name: "frameshare-http", uses: &[], never: &GSTREAMER },
    // The command is an application of the engine's public interface.
    Layer { name: "frameshare-tools", uses: &["frameshare", "frameshare-http"], never: &[] },
];

/// Families of crates, and the only crates that may use them. Tests may use all of them.
const RESERVED: [(&[&str], &[&str]); 6] = [
    (&GSTREAMER, &["gst-plugin-frameshare", "gst-cuda"]),
    (&["cudarc"], &["frameshare-cuda"]),
    (&["libloading"], &["frameshare-cuda", "gst-cuda"]),
    (&["pyo3", "dlpark"], &["frameshare-python"]),
    // Asynchronous runtimes: the HTTP server, examples and tests only.
    (&["tokio", "hyper"], &["frameshare-http", "frameshare-tools"]),
    (&["axum", "async-io", "smol", "futures"], &[]),
];

/// Everything in `metadata` that breaks a rule, one sentence each.
fn violations(metadata: &Value) -> Vec<String> {
    let root = metadata["workspace_root"].as_str().expect("metadata names the workspace");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let place = |package: &Value| {
        let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
        manifest.strip_prefix(root).unwrap_or(manifest).trim_start_matches('/').to_owned()
    };
    let is_test = |package: &Value| ["tests/", "examples/"].iter().any(|top| place(package).starts_with(top));
    let find = |name: &str| packages.iter().find(|package| package["name"] == name);

    let mut found = Vec::new();
    for package in packages.iter().filter(|package| !is_test(package)) {
        let name = package["name"].as_str().expect("a package has a name");
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            found.push(format!("{name} has no place in the layers: give it one in {}", file!()));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("a package lists its dependencies") {
            let used = dependency["name"].as_str().expect("a dependency has a name");
            let dev = dependency["kind"] == "dev";
            if let Some(ours) = find(used) {
                // A crate's own tests may lean on test crates; those in turn may use every layer.
                let allowed = layer.uses.contains(&used) || used == name || (dev && is_test(ours));
                if !allowed {
                    found.push(format!("{name} must not use {used}"));
                }
                continue;
            }
            if layer.never.iter().any(|never| in_family(used, never)) {
                found.push(format!("{name} must not use {used}"));
            }
            for (family, users) in RESERVED {
                if family.iter().any(|head| in_family(used, head)) && !users.contains(&name) {
                    let users =
                        if users.is_empty() { "examples and tests".into() } else { users.join(" and ") };
                    found.push(format!("{name} must not use {used}: only {users} may"));
                }
            }
        }
    }
    found
}

/// `gstreamer-video` and `gstreamer-video-sys` belong to `gstreamer`; `gstreamerx` does not.
fn in_family(name: &str, head: &str) -> bool {
    name.strip_prefix(head).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--no-deps"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata speaks JSON")
}

#[test]
fn imports_run_downward() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    // An empty list would pass every rule.
    for name in ["frameshare-protocol", "frameshare-cuda", "frameshare", "gst-plugin-frameshare"] {
        assert!(
            packages.iter().any(|package| package["name"] == name),
            "{name} is missing from the workspace"
        );
    }
    assert_eq!(violations(&metadata), Vec::<String>::new());
}

/// Negative control: each rule, broken once in a forged workspace, is reported, and nothing else
/// is.
#[test]
fn broken_layers_are_reported() {
    fn package(name: &str, folder: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        let manifest = format!("/ws/{folder}/{name}/Cargo.toml");
        json!({ "name": name, "manifest_path": manifest, "dependencies": dependencies })
    }
    let dev = Some("dev");
    let packages = [
        package("frameshare-protocol", "crates", &[("serde", None), ("rustix", None), ("frameshare", dev)]),
        package("frameshare-cuda", "crates", &[("cudarc", None), ("libloading", None), ("frameshare", None)]),
        package(
            "frameshare",
            "crates",
            &[
                ("frameshare-protocol", None),
                ("rustix", None),
                ("simcuda", dev),
                ("gstreamer-video", dev),
                ("tokio", dev),
                ("cudarc", None),
                ("simcuda", None),
            ],
        ),
        package("gst-cuda", "crates", &[("gstreamer", None), ("libloading", None)]),
        package(
            "gst-plugin-frameshare",
            "plugins",
            &[
                ("frameshare", None),
                ("gst-cuda", None),
                ("gstreamer", None),
                ("frameshare-cuda", None),
                ("frameshare-protocol", None),
                ("libloading", Some("build")),
            ],
        ),
        package("frameshare-new", "crates", &[]),
        package("frameshare-tokio", "examples", &[("tokio", None), ("frameshare", None)]),
        package("simcuda", "tests", &[("libloading", None), ("gstreamer", None), ("frameshare-cuda", None)]),
    ];
    let expected = [
        "frameshare-protocol must not use rustix",
        "frameshare-protocol must not use frameshare",
        "frameshare-cuda must not use frameshare",
        "frameshare must not use gstreamer-video: only gst-plugin-frameshare and gst-cuda may",
        "frameshare must not use tokio: only frameshare-http and frameshare-tools may",
        "frameshare must not use cudarc: only frameshare-cuda may",
        "frameshare must not use simcuda",
        "gst-plugin-frameshare must not use frameshare-protocol",
        "gst-plugin-frameshare must not use libloading: only frameshare-cuda and gst-cuda may",
        "frameshare-new has no place in the layers: give it one in tests/tests/layers.rs",
    ];
    assert_eq!(violations(&json!({ "workspace_root": "/ws", "packages": packages })), expected);
}

/// CUDA is not programmed through the engine: it re-exports the types that its own signatures name,
/// and the announcement of captures that its releases obey, in one place, and nothing else of
/// frameshare-cuda.
#[test]
fn engine_reexports_cuda_types_of_signatures_only() {
    const TYPES: [&str; 7] = [
        "Error",
        "Result",
        "capture",
        "context::Context",
        "device::Device",
        "device::Uuid",
        "stream::Stream",
    ];
    let engine = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates/frameshare/src");
    let mut found = Vec::new();
    for file in sources(&engine) {
        let text = fs::read_to_string(&file).expect("a source file can be read");
        found.extend(reexports(&text, "frameshare_cuda"));
    }
    found.sort();
    assert_eq!(found, TYPES);
}

/// Negative control: a re-export of the crate, of a module and of a type are each found.
#[test]
fn reexports_are_found_in_every_form() {
    let found = |text| reexports(text, "frameshare_cuda");
    assert_eq!(found("pub use frameshare_cuda as cuda;"), ["as cuda"]);
    assert_eq!(found("pub use frameshare_cuda;"), [""]);
    assert_eq!(found("    pub use frameshare_cuda::copy;"), ["copy"]);
    assert_eq!(
        found("pub use frameshare_cuda::{\n    Error,\n    device::{self, Uuid},\n};"),
        ["Error", "device::self", "device::Uuid"]
    );
    assert_eq!(found("use frameshare_cuda::Error;\npub use frameshare_protocol::Policy;"), [""; 0]);
}

/// Returns the paths below `krate` that a source file re-exports; "" is the crate itself.
fn reexports(text: &str, krate: &str) -> Vec<String> {
    let statements = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let ours = statements.filter_map(|statement| statement.strip_prefix(krate));
    ours.flat_map(|tree| leaves("", tree.trim_start_matches("::").trim())).collect()
}

/// Files of one crate do not import each other in a circle, so that each can be read after those
/// that it uses.
#[test]
fn import_graph_has_no_cycle() {
    let (mut crates, mut found) = (0, BTreeMap::new());
    for package in metadata()["packages"].as_array().expect("metadata lists packages") {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a package has a manifest"));
        let src = manifest.with_file_name("src");
        if !src.is_dir() {
            continue;
        }
        let krate = imports::Crate::read(&src);
        crates += usize::from(!krate.imports().is_empty());
        let name = package["name"].as_str().expect("a package has a name");
        let cycles: Vec<String> = krate.cycles().iter().map(|files| format!("{files:?}")).collect();
        if !cycles.is_empty() {
            found.insert(name.to_owned(), cycles);
        }
    }
    // Its log, which outlives the process, runs the queues to their end.
    assert_eq!(found.remove("simcuda").map(|cycles| cycles.len()), Some(1));
    assert_eq!(found, BTreeMap::new(), "cycles of imports");
    assert!(crates > 10, "imports were found in {crates} crates only");
}

/// Negative control: cycles of two and three files are found in each form of import, through
/// re-exports too. Re-exports, tests and imports in one direction are no cycles.
#[test]
fn import_cycles_are_reported() {
    let cycles = |files: &[(&str, &str)]| -> Vec<Vec<String>> {
        let files = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
        let krate = imports::Crate::of(files);
        let cycles = krate.cycles();
        let names = |files: &Vec<&Path>| files.iter().map(|path| path.display().to_string()).collect();
        cycles.iter().map(names).collect()
    };
    let none = Vec::<Vec<String>>::new();
    let lib = ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::{B, C as D};\n");
    let one_way = [lib, ("a.rs", "use crate::b::B;\n"), ("b.rs", "// use crate::a::A;\n")];
    assert_eq!(cycles(&one_way), none);
    for back in [
        "use crate::a::A;",
        "use super::a::{self, A};",
        "use crate::A;",
        "pub use std::fmt;\nuse super::{\n    A, // the other\n};",
        "fn f() {\n    use crate::a;\n}",
    ] {
        let found = cycles(&[lib, ("a.rs", "use crate::{\n    D,\n};\n"), ("b.rs", back)]);
        assert_eq!(found, [["a.rs", "b.rs"]], "{back}");
    }
    let tests =
        [lib, ("a.rs", "use crate::B;\n"), ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::A;\n}")];
    assert_eq!(cycles(&tests), none);
    let three = [
        ("lib.rs", "mod x;\nuse x::y::Y;\n"),
        ("x/mod.rs", "mod y;\nmod z;\n"),
        ("x/y.rs", "use super::z::Z;\n"),
        ("x/z.rs", "use crate::Y;\n"),
    ];
    assert_eq!(cycles(&three), [["x/y.rs", "x/z.rs"]]);
    // A folder's own type, and its methods in a file below, which the folder does not use itself.
    let folder = |used: &'static str| {
        [("lib.rs", "mod x;\n"), ("x/mod.rs", used), ("x/y.rs", "use super::X;\npub struct Y;\nimpl X {}\n")]
    };
    assert_eq!(cycles(&folder("mod y;\npub struct X;\n")), none);
    assert_eq!(cycles(&folder("mod y;\nuse y::Y;\npub struct X(Y);\n")), [["x/mod.rs", "x/y.rs"]]);
}

/// Unsafe code is denied everywhere by the workspace's lints, which a crate has to take over. The
/// protocol and the queue, which read what other processes wrote, and the core, which does no I/O,
/// forbid it, so that no file can lift the rule.
#[test]
fn unsafe_code_is_fenced() {
    for package in metadata()["packages"].as_array().expect("metadata lists packages") {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a package has a manifest"));
        let text = fs::read_to_string(&manifest).expect("a manifest can be read");
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{} leaves the workspace's lints",
            manifest.display()
        );
        if ["frameshare-protocol", "frameshare-queue", "frameshare-core"]
            .iter()
            .any(|name| package["name"] == *name)
        {
            let root = manifest.with_file_name("src").join("lib.rs");
            let text = fs::read_to_string(&root).expect("the crate's root can be read");
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                root.display()
            );
        }
    }
}

/// Folders and files of the product that may contain unsafe code; each says in its header what its
/// safety relies on.
const UNSAFE: [&str; 19] = [
    "crates/frameshare-process/src/",
    "crates/frameshare-cuda/src/",
    // Pointers from C, whose side of the contract is in the header.
    "crates/frameshare-c/src/",
    // Structs that Python and its array libraries exchange, and CUDA streams of theirs.
    "crates/frameshare-python/src/cuda_stream.rs",
    "crates/frameshare-python/src/export/",
    "crates/frameshare-python/src/publish/array.rs",
    "crates/frameshare-python/src/publish/slot.rs",
    "crates/frameshare-python/src/publish/target.rs",
    "crates/gst-cuda/src/",
    "crates/frameshare/src/sys/",
    "crates/frameshare/src/memory/",
    "plugins/frameshare/src/ffi/",
    // Memory of a leased frame.
    "crates/frameshare/src/reader/lease/frame.rs",
    // Free slots as slices, to be written.
    "crates/frameshare/src/exporter/video.rs",
    // Plain slices of frames whose exporter is trusted.
    "crates/frameshare/src/reader/slice.rs",
    // Copies that a GPU executes later: their callers hold both sides until they are done.
    "crates/frameshare/src/exporter/delivery/download_target.rs",
    "crates/frameshare/src/exporter/resources/copier.rs",
    "plugins/frameshare/src/sink/cuda/mod.rs",
    "plugins/frameshare/src/src/cuda/copier.rs",
];

/// Those of the files, given by path and text, that contain unsafe code and may not.
fn unlisted<'a>(files: &[(&'a str, &str)]) -> Vec<&'a str> {
    let is_unsafe = |text: &str| text.contains("allow(unsafe_code)") || text.contains("expect(unsafe_code");
    let is_test = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    let is_listed = |path: &str| UNSAFE.iter().any(|listed| path.starts_with(listed));
    let found = files.iter().filter(|(path, text)| is_unsafe(text) && !is_test(path) && !is_listed(path));
    found.map(|(path, _)| *path).collect()
}

/// Cargo.toml denies unsafe code in files that do not lift that.
#[test]
fn unsafe_code_is_in_the_listed_files_only() {
    let root = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the workspace is there");
    let is_product = |path: &PathBuf| path.iter().any(|part| part == "src");
    let paths: Vec<PathBuf> = ["crates", "plugins"].iter().flat_map(|top| sources(&root.join(top))).collect();
    let files: Vec<(String, String)> = paths
        .into_iter()
        .filter(is_product)
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            (path.strip_prefix(&root).expect("it is below the root").display().to_string(), text)
        })
        .collect();
    assert!(files.len() > 100, "only {} files were found", files.len());
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    assert_eq!(unlisted(&files), Vec::<&str>::new());
    for listed in UNSAFE {
        assert!(files.iter().any(|(path, _)| path.starts_with(listed)), "{listed} is not there");
    }
}

#[test]
fn unlisted_unsafe_code_is_reported() {
    let files = [
        ("crates/frameshare/src/sys/peer.rs", "#![allow(unsafe_code)]"),
        ("crates/frameshare/src/exporter/mod.rs", "#![allow(unsafe_code)]"),
        ("plugins/frameshare/src/sink/imp.rs", "#[expect(unsafe_code, reason = \"it is short\")]"),
        ("plugins/frameshare/src/src/tests.rs", "#![allow(unsafe_code)]"),
        ("plugins/frameshare/src/src/imp.rs", "fn safe() {}"),
    ];
    let reported = ["crates/frameshare/src/exporter/mod.rs", "plugins/frameshare/src/sink/imp.rs"];
    assert_eq!(unlisted(&files), reported);
}

/// Crates of which a forked child can use objects of its own. GLib and GStreamer have locks that no
/// child can use, so that statics of the plugin and of gst-cuda are those of one process anyway.
const FORKED: [&str; 4] = ["frameshare-process", "frameshare-cuda", "frameshare", "frameshare-python"];

/// Atomics whose value is right in a forked child, too, each with the reason. Others count what
/// only the parent has.
const INHERITED: [(&str, &str); 8] = [
    ("WORD", "its page is wiped in a child"),
    ("NONE", "it is an address alone"),
    ("NEXT", "numbers are not used again"),
    ("LOADED_BY", "it names the process"),
    ("COUNTS", "a child makes no calls after its parent's"),
    ("TOKEN", "numbers are not used again"),
    ("NEXT_ID", "numbers are not used again"),
    ("ARE_FOUND", "the library stays loaded in a child"),
];

/// Returns the statics of a source file, but for its tests, that a forked child would share with
/// its parent: a lock in one, or in the making of one, may be held by another thread at the fork,
/// and a count may include threads and objects that the child lacks.
fn shared_statics(text: &str) -> Vec<&str> {
    let product = text.split("mod tests {").next().unwrap_or(text);
    let statics = product.lines().filter_map(|line| {
        let line = line.trim_start();
        let item = line.strip_prefix("static ").or_else(|| {
            let (visibility, item) = line.split_once(" static ")?;
            visibility.starts_with("pub").then_some(item)
        });
        item?.split_once(':')
    });
    let is_shared = |(name, kind): &(&str, &str)| {
        let kind = kind.trim_start();
        let is_inherited = INHERITED.iter().any(|(inherited, _)| inherited == name);
        // Tables and other constants, and locals of one thread.
        let is_cell = kind.contains("Cell<") && !kind.contains("OnceCell<");
        let is_constant = kind.starts_with('[');
        !(kind.starts_with("PerProcess<")
            || is_cell
            || if kind.contains("Atomic") { is_inherited } else { is_constant })
    };
    statics.filter(is_shared).map(|(name, _)| name).collect()
}

/// Folders of the engine and of the core whose code runs with the exporter's state locked, and the
/// file in them whose code does not: it unlocks the state.
const LOCKED: [&str; 5] =
    ["exporter/state", "exporter/parts", "exporter/resources", "exporter/link", "exporter/slot"];
const UNLOCKS: &str = "exporter/state/guard.rs";

/// Returns whether a file, by its path below `src` and its text, calls a logger with the exporter's
/// state locked. A logger is foreign code: it may block, or call the exporter.
fn logs_locked(path: &str, text: &str) -> bool {
    let is_whole = |(at, _): (usize, &str)| !text[..at].ends_with(|before: char| before.is_alphanumeric());
    let logs = text.match_indices("log::").any(is_whole) || text.contains("report!(");
    LOCKED.iter().any(|folder| path.starts_with(folder)) && path != UNLOCKS && logs
}

#[test]
fn exporter_calls_no_logger_with_its_state_locked() {
    let crates = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")).expect("they are there");
    let mut seen = 0;
    for folder in ["frameshare/src", CORE].map(|folder| crates.join(folder)) {
        for path in sources(&folder) {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            let below = path.strip_prefix(&folder).expect("it is below").to_str().expect("a plain name");
            seen += usize::from(LOCKED.iter().any(|locked| below.starts_with(locked)));
            assert!(!logs_locked(below, &text), "{}: add the line to `State::reports`", path.display());
        }
    }
    assert!(seen > 70, "only {seen} files were found");
    assert!(logs_locked("exporter/state/dma_bufs.rs", "log::warn!(\"late\");"));
    assert!(logs_locked("exporter/parts/slots.rs", "log::warn!(\"late\");"));
    assert!(logs_locked("exporter/resources/pinned.rs", "log::warn!(\"late\");"));
    assert!(logs_locked("exporter/link/mod.rs", "report!(warn, \"late\");"));
    assert!(!logs_locked("exporter/parts/slots.rs", "use super::backlog::KEPT;"));
    assert!(!logs_locked("exporter/service/mod.rs", "log::warn!(\"late\");"));
}

/// The crate that decides and does nothing else: it is told what happened, and when.
const CORE: &str = "frameshare-core/src";
/// Its folder of owners, whose code names no clock, descriptor, lock or thread.
const OWNERS: &str = "frameshare-core/src/exporter/parts";
/// Words for what owners must not know.
const DOING: [&str; 9] = [
    "Instant::now",
    "monotonic_ns",
    "OwnedFd",
    "BorrowedFd",
    "Socket",
    "Interrupt",
    "Mutex<",
    "Atomic",
    "thread::",
];
/// Parts of the standard library, and the logger, that the core must not use: it has no I/O, clock,
/// lock, thread or log. Values that nothing changes may be shared (`SHARES`).
const SYSTEM_MODULES: [&str; 11] = [
    "Instant::now",
    "SystemTime",
    "env::",
    "fs::",
    "io::",
    "log::",
    "net::",
    "os::",
    "process::",
    "sync::",
    "thread::",
];

/// The only name of `std::sync` that the core may use.
const SHARES: &str = "sync::Arc";

/// Returns which of the words the code of an owner, without its tests, contains.
fn does(text: &str, words: &[&'static str]) -> Option<&'static str> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: String = code.lines().filter(is_code).collect();
    let is_whole =
        |at: usize| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
    let shares = |at: usize| {
        let after = code[at..].strip_prefix(SHARES);
        after.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    };
    let is_found = |what: &&str| match what.strip_suffix("::") {
        Some(_) => code.match_indices(what).any(|(at, _)| is_whole(at) && !shares(at)),
        None => code.contains(what),
    };
    words.iter().copied().find(|what| is_found(what))
}

#[test]
fn core_reads_no_clock_and_holds_no_descriptor() {
    let crates = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")).expect("they are there");
    let mut files = 0;
    for (folder, words) in [(OWNERS, &DOING[..]), (CORE, &SYSTEM_MODULES[..])] {
        // The system of the unit tests has all of them.
        for path in sources(&crates.join(folder)).iter().filter(|path| !path.ends_with("exporter/fake.rs")) {
            let text = fs::read_to_string(path).expect("a source file can be read");
            assert_eq!(does(&text, words), None, "{}: tell it, or let its user do it", path.display());
            files += 1;
        }
    }
    assert!(files >= 85, "only {files} files were found");
    assert_eq!(does("let now = Instant::now();", &DOING), Some("Instant::now"));
    assert_eq!(does("    own: Option<Interrupt>,", &DOING), Some("Interrupt"));
    assert_eq!(does("std::thread::sleep(time);", &DOING), Some("thread::"));
    let test = "/// In ns of `monotonic_ns`.\n#[cfg(test)]\nmod tests {\nInstant::now()";
    assert_eq!(does(test, &DOING), None);
    for used in ["sync::Mutex", "sync::{Arc, Mutex}", "sync::ArcLock", "sync::atomic::AtomicU32"] {
        let text = format!("use std::{{collections::VecDeque, {used}}};");
        assert_eq!(does(&text, &SYSTEM_MODULES), Some("sync::"), "{used}");
    }
    assert_eq!(does("use std::{collections::VecDeque, sync::Arc};", &SYSTEM_MODULES), None);
    assert_eq!(does("    log::warn!(\"late\");", &SYSTEM_MODULES), Some("log::"));
    assert_eq!(does("    let now = std::time::Instant::now();", &SYSTEM_MODULES), Some("Instant::now"));
    assert_eq!(does("use super::backlog::KEPT;", &SYSTEM_MODULES), None);
}

#[test]
fn statics_are_per_process() {
    let crates = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")).expect("they are there");
    let (mut statics, mut found) = (0, Vec::new());
    let files = FORKED.iter().flat_map(|name| sources(&crates.join(name).join("src")));
    for path in files.filter(|path| !path.ends_with("tests.rs")) {
        let text = fs::read_to_string(&path).expect("a source file can be read");
        statics += text.matches(": PerProcess<").count();
        found.extend(shared_statics(&text).iter().map(|name| format!("{}: {name}", path.display())));
    }
    assert_eq!(found, Vec::<String>::new());
    assert!(statics >= 23, "only {statics} were found");
}

#[test]
fn statics_that_are_not_per_process_are_reported() {
    let reported = |text: &str| shared_statics(text).concat();
    let shared =
        ["Mutex<u32>", "Closers", "Service", "Lazy<u32>", "OnceCell<u8>", "AtomicUsize", "[AtomicU8; 3]"];
    for kind in shared {
        assert_eq!(reported(&format!("static A: {kind} =\n    {kind}::new();")), "A", "{kind}");
    }
    assert_eq!(reported("fn a() {\n    static A: Lazy<Mutex<u32>> = Lazy::new(Mutex::default);\n}"), "A");
    assert_eq!(reported("pub(super) static A: RwLock<u8> = RwLock::new(0);"), "A");
    for kind in ["PerProcess<AtomicU32>", "[Row; 3]", "Cell<u32>", "RefCell<Option<u8>>"] {
        assert_eq!(reported(&format!("static A: {kind} = const {{ a() }};")), "", "{kind}");
    }
    assert_eq!(reported("static TOKEN: AtomicU64 = AtomicU64::new(1);"), "");
    assert_eq!(reported("struct A {\n    name: &'static str,\n    lock: Mutex<u32>,\n}"), "");
    assert_eq!(reported("#[cfg(test)]\nmod tests {\n    static A: Mutex<u32> = Mutex::new(0);\n}"), "");
}

/// Returns the part of a source file that `cargo test` does not run, because the manifest of its
/// target says `test = false` or `doctest = false`.
fn never_run(target: &Value, text: &str) -> Option<&'static str> {
    let is_doc = |line: &str| ["/// ```", "//! ```"].iter().any(|begin| line.trim_start().starts_with(begin));
    let is_test = |line: &str| line.trim() == "#[test]";
    match (&target["test"], &target["doctest"]) {
        (Value::Bool(false), _) if text.lines().any(is_test) => Some("a test"),
        (_, Value::Bool(false)) if text.lines().any(is_doc) => Some("an example in a comment"),
        _ => None,
    }
}

/// Libraries and programs without tests are not built a second time as test binaries.
#[test]
fn targets_that_are_not_tested_have_no_tests() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("its targets"));
    let mut not_run = 0;
    for target in targets.filter(|target| target["doctest"] == false || target["test"] == false) {
        let kind = target["kind"][0].as_str().expect("a target has a kind");
        if !["lib", "cdylib", "bin"].contains(&kind) {
            continue;
        }
        let path = Path::new(target["src_path"].as_str().expect("a target has a path"));
        let folder = path.parent().expect("a file lies in a folder");
        let files = if folder.ends_with("bin") { vec![path.to_owned()] } else { sources(folder) };
        // Programs in src/bin are targets of their own.
        for file in
            files.iter().filter(|file| folder.ends_with("bin") || !file.starts_with(folder.join("bin")))
        {
            let text = fs::read_to_string(file).expect("a source file can be read");
            let is_library = kind != "bin";
            let target =
                json!({ "test": target["test"], "doctest": !is_library || target["doctest"] == true });
            assert_eq!(never_run(&target, &text), None, "{}: cargo does not run it", file.display());
            not_run += 1;
        }
    }
    assert!(not_run > 100, "{not_run} files of such targets were found");
}

#[test]
fn tests_of_targets_that_are_not_tested_are_reported() {
    let target = |test: bool, doctest: bool| json!({ "test": test, "doctest": doctest });
    let (test, doc) = ("mod tests {\n    #[test]\n    fn one() {}\n}", "/// Adds:\n///\n    /// ```\n");
    assert_eq!(never_run(&target(false, true), test), Some("a test"));
    assert_eq!(never_run(&target(true, false), doc), Some("an example in a comment"));
    assert_eq!(never_run(&target(true, false), test), None);
    assert_eq!(never_run(&target(false, true), doc), None);
    assert_eq!(never_run(&target(false, false), "fn tested() {}\n"), None);
}
