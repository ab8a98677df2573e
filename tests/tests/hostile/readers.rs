// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile readers, against an exporter that continues publishing to two honest ones.

use super::{
    WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, attacks, for_each_attack, is_foreign, wait_until_listening,
};
use frameshare_tests::{
    census::Census,
    process::{PATIENCE, Process, TestRun},
    skip,
};
use std::{collections::HashMap, fs, path::Path, time::Instant};

/// Default of an exporter's `max-slots`.
const MAX_SLOTS: usize = 512;
/// Maximum growth of the exporter in kilobytes between two rounds of all attacks: its allocator
/// keeps some memory.
const GROWTH_KB: u64 = 4096;

#[test]
fn hostile_readers_are_evicted_without_effect_on_others() {
    let run = TestRun::new();
    let mut exporter =
        run.peer("export --stream s --frames 100000000 --size 20000 --fps 300 --until end --readers 2");
    exporter.wait_for("open");
    let read = |policy: &str| {
        run.peer(&format!(
            "read --stream s --policy {policy} --verify yes --quiet yes --max-held 4 --timeout-ms 60000"
        ))
    };
    let (lossless, latest) = (read("lossless"), read("latest"));
    let path = run.path("frameshare/s.sock");
    let mut fates = HashMap::new();
    let mut attack_all = || {
        for name in attacks(&run, "reader") {
            let attacker = run.hostile(&format!("reader {} {name}", path.display()));
            let pid = attacker.pid();
            let outcome = attacker.expect_success();
            let done = outcome.events("done").pop().expect("the attacker reports its end");
            fates.insert(pid, (name, done["fate"].as_str().expect("a word").to_owned()));
        }
    };
    attack_all();
    // The number of slots depends on the speed of releases.
    let before = Census::in_run(exporter.pid(), &run).with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
    attack_all();
    before.assert_no_growth(exporter.pid(), &run);

    fs::write(run.path("end"), "").expect("the folder is ours");
    let exporter = exporter.expect_success();
    let published = exporter.summary()["published"].clone();
    let [lossless, latest] = [lossless, latest].map(|reader| reader.expect_success().summary());
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

/// The encoder could make the stream worse for its other readers if it got each request.
#[test]
fn flood_of_requests_asks_for_one_key_unit_a_second() {
    let run = TestRun::new();
    let mut exporter = run
        .peer("export --stream s --frames 100000000 --size 20000 --fps 300 --gop 30 --until end --readers 1");
    exporter.wait_for("open");
    let mut honest = run.peer("read --stream s --policy lossless --verify yes --quiet yes");
    honest.wait_for("first");
    let begin = Instant::now();
    let path = run.path("frameshare/s.sock");
    run.hostile(&format!("reader {} flood-key-units", path.display())).expect_success();
    exporter.wait_for("removed");
    fs::write(run.path("end"), "").expect("the folder is ours");
    let exporter = exporter.expect_success();
    // Thousands were sent.
    let (asked, most) = (exporter.events("KeyUnitWanted").len() as u64, 1 + begin.elapsed().as_secs());
    assert!((1..=most).contains(&asked), "{asked} requests in {:?}", begin.elapsed());
    let honest = honest.expect_success().summary();
    let published = &exporter.summary()["published"];
    assert_eq!((&honest["frames"], &honest["lost"], &honest["bad"]), (published, &0.into(), &0.into()));
}

/// An exporter of the engine and the sink, new for each attack, stop in time while the attacker is
/// still present.
fn exporters_stop(kernel: &str) {
    for_each_attack("reader", |name| {
        let run = TestRun::new();
        let mut exporter = run.peer_by(
            kernel,
            "export --stream s --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
        );
        let sink = run.gst_by(
            kernel,
            "videotestsrc is-live=true ! video/x-raw,format=NV12,width=320,height=240,framerate=100/1 ! \
             framesharesink stream=g",
        );
        exporter.wait_for("open");
        let paths = ["s", "g"].map(|stream| run.path(&format!("frameshare/{stream}.sock")));
        wait_until_listening(&paths[1]);
        let attack = |path: &Path| run.hostile(&format!("reader {} {name} stay", path.display()));
        let mut attackers = paths.each_ref().map(|path| attack(path));
        for attacker in &mut attackers {
            let done = attacker.wait_for("done");
            assert!(!(kernel == WITHOUT_PASSRIGHTS && is_foreign(name) && done["refused"] == true), "{name}");
        }
        // A user that sent too many descriptors is refused, and all processes here are of one user.
        // The exporter may have more connections to look at before.
        if kernel == WITHOUT_PASSRIGHTS && name == "lingering-in-many-connections" {
            let until = Instant::now() + PATIENCE;
            let refused = loop {
                let outcome = run.peer("read --stream s --frames 5 --timeout-ms 60000").finish();
                if !outcome.ok {
                    break outcome;
                }
                assert!(Instant::now() < until, "readers of this user are not refused");
            };
            if !refused.stderr.contains("cannot be closed") {
                panic!("{name}: {}; the exporter: {}", refused.stderr, exporter.kill_for_stderr());
            }
        } else {
            run.peer("read --stream s --frames 5 --timeout-ms 60000").expect_success();
        }
        fs::write(run.path("end"), "").expect("the folder is ours");
        sink.interrupt();
        exporter.expect_success();
        sink.finish();
        attackers.iter_mut().for_each(Process::kill);
    });
}

#[test]
fn exporters_stop_after_each_attack() {
    if skip::has_passrights("hostile/exporters_stop_after_each_attack") {
        exporters_stop(WITH_PASSRIGHTS);
    }
}

#[test]
fn exporters_stop_after_each_attack_before_linux_6_16() {
    exporters_stop(WITHOUT_PASSRIGHTS);
}

/// A user who may connect and not read leaves blocking descriptors in its connection.
#[test]
fn blocking_descriptors_of_denied_user_stop_no_reader() {
    if !skip::is_root("hostile/blocking_descriptors_of_denied_user_stop_no_reader") {
        return;
    }
    for kernel in [WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS] {
        let run = TestRun::new();
        run.open_to_others();
        let mut exporter = run.peer_by(
            kernel,
            "export --socket s.sock --socket-mode 666 --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
        );
        exporter.wait_for("open");
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let (attacker, path) = (run.path("hostile"), run.path("s.sock"));
        let mut attackers = [(); 5].map(|()| {
            let attack = "lingering-unread-before-hello stay";
            run.command(&format!("{nobody} {} reader {} {attack}", attacker.display(), path.display()))
        });
        for attacker in &mut attackers {
            attacker.wait_for("done");
        }
        run.peer("read --socket s.sock --frames 5 --timeout-ms 60000").expect_success();
        fs::write(run.path("end"), "").expect("the folder is ours");
        exporter.expect_success();
        attackers.iter_mut().for_each(Process::kill);
    }
}
