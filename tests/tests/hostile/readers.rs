// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile readers, against an exporter that continues publishing to two honest ones.

use super::{
    WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, attacks, for_each_attack, is_foreign, wait_until_listening,
};
use frameshare::{Endpoint, observer::Observer};
use frameshare_tests::{
    census::Census,
    process::{PATIENCE, Process, TestRun, wait_until},
    repeat::times,
    skip,
};
use serde_json::Value;
use std::{collections::HashMap, fs, path::Path, time::Instant};

/// Default of an exporter's `max-slots`.
const MAX_SLOTS: usize = 512;
/// Maximum growth of the exporter in kilobytes between two rounds of all attacks: its allocator
/// keeps some memory.
const GROWTH_KB: u64 = 4096;
/// The attack after which an exporter on a kernel without SO_PASSRIGHTS refuses its user.
const MANY_BLOCKING: &str = "lingering-in-many-connections";

/// Runs all attacks twice beside two honest readers.
fn hostile_readers_are_evicted(kernel: &str) {
    let run = TestRun::new();
    let mut exporter = run.peer_by(
        kernel,
        "export --stream s --frames 100000000 --size 20000 --fps 300 --until end --readers 2",
    );
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
            // Afterwards the user of all processes here is refused.
            if kernel == WITHOUT_PASSRIGHTS && name == MANY_BLOCKING {
                continue;
            }
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

#[test]
fn hostile_readers_are_evicted_without_effect_on_others() {
    if skip::has_passrights("hostile/hostile_readers_are_evicted_without_effect_on_others") {
        hostile_readers_are_evicted(WITH_PASSRIGHTS);
    }
}

#[test]
fn hostile_readers_are_evicted_before_linux_6_16() {
    hostile_readers_are_evicted(WITHOUT_PASSRIGHTS);
}

/// The encoder could make the stream worse for its other readers if it got each request.
#[test]
fn flood_of_messages_asks_for_one_key_unit_a_second() {
    let run = TestRun::new();
    let mut exporter = run
        .peer("export --stream s --frames 100000000 --size 20000 --fps 300 --gop 30 --until end --readers 1");
    exporter.wait_for("open");
    let mut honest = run.peer("read --stream s --policy lossless --verify yes --quiet yes");
    honest.wait_for("first");
    let begin = Instant::now();
    let path = run.path("frameshare/s.sock");
    let before = Census::in_run(exporter.pid(), &run).with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
    run.hostile(&format!("reader {} flood-messages", path.display())).expect_success();
    exporter.wait_for("removed");
    before.assert_no_growth(exporter.pid(), &run);
    fs::write(run.path("end"), "").expect("the folder is ours");
    let exporter = exporter.expect_success();
    // 100,000 were sent.
    let (asked, most) = (exporter.events("KeyUnitWanted").len() as u64, 1 + begin.elapsed().as_secs());
    assert!((1..=most).contains(&asked), "{asked} requests in {:?}", begin.elapsed());
    let honest = honest.expect_success().summary();
    let published = &exporter.summary()["published"];
    assert_eq!((&honest["frames"], &honest["lost"], &honest["bad"]), (published, &0.into(), &0.into()));
}

/// Connections of the exporter's user, of one that may read and of one that may not: one after the
/// other, and as many at once as the limits allow. They cost an honest reader nothing, leave
/// nothing behind, and do not delay the exporter's stop.
#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    if !skip::is_root("hostile/ten_thousand_connections_leave_nothing_behind") {
        return;
    }
    const USERS: [&str; 3] = [
        "env",
        "setpriv --reuid 4001 --regid 4001 --clear-groups",
        "setpriv --reuid 4002 --regid 4002 --clear-groups",
    ];
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(
        "export --socket s.sock --socket-mode 666 --allowed-uids 4001 --frames 100000000 --size 20000 --fps 300 \
         --until end --readers 1",
    );
    exporter.wait_for("open");
    let honest = run.peer(
        "read --socket s.sock --policy lossless --verify yes --quiet yes --max-held 4 --timeout-ms 60000",
    );
    let (hostile, path) = (run.path("hostile"), run.path("s.sock"));
    let endpoint = Endpoint::at(&path).expect("the path is short");
    let hostile = |by: &str, role: &str, count: &str| {
        run.command(&format!("{by} {} {role} {} {count}", hostile.display(), path.display()))
    };
    let check = |role: &str, readers: [Value; 3]| {
        println!("{role}: {readers:?} readers");
        let [own, allowed, denied] = readers.map(|number| number.as_u64().expect("a number"));
        assert!(own > 0 && allowed > 0 && denied == 0, "{role}: {own}, {allowed}, {denied} readers");
    };
    let fill = || {
        let mut all = USERS.map(|by| hostile(by, "fill", ""));
        check("fill", all.each_mut().map(|one| one.wait_for("full")["readers"].clone()));
        all
    };
    let wait_until_honest_is_alone = || {
        wait_until("the honest reader is the only one", || {
            let snapshot = Observer::connect(&endpoint, PATIENCE);
            snapshot.is_ok_and(|observer| observer.latest().readers.len() == 1)
        });
    };
    let attack = |count: usize| {
        let all = USERS.map(|by| hostile(by, "connect", &(count / USERS.len()).to_string()));
        check("connect", all.map(|one| one.expect_success().events("done")[0]["readers"].clone()));
        fill().iter_mut().for_each(Process::kill);
        wait_until_honest_is_alone();
    };
    // The exporter publishes from its first reader on.
    wait_until_honest_is_alone();
    attack(1_000);
    let before = Census::in_run(exporter.pid(), &run).with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
    // One more for each connection would be thousands.
    let before = before.with_descriptors(64);
    attack(times(10_000));
    before.assert_no_growth(exporter.pid(), &run);

    let mut present = fill();
    fs::write(run.path("end"), "").expect("the folder is ours");
    let exporter = exporter.expect_success();
    let (summary, honest) = (exporter.summary(), honest.expect_success().summary());
    assert_eq!(
        (&honest["frames"], &honest["lost"], &honest["bad"], &honest["end"]),
        (&summary["published"], &0.into(), &0.into(), &"eos".into()),
        "{honest}"
    );
    assert!(summary["longest_wait_ms"].as_u64() < Some(4000), "{summary}");
    present.iter_mut().for_each(Process::kill);
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
        if kernel == WITHOUT_PASSRIGHTS && name == MANY_BLOCKING {
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
