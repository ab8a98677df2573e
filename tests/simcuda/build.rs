// SPDX-License-Identifier: MIT OR Apache-2.0

//! Build script: the soname under which CUDA programs load the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The library's threads run until the process exits, so its code must not be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
