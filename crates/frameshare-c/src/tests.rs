// SPDX-License-Identifier: MIT OR Apache-2.0

//! Panics at the border, and enumerators that come from the engine.
#![allow(unsafe_code)]

use crate::{
    border::{frameshare_last_error, guard, quietly},
    exporter::{self, ExporterConfig},
    failure::{Failure, Status},
    reader::{self, ReaderConfig},
    structs::Struct as _,
    video::{Color, Format},
};
use frameshare::{
    ConfigOption, Policy,
    exporter::{Config, LosslessReaders, SlowReaders},
    video::{Colorimetry, VideoFormat},
};
use std::{collections::BTreeMap, ffi::CStr};

fn last_error() -> String {
    let text = frameshare_last_error();
    // SAFETY: the function returns a text that lives until the next failure of this thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[test]
fn panic_ends_at_the_border() {
    assert_eq!(guard(|| panic!("row {}", 7)), Status::Internal);
    assert_eq!(last_error(), "bug in libframeshare: row 7");
    assert_eq!(guard(|| std::panic::panic_any(7)), Status::Internal);
    assert_eq!(quietly(5, || panic!("quiet")), 5);
}

#[test]
fn last_error_is_of_the_thread() {
    assert_eq!(guard(|| Err(Failure::argument("one\0two"))), Status::InvalidArgument);
    std::thread::spawn(|| assert_eq!(last_error(), "")).join().unwrap();
    assert_eq!(guard(|| Ok(Status::Timeout)), Status::Timeout);
    assert_eq!(last_error(), "one?two");
}

/// Options whose defaults differ from the engine's.
fn different(options: &[ConfigOption], ours: &[String], engine: &[String]) -> Vec<&'static str> {
    let values = options.iter().zip(ours.iter().zip(engine));
    values.filter(|(_, (ours, engine))| ours != engine).map(|(option, _)| option.name).collect()
}

/// The header says why: a C program reads on after a restart of the exporter.
#[test]
fn defaults_are_those_of_the_engine() {
    // SAFETY: the initial values have no pointers.
    let exporter = unsafe { exporter::config_of(&ExporterConfig::init()) }.ok().unwrap();
    let (ours, engine) = (exporter.values(), Config::default().values());
    assert_eq!(different(Config::OPTIONS, &ours, &engine), [""; 0]);
    // SAFETY: as above.
    let (reader, _) = unsafe { reader::config_of(&ReaderConfig::init()) }.ok().unwrap();
    let (ours, engine) = (reader.values(), frameshare::reader::Config::default().values());
    assert_eq!(different(frameshare::reader::Config::OPTIONS, &ours, &engine), ["reconnect"]);
}

/// Enumerators of the header with this prefix, by number.
fn enumerators(prefix: &str) -> BTreeMap<u32, String> {
    let header = include_str!("../include/frameshare.h");
    let lines = header.lines().filter_map(|line| line.trim().strip_prefix(prefix)?.split_once(" = "));
    let found = lines.map(|(name, number)| {
        let number = number.trim_end_matches(',').parse().expect("an enumerator has a number");
        (number, name.replace('_', "").to_lowercase())
    });
    found.collect()
}

/// Checks that the header has the names of `nth` for its numbers, and no others.
fn check_names<T: std::fmt::Debug>(prefix: &str, nth: impl Fn(u32) -> Option<T>) {
    let name = |number| Some(format!("{:?}", nth(number)?).replace('_', "").to_lowercase());
    let engine = (0..64).map_while(|number| Some((number, name(number)?))).collect();
    assert_eq!(enumerators(prefix), engine, "{prefix}");
}

/// The colors of these numbers, of a format that has all of them.
fn colors(color: Color) -> Option<Colorimetry> {
    let format = VideoFormat::new("RGB".parse().ok()?, 64, 48);
    color.of(&format).ok()
}

#[test]
fn enumerators_are_those_of_the_engine() {
    let known = Color { range: 1, matrix: 1, transfer: 1, primaries: 1 };
    check_names("FRAMESHARE_RANGE_", |range| Some(colors(Color { range, ..known })?.range));
    check_names("FRAMESHARE_TRANSFER_", |transfer| Some(colors(Color { transfer, ..known })?.transfer));
    check_names("FRAMESHARE_PRIMARIES_", |primaries| Some(colors(Color { primaries, ..known })?.primaries));
    // RGB has one matrix; gray has all but that one.
    let gray = VideoFormat::new("GRAY8".parse().unwrap(), 64, 48);
    let matrices = enumerators("FRAMESHARE_MATRIX_");
    assert_eq!(matrices.len(), 7);
    for (matrix, name) in matrices.into_iter().filter(|(_, name)| name != "rgb") {
        let found = Color { matrix, ..known }.of(&gray).unwrap().matrix;
        assert_eq!(format!("{found:?}").to_lowercase(), name);
    }
    check_names("FRAMESHARE_INTERLACING_", |interlacing| {
        let format = Format { width: 64, height: 48, pixel_format: c"NV12".as_ptr(), ..Format::init() };
        // SAFETY: the name is a static text.
        Some(unsafe { Format { interlacing, ..format }.to_video() }.ok()?.interlacing)
    });
    let nth = |number: u32| [Policy::Latest, Policy::Lossless].get(number as usize).copied();
    check_names("FRAMESHARE_POLICY_", nth);
    let levels = enumerators("FRAMESHARE_LOG_").into_values().collect::<Vec<_>>();
    assert_eq!(levels, ["error", "warning", "info"]);
    use LosslessReaders::{All, None, OwnUid};
    check_names("FRAMESHARE_LOSSLESS_READERS_", |number| [None, OwnUid, All].get(number as usize).copied());
    use SlowReaders::{QueueThenDisconnect, QueueThenWait, Wait};
    let slow = [Wait, QueueThenWait, QueueThenDisconnect];
    check_names("FRAMESHARE_SLOW_READERS_", |number| slow.get(number as usize).copied());
}

/// A format keeps all its fields on the way to the engine and back.
#[test]
fn format_is_the_same_after_both_conversions() {
    let format = Format {
        pixel_format: c"I420_10LE".as_ptr(),
        width: 1919,
        height: 1081,
        rate_numerator: 30000,
        rate_denominator: 1001,
        pixel_aspect_numerator: 4,
        pixel_aspect_denominator: 3,
        interlacing: 1,
        color: Color { range: 2, matrix: 6, transfer: 13, primaries: 7 },
        ..Format::init()
    };
    // SAFETY: the name is a static text.
    let video = unsafe { format.to_video() }.unwrap();
    let back = Format::of(&video);
    // SAFETY: the names are static texts.
    let names = [format, back].map(|format| unsafe { CStr::from_ptr(format.pixel_format) });
    assert_eq!(names[0], names[1]);
    let back = Format { pixel_format: format.pixel_format, ..back };
    assert_eq!(format!("{:?}", Format { plane_count: 3, ..format }), format!("{back:?}"));
    assert_eq!(VideoFormat::of_caps(&video.to_caps()).unwrap(), video);
}
