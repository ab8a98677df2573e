// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporters that start again under their readers, and others that want the same name.

use crate::times;
use frameshare_test_pipelines::Reader;
use frameshare_tests::{
    census::Census,
    process::{Process, TestRun},
};
use std::fs;

/// Frame rate of an exporter: a reader that gets one of the first `RATE` frames has joined within a
/// second.
const RATE: u64 = 200;
/// Number of runs after which all one-time resources exist.
const SETTLED: usize = 5;
/// More than the difference between runs, less than a leak: see [`Census::with_slots`].
const SLOTS: usize = 10;

fn start_exporter(run: &TestRun, number: usize, end: &str) -> Process {
    let mut exporter = run.peer(&format!(
        "export --stream s --frames 100000000 --fps {RATE} --size {} --readers 0 --until end-{number} --end {end} \
         --caps application/x-frameshare-test,run=(int){number}",
        4096 * (1 + number % 3)
    ));
    exporter.wait_for("open");
    exporter
}

#[test]
fn readers_survive_fifty_restarts() {
    let run = TestRun::new();
    let runs = times(50);
    let mut exporter = start_exporter(&run, 0, "stop");
    let mut peers = ["lossless", "latest", "lossless"].map(|policy| {
        run.peer(&format!(
            "read --stream s --verify yes --quiet yes --reconnect yes --timeout-ms 60000 --policy {policy}"
        ))
    });
    let pipeline = Reader::start(&run, "s", "on-disconnect=wait");
    let mut session = pipeline.next().expect("a frame").session;
    let mut settled = None;
    let mut late = Vec::new();
    for number in 0..runs {
        let mut latest = 0;
        for peer in &mut peers {
            assert!(peer.wait_for("format")["caps"].as_str().unwrap().ends_with(&format!("(int){number}")));
            latest = latest.max(peer.wait_for("first")["sequence"].as_u64().unwrap());
        }
        if number > 0 {
            let resumed = loop {
                let arrival = pipeline.next().expect("the stream goes on");
                if arrival.session != session {
                    break arrival;
                }
            };
            assert!(resumed.is_discont, "run {number}");
            latest = latest.max(resumed.sequence);
            let caps = resumed.caps.structure(0).unwrap();
            assert_eq!(caps.get::<i32>("run").unwrap(), number as i32);
            session = resumed.session;
        }
        assert!(latest <= 10 * RATE, "run {number}: a reader comes to frame {latest} first");
        if latest > RATE {
            late.push((number, latest));
        }
        let census = || peers.each_ref().map(|peer| Census::in_run(peer.pid(), &run));
        match &settled {
            None if number == SETTLED => settled = Some(census().map(|census| census.with_slots(SLOTS))),
            Some(before) if number == runs - 1 => {
                before
                    .iter()
                    .zip(&peers)
                    .for_each(|(before, peer)| before.assert_no_growth(peer.pid(), &run));
            }
            _ => {}
        }
        if number + 1 < runs {
            // Killed, or stopped normally without an end of stream.
            if number % 2 == 0 {
                exporter.kill();
            } else {
                fs::write(run.path(&format!("end-{number}")), "").unwrap();
                exporter.expect_success();
            }
            exporter = start_exporter(&run, number + 1, if number + 2 < runs { "stop" } else { "eos" });
        }
    }
    // Other load may delay a reader by a second. One that waits so long after each kill, or after
    // each stop, is late in half of the runs.
    assert!(late.len() <= runs / 4, "runs that readers came late to, and by how many frames: {late:?}");
    fs::write(run.path(&format!("end-{}", runs - 1)), "").unwrap();
    for (number, peer) in peers.into_iter().enumerate() {
        let outcome = peer.expect_success();
        let summary = outcome.summary();
        assert_eq!((&summary["bad"], &summary["end"]), (&0.into(), &"eos".into()), "{summary}");
        assert_eq!(outcome.events("reconnected").len(), runs - 1);
        assert!(number == 1 || summary["lost"] == 0, "a lossless reader lost frames: {summary}");
    }
    assert!(pipeline.rest().iter().all(|arrival| arrival.session == session));
    exporter.expect_success();
}

#[test]
fn one_of_several_exporters_gets_name() {
    let run = TestRun::new();
    for round in 0..times(5) {
        // In place of a dead exporter's socket, except in the first round.
        assert_eq!(run.path("frameshare/s.sock").exists(), round > 0);
        let rivals: [Process; 6] =
            std::array::from_fn(|_| run.peer("export --stream s --frames 5 --size 5000 --end hang"));
        let reader = run.peer("read --stream s --policy lossless --verify yes --frames 5");
        reader.expect_success();
        let mut winners = Vec::new();
        for mut rival in rivals {
            if rival.find_event("open").is_some() {
                winners.push(rival);
            } else {
                let error = rival.expect_failure();
                assert!(error.contains("in use"), "{error}");
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        winners.iter_mut().for_each(Process::kill);
    }
}
