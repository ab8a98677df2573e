// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names the shared library for the dynamic linker. Its number rises with each release that breaks
//! programs that were linked before.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libframeshare.so.0");
    // Threads of the engine may run for as long as the process: dlclose(3) leaves their code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
