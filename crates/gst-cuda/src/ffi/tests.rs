// SPDX-License-Identifier: MIT OR Apache-2.0

//! ABI test: compares the types passed to the library with its headers, by compiling a C program.

use super::*;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    mem::offset_of,
    path::{Path, PathBuf},
    process::Command,
};

/// Stubs for the GL and CUDA declarations that the library's headers require and these tests do not
/// use.
const STUBS: [(&str, &str); 2] = [("cudaGL.h", "typedef int CUGLDeviceList;\n"), ("GL/gl.h", "")];

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tools").join(name)
}

/// Returns the folder of the headers, or the reason why there is none.
fn headers() -> Result<String, String> {
    let done = Command::new(tool("gstcuda-headers.sh")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

/// Evaluates C expressions against the headers.
fn evaluate<'a>(headers: &str, expressions: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut source = String::from(
        "typedef unsigned int GLuint;\ntypedef unsigned int GLenum;\n#include <gst/cuda/gstcuda.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for expression in expressions {
        writeln!(source, "  printf(\"%s\\t%llu\\n\", \"{expression}\", (unsigned long long)({expression}));")
            .unwrap();
    }
    source.push_str("  return 0;\n}\n");

    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&file, source).unwrap();
    for (name, text) in STUBS {
        let stub = folder.path().join(name);
        std::fs::create_dir_all(stub.parent().unwrap()).unwrap();
        std::fs::write(stub, text).unwrap();
    }
    let flags = output(Command::new("pkg-config").args([
        "--cflags",
        "--libs",
        "gstreamer-1.0",
        "gstreamer-video-1.0",
    ]));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-w", "-DGST_USE_UNSTABLE_API", "-I"]).arg(folder.path()).arg("-I").arg(headers);
    compile.arg("-I").arg(output(&mut Command::new(tool("cuda-headers.sh"))).trim());
    output(compile.arg("-o").args([&program, &file]).args(flags.split_whitespace()));
    output(&mut Command::new(program))
        .lines()
        .map(|line| line.rsplit_once('\t').unwrap())
        .map(|(expression, value)| (expression.to_owned(), value.parse().unwrap()))
        .collect()
}

macro_rules! layout {
    ($($ty:ident { $($c:literal = $field:ident),* $(,)? })*) => {
        vec![$(
            (concat!("sizeof(", stringify!($ty), ")"), size_of::<$ty>() as u64),
            $((concat!("offsetof(", stringify!($ty), ", ", $c, ")"), offset_of!($ty, $field) as u64),)*
        )*]
    };
}

#[test]
fn structures_and_flags_match_headers() {
    let headers = match headers() {
        Ok(headers) => headers,
        Err(reason) => {
            // Bypasses the harness's output capture, so that the skip is counted.
            std::io::stdout().write_all(format!("SKIP gst-cuda/layout: {reason}\n").as_bytes()).unwrap();
            return;
        }
    };
    let mut ours = layout! {
        GstCudaContext { "object" = object, "priv" = private }
        GstCudaContextClass { "parent_class" = parent_class }
        GstCudaStream { "parent" = parent, "context" = context, "priv" = private }
        GstCudaMemory { "mem" = memory, "context" = context, "info" = info, "priv" = private }
        GstCudaBufferPool { "parent" = parent, "context" = context, "priv" = private }
        GstCudaBufferPoolClass { "parent_class" = parent_class }
    };
    ours.extend([
        ("GST_MAP_CUDA", u64::from(MAP_CUDA)),
        ("GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD", u64::from(NEED_DOWNLOAD)),
        ("GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD", u64::from(NEED_UPLOAD)),
        ("GST_CUDA_MEMORY_TRANSFER_NEED_SYNC", u64::from(NEED_SYNC)),
        ("sizeof(CUdeviceptr)", size_of::<crate::Address>() as u64),
    ]);
    let theirs = evaluate(&headers, ours.iter().map(|(expression, _)| *expression));
    let wrong: Vec<_> =
        ours.iter().filter(|(expression, value)| theirs.get(*expression) != Some(value)).collect();
    assert!(wrong.is_empty(), "values differ from the headers: {wrong:?}\nheaders have {theirs:?}");
}
