// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile readers, against an exporter that continues publishing to two honest ones.

use super::{
    WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, attacks, hostile, is_foreign,
    stage::{Process, Stage},
    wait_until_listening,
};
use std::{collections::HashMap, fs, io::Write, path::Path, thread, time::Duration};

/// Maximum growth of the exporter in kilobytes between two rounds of all attacks: its allocator
/// keeps some memory.
const GROWTH_KB: u64 = 4096;

/// Counts resources of a process that can leak: descriptors, threads, kilobytes. Slots are not
/// counted: their number depends on the speed of releases.
fn census(pid: u32) -> [u64; 3] {
    let entries = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).into_iter().flatten().flatten();
    let is_slot = |path: &Path| path.to_string_lossy().contains("frameshare-slot");
    let files = entries("fd").filter(|fd| fs::read_link(fd.path()).is_ok_and(|target| !is_slot(&target)));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.and_then(|text| text.trim().parse().ok()).expect("a number");
    [files.count() as u64, entries("task").count() as u64, kilobytes]
}

#[test]
fn readers_that_mean_harm_are_cut_off_and_nobody_else_notices() {
    let stage = Stage::new();
    let mut exporter =
        stage.peer("export --stream s --frames 100000000 --size 20000 --fps 300 --until end --readers 2");
    exporter.wait_for("open");
    let read = |policy: &str| {
        stage.peer(&format!("read --stream s --policy {policy} --verify yes --quiet yes --max-held 4"))
    };
    let (lossless, latest) = (read("lossless"), read("latest"));
    let path = stage.path("frameshare/s.sock");
    let mut fates = HashMap::new();
    let mut attack_all = || {
        for name in attacks(&stage, "reader") {
            let attacker = hostile(&stage, &format!("reader {} {name}", path.display()));
            let pid = attacker.pid();
            let outcome = attacker.finish_well();
            let done = outcome.events("done").pop().expect("it says what it did");
            fates.insert(pid, (name, done["fate"].as_str().expect("a word").to_owned()));
        }
    };
    attack_all();
    let before = census(exporter.pid());
    attack_all();
    // The last attacker may still be disconnecting.
    let mut after = census(exporter.pid());
    for _ in 0..1000 {
        if after[..2] == before[..2] {
            break;
        }
        thread::sleep(Duration::from_millis(5));
        after = census(exporter.pid());
    }
    assert!(after[0] <= before[0] && after[1] <= before[1], "{before:?} became {after:?}");
    assert!(after[2] <= before[2] + GROWTH_KB, "{before:?} became {after:?}");

    fs::write(stage.path("end"), "").expect("the folder is ours");
    let exporter = exporter.finish_well();
    let published = exporter.summary()["published"].clone();
    let [lossless, latest] = [lossless, latest].map(|reader| reader.finish_well().summary());
    assert_eq!(
        (&lossless["frames"], &lossless["lost"], &lossless["bad"], &lossless["end"]),
        (&published, &0.into(), &0.into(), &"eos".into()),
        "{lossless}"
    );
    assert_eq!((&latest["bad"], &latest["end"]), (&0.into(), &"eos".into()), "{latest}");
    // No wait lasted until reader-timeout, which is 5 s.
    assert!(exporter.summary()["longest_wait_ms"].as_u64() < Some(4000), "{}", exporter.summary());

    for (pid, (name, fate)) in &fates {
        let of = |event| {
            let lines = exporter.events(event).into_iter();
            lines.filter(|line| line["pid"] == *pid).collect::<Vec<_>>()
        };
        let (removed, refused) = (of("removed"), of("refused"));
        let violations = removed.iter().filter(|line| line["reason"] == "Violation").count();
        match fate.as_str() {
            "CutOff" => {
                assert_eq!((removed.len(), violations, refused.len()), (1, 1, 0), "{name}: {removed:?}")
            }
            // It is reported once a second, however often it tried.
            "Refused" => assert!((1..30).contains(&refused.len()), "{name}: {refused:?}"),
            "Left" => {
                assert!(removed.len() == of("added").len() && refused.len() < 30, "{name}: {removed:?}")
            }
            other => panic!("{name} ended in {other}"),
        }
        for line in removed.iter().chain(&refused) {
            let why = line["why"].as_str().expect("a text");
            assert!(why.len() < 2000 && !why.contains(char::is_control), "{name}: {why:?}");
        }
    }
}

/// An exporter of the engine and the sink, new for each attack, stop in time while the attacker is
/// still present.
fn exporters_stop(kernel: &str) {
    for name in attacks(&Stage::new(), "reader") {
        let stage = Stage::new();
        let mut exporter = stage.peer_by(
            kernel,
            "export --stream s --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
        );
        let sink = stage.gst_by(
            kernel,
            "videotestsrc is-live=true ! video/x-raw,format=NV12,width=320,height=240,framerate=100/1 ! \
             framesharesink stream=g",
        );
        exporter.wait_for("open");
        let paths = ["s", "g"].map(|stream| stage.path(&format!("frameshare/{stream}.sock")));
        wait_until_listening(&paths[1]);
        let attack = |path: &Path| hostile(&stage, &format!("reader {} {name} stay", path.display()));
        let mut attackers = paths.each_ref().map(|path| attack(path));
        for attacker in &mut attackers {
            let done = attacker.wait_for("done");
            assert!(
                !(kernel == WITHOUT_PASSRIGHTS && is_foreign(&name) && done["refused"] == true),
                "{name}"
            );
        }
        // A user that sent too many descriptors is refused, and all processes here are of one user.
        if kernel == WITHOUT_PASSRIGHTS && name == "lingering-in-many-connections" {
            let error = stage.peer("read --stream s --frames 5").finish_badly();
            assert!(error.contains("cannot be closed"), "{error}");
        } else {
            stage.peer("read --stream s --frames 5").finish_well();
        }
        fs::write(stage.path("end"), "").expect("the folder is ours");
        sink.begin_interrupt();
        exporter.finish_well();
        sink.finish();
        attackers.iter_mut().for_each(Process::kill);
    }
}

#[test]
fn exporters_stop_after_each_attack() {
    exporters_stop(WITH_PASSRIGHTS);
}

#[test]
fn exporters_stop_after_each_attack_before_linux_6_16() {
    exporters_stop(WITHOUT_PASSRIGHTS);
}

/// A user who may connect and not read leaves blocking descriptors in its connection.
#[test]
fn unpermitted_user_with_blocking_descriptors_stops_nobody() {
    if !rustix::process::geteuid().is_root() {
        // Bypasses the harness's capture: skips are counted.
        let line = "SKIP hostile/unpermitted_user_with_blocking_descriptors_stops_nobody: root is needed\n";
        std::io::stdout().write_all(line.as_bytes()).expect("stdout is open");
        return;
    }
    for kernel in [WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS] {
        let stage = Stage::new();
        stage.open_to_others();
        let mut exporter = stage.peer_by(
            kernel,
            "export --socket s.sock --socket-mode 666 --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
        );
        exporter.wait_for("open");
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let (attacker, path) = (stage.path("hostile"), stage.path("s.sock"));
        let mut attackers = [(); 5].map(|()| {
            let attack = "lingering-unread-before-hello stay";
            stage.command(&format!("{nobody} {} reader {} {attack}", attacker.display(), path.display()))
        });
        for attacker in &mut attackers {
            attacker.wait_for("done");
        }
        stage.peer("read --socket s.sock --frames 5").finish_well();
        fs::write(stage.path("end"), "").expect("the folder is ours");
        exporter.finish_well();
        attackers.iter_mut().for_each(Process::kill);
    }
}
