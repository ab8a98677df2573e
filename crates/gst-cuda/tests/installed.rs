// SPDX-License-Identifier: MIT OR Apache-2.0

//! Search for the library where a second GStreamer is installed: stand-ins for the library and for
//! the plugin that links to it, outside of the loader's default path.

use gst_cuda::Unavailable;
use std::{
    env, fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Has the first one of the functions that are looked up, so that the error names the second one.
const LIBRARY: &str = "void gst_cuda_stream_new(void) {}";

/// Writes a line to the file that INITIALIZED names when GStreamer initializes it.
const PLUGIN: &str = r#"
#include <gst/gst.h>
#include <stdio.h>
#include <stdlib.h>
#define PACKAGE "frameshare"
static gboolean init(GstPlugin *plugin) {
  FILE *file = fopen(getenv("INITIALIZED"), "a");
  fputs("initialized\n", file);
  fclose(file);
  return TRUE;
}
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, nvcodec, "Stand-in", init, "1", "MIT/X11", PACKAGE, "frameshare")
"#;

/// Compiles a shared object.
fn compile(text: &str, output: &Path, arguments: &[&str]) {
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-Wl,--no-as-needed", "-o"])
        .arg(output)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "{}", output.display());
}

#[test]
fn running_gstreamers_library_is_loaded_without_plugin_init() {
    const TEST: &str = "running_gstreamers_library_is_loaded_without_plugin_init";
    // A process of its own, since libraries stay loaded.
    if let Some(initialized) = env::var_os("INITIALIZED") {
        gst::init().unwrap();
        // By GStreamer's scan of its plugins.
        let before = fs::read_to_string(&initialized).unwrap();
        assert_eq!(gst_cuda::load(), Err(Unavailable::TooOld { lacks: "gst_cuda_stream_get_type" }));
        assert_eq!(fs::read_to_string(&initialized).unwrap(), before);
        return;
    }
    if Command::new("cc").arg("--version").output().is_err() {
        std::io::stdout().write_all(b"SKIP gst-cuda/installed: there is no C compiler\n").unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = |name| folder.path().join(name);
    let (library, plugin) = (place("libgstcuda-1.0.so.0"), place("libgstnvcodec.so"));
    compile(LIBRARY, &library, &["-Wl,-soname,libgstcuda-1.0.so.0"]);
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "gstreamer-1.0"]).output().unwrap();
    let flags = String::from_utf8(flags.stdout).unwrap();
    let mut arguments = vec![library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"];
    arguments.extend(flags.split_whitespace());
    compile(PLUGIN, &plugin, &arguments);
    let output = Command::new(env::current_exe().unwrap())
        .args([TEST, "--exact"])
        .env("GST_PLUGIN_PATH_1_0", folder.path())
        .env("GST_PLUGIN_SYSTEM_PATH_1_0", "")
        .env("GST_REGISTRY_1_0", place("registry"))
        .env("INITIALIZED", place("initialized"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
