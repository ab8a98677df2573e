// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of readers that copy frames for their layout.

use crate::stream::{Stream, format, until};
use frameshare::{
    Policy,
    exporter::{Config, Exporter, Notice},
};
use std::sync::{Arc, Mutex};

#[test]
fn each_reader_is_counted_once_a_format() {
    let stream = Stream::new();
    let counts = Arc::<Mutex<Vec<usize>>>::default();
    let noted = counts.clone();
    let note = move |notice| {
        if let Notice::LayoutCopied { readers } = notice {
            noted.lock().unwrap().push(readers);
        }
    };
    let exporter = Exporter::bind(&stream.endpoint, Config::default(), note).unwrap();
    let readers = [(); 2].map(|()| stream.reader(Policy::Latest));
    let reported = || exporter.stats().readers.iter().filter(|reader| reader.copies_for_layout).count();
    let mut expected = Vec::new();
    for caps in ["a", "b"] {
        exporter.set_format(format(caps));
        assert_eq!(reported(), 0);
        for (number, reader) in readers.iter().enumerate() {
            (0..3).for_each(|_| reader.report_layout_copies());
            until(|| reported() == number + 1);
            expected.push(number + 1);
        }
        // Repeated reports may still be on their way.
        readers.iter().for_each(|reader| reader.request_key_unit());
        until(|| counts.lock().unwrap().len() >= expected.len());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(*counts.lock().unwrap(), expected);
}
