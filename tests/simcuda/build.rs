// SPDX-License-Identifier: MIT OR Apache-2.0

//! Gives the library the soname that CUDA programs ask for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads run until the process ends: unloading it would take their code away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
