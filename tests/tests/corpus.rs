// SPDX-License-Identifier: MIT OR Apache-2.0

//! Inputs kept by the fuzzer, and some written by hand.

use frameshare_tests::fuzz::TARGETS;
use std::{fs, path::Path};

#[test]
fn corpus_inputs_pass_all_targets() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in TARGETS {
        let folder = corpus.join(name);
        let mut inputs: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry").path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{} is empty", folder.display());
        for input in inputs {
            println!("{}", input.display()); // the last one that is shown is the one that failed
            target(&fs::read(&input).expect("an input can be read"));
        }
    }
}
