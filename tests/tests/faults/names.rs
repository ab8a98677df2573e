// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names, sockets and lock files that other processes take, replace, remove or flood.

use crate::Stream;
use frameshare_tests::process::TestRun;
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, symlink},
        net::UnixListener,
    },
    process::Command,
    time::{Duration, Instant},
};

#[test]
fn name_and_path_of_one_socket_exclude_each_other() {
    let stream = Stream::start("--readers 0");
    let path = stream.run.path("frameshare/s.sock");
    let error = stream.run.peer(&format!("export --socket {}", path.display())).expect_failure();
    assert!(error.contains("in use") && error.contains(&stream.exporter.pid().to_string()), "{error}");
    stream.read("--frames 5").expect_success();
    stream.end();
}

#[test]
fn live_socket_of_another_program_stays_reachable() {
    let run = TestRun::new();
    let path = run.path("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let before = fs::metadata(&path).unwrap().ino();
    let error = run.peer(&format!("export --socket {}", path.display())).expect_failure();
    assert!(error.contains("in use"), "{error}");
    let sink = format!("videotestsrc num-buffers=10 ! framesharesink socket-path={}", path.display());
    let error = run.gst(&sink).expect_failure();
    assert!(error.contains("in use"), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    drop(listener);
    // Now it is stale.
    let mut exporter = run.peer(&format!("export --socket {} --frames 5", path.display()));
    exporter.wait_for("open");
    run.peer(&format!("read --socket {} --frames 5", path.display())).expect_success();
    exporter.expect_success();
}

#[test]
fn removed_socket_is_bound_again() {
    let mut stream = Stream::start("--fps 200 --readers 1");
    let witness = stream.read("--policy lossless");
    let folder = stream.run.path("frameshare");
    let removals: [&dyn Fn(); 3] = [
        &|| fs::remove_file(folder.join("s.sock")).unwrap(),
        &|| {
            fs::remove_file(folder.join("s.sock.lock")).unwrap();
            fs::remove_file(folder.join("s.sock")).unwrap();
        },
        // As when a user logs out and in again.
        &|| fs::remove_dir_all(&folder).unwrap(),
    ];
    for remove in removals {
        remove();
        stream.exporter.wait_for("socket-bound");
        stream.read("--frames 5").expect_success();
        let error = stream.run.peer("export --stream s").expect_failure();
        assert!(error.contains("in use"), "{error}");
    }
    let (outcome, _run) = stream.end();
    crate::assert_all_read(witness, &outcome.summary()["published"]);
}

#[test]
fn replaced_socket_is_reported_and_left_to_its_owner() {
    let mut stream = Stream::start("--fps 200 --readers 0");
    // Until the other one is faster: the exporter looks after its socket every two seconds.
    let other = (1..=10).find_map(|attempt| {
        for file in ["frameshare/s.sock", "frameshare/s.sock.lock"] {
            let _ = fs::remove_file(stream.run.path(file));
        }
        let mut other =
            stream.run.peer("export --stream s --frames 100000000 --fps 100 --readers 0 --until other");
        let is_open = if attempt < 10 {
            other.find_event("open").is_some()
        } else {
            // Tells why.
            !other.wait_for("open").is_null()
        };
        is_open.then_some(other)
    });
    let other = other.expect("the last attempt panics");
    let lost = stream.exporter.wait_for("socket-lost");
    assert!(lost["why"].as_str().unwrap().contains(&other.pid().to_string()), "{lost}");
    let (_, run) = stream.end();
    // It has removed no file but its own.
    run.peer("read --stream s --frames 5").expect_success();
    fs::write(run.path("other"), "").unwrap();
    other.expect_success();
}

#[test]
fn planted_lock_file_is_an_error_and_keeps_its_content() {
    let run = TestRun::new();
    let lock = run.path("s.sock.lock");
    fs::write(run.path("victim"), "precious").unwrap();
    let plants: [(&str, &dyn Fn()); 3] = [
        ("symbolic link", &|| symlink(run.path("victim"), &lock).unwrap()),
        ("hard link", &|| fs::hard_link(run.path("victim"), &lock).unwrap()),
        ("plain file", &|| assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success())),
    ];
    for (what, plant) in plants {
        plant();
        let error = run.peer(&format!("export --socket {}", run.path("s.sock").display())).expect_failure();
        assert!(error.contains(what) && error.contains("s.sock.lock"), "{what}: {error}");
        fs::remove_file(&lock).unwrap();
    }
    assert_eq!(fs::read_to_string(run.path("victim")).unwrap(), "precious");
}

/// Each keeps one connection open at any time.
#[test]
fn silent_connections_keep_no_reader_out() {
    let stream = Stream::start("--fps 500 --readers 1 --max-slots 256");
    let witness = stream.read("--policy lossless");
    let path = stream.run.path("frameshare/s.sock");
    let silent = format!("{} silent {}", env!("CARGO_BIN_EXE_hostile"), path.display());
    let mut crowd: Vec<_> = (0..100).map(|_| stream.run.command(&silent)).collect();
    crowd.iter_mut().for_each(|process| drop(process.wait_for("connected")));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        let readers = (0..10).map(|_| stream.run.peer("read --stream s --frames 1 --max-held 1"));
        readers.collect::<Vec<_>>().into_iter().for_each(|reader| drop(reader.expect_success()));
    }
    drop(crowd);
    let (outcome, _run) = stream.end();
    crate::assert_all_read(witness, &outcome.summary()["published"]);
}
