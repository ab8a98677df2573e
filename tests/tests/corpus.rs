// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every input that the fuzzer kept, and some that were made by hand, once more.

use frameshare_tests::fuzz::TARGETS;
use std::{fs, path::Path};

#[test]
fn inputs_that_were_kept_find_nothing() {
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
