// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs from seeds. A seed always gives the same program for the same languages.

use frameshare_tests::random::Random;

use crate::program::{Language, Process, Program};

/// Names of one kind of object in a thread.
const STREAMS: u64 = 4;
const SLOTS: u64 = 3;
const FRAMES: u64 = 4;

/// Returns the program of a seed.
pub fn program(seed: u64, languages: &[Language]) -> Program {
    let mut random = Random::new(seed);
    let random = &mut random;
    let exporters = if random.below(5) == 0 { 2 } else { 1 };
    let readers = pick(random, &[(1, 4), (2, 3), (0, 1)]).min(4 - exporters);
    let mut environment = vec![
        ("SIMCUDA_SEED".to_owned(), (1 + random.below(1000)).to_string()),
        (
            "SIMCUDA_DELAY_US".to_owned(),
            pick(random, &["100", "300", "1000"].map(|delay| (delay, 1))).to_owned(),
        ),
    ];
    if random.below(2) == 0 {
        environment.push(("SIMCUDA_ADVERSARY".to_owned(), "1".to_owned()));
    }
    let has_captures = random.below(4) == 0;
    let memory = pick(random, &[("auto", 4), ("pool", 2), ("legacy", if exporters == 1 { 2 } else { 0 })]);
    let mut processes: Vec<Process> = Vec::new();
    for index in 0..exporters + readers {
        let language = languages[random.below(languages.len() as u64) as usize];
        let is_exporter = index < exporters;
        let mut process =
            Process { language, export: is_exporter.then(|| export(random, memory)), threads: Vec::new() };
        let dies = random.below(16) == 0;
        let mortal: Vec<_> = processes.iter().map(|process| process.has("die")).collect();
        for thread in 0..1 + u64::from(random.below(3) == 0) {
            let streams = 1 + random.below(STREAMS);
            let mut calls = Calls { random, language, streams, has_captures, calls: Vec::new() };
            calls.streams();
            match is_exporter {
                true if thread == 0 || calls.random.below(2) == 0 => calls.export(readers),
                // An exporter's process may read streams, too.
                _ => calls.read(exporters, &mortal),
            }
            process.threads.push(calls.calls);
        }
        if dies {
            let thread = &mut process.threads[0];
            thread.insert(thread.len() / 2, "die".to_owned());
        }
        processes.push(process);
    }
    Program { environment, processes }
}

fn pick<T: Copy>(random: &mut Random, choices: &[(T, u64)]) -> T {
    let mut number = random.below(choices.iter().map(|choice| choice.1).sum());
    for (choice, weight) in choices {
        if number < *weight {
            return *choice;
        }
        number -= weight;
    }
    choices[0].0
}

fn export(random: &mut Random, memory: &str) -> String {
    let fence = pick(random, &[("auto", 4), ("event", 1)]);
    let slow = pick(random, &[("wait", 3), ("queue", 1), ("disconnect", 1)]);
    let slots = pick(random, &[(4, 1), (8, 2), (16, 2)]);
    format!(
        "memory={memory} fence={fence} slow={slow} slots={slots} history={}",
        u64::from(random.below(4) == 0)
    )
}

/// The calls of a thread.
struct Calls<'a> {
    random: &'a mut Random,
    language: Language,
    streams: u64,
    has_captures: bool,
    calls: Vec<String>,
}

impl Calls<'_> {
    fn call(&mut self, call: String) {
        self.calls.push(call);
    }

    fn name(&mut self, letter: char, count: u64) -> String {
        format!("{letter}{}", self.random.below(count))
    }

    fn stream(&mut self) -> String {
        self.name('s', self.streams)
    }

    fn streams(&mut self) {
        for number in 0..self.streams {
            self.new_stream(format!("s{number}"));
        }
    }

    fn new_stream(&mut self, name: String) {
        let kinds = [("nonblocking", 8), ("blocking", 2), ("legacy", 1), ("perthread", 1), ("other", 1)];
        let kind = pick(self.random, &kinds);
        self.call(format!("stream {name} {kind}"));
    }

    /// A call that any thread may make.
    fn other(&mut self) {
        let stream = self.stream();
        match self.random.below(if self.has_captures { 8 } else { 5 }) {
            0 => self.call(format!("destroy {stream}")),
            1 | 2 => self.new_stream(stream),
            3 => self.call(format!("sync {stream}")),
            4 => {
                let us = 100 << self.random.below(6);
                self.call(format!("pause {us}"));
            }
            5 | 6 => {
                let mode = pick(self.random, &[("global", 1), ("thread-local", 1), ("relaxed", 1)]);
                self.call(format!("capture {stream} {mode}"));
            }
            _ => self.call(format!("end-capture {stream}")),
        }
    }

    fn export(&mut self, readers: u64) {
        if self.random.below(4) > 0 {
            self.call(format!("await {readers}"));
        }
        for _ in 0..5 + self.random.below(25) {
            let (slot, stream) = (self.name('f', SLOTS), self.stream());
            match self.random.below(24) {
                0..12 => {
                    self.call(format!("acquire {slot}"));
                    self.call(format!("write {slot} {stream}"));
                    if self.random.below(8) == 0 {
                        self.call(format!("write {slot} {stream}"));
                    }
                    if self.random.below(8) == 0 {
                        self.other();
                    }
                    match self.random.below(16) {
                        0 => self.call(format!("fail {slot}")),
                        1 => self.call(format!("drop {slot}")),
                        2 => self.call(format!("discard {slot}")),
                        // Dropped or published later.
                        3 => {}
                        how => {
                            let how = if how < 6 { "somewhere" } else { "on" };
                            self.call(format!("publish {slot} {how}"));
                            if self.random.below(8) == 0 {
                                self.call(format!("destroy {stream}"));
                            }
                            if self.random.below(4) > 0 {
                                self.call(format!("drop {slot}"));
                            }
                        }
                    }
                }
                12..15 => {
                    let library = pick(self.random, &[("torch", 2), ("jax", 2), ("numba", 1)]);
                    self.call(format!("array {library} {stream}"));
                }
                15 => self.call(format!("publish {slot} on")),
                16 => self.call(format!("drop {slot}")),
                17 => {
                    let size = self.random.below(3);
                    self.call(format!("format {size}"));
                }
                18 => self.call("drain".to_owned()),
                19 if self.random.below(4) == 0 => self.call("end".to_owned()),
                20 if self.random.below(12) == 0 => self.call("close".to_owned()),
                _ => self.other(),
            }
        }
    }

    fn read(&mut self, exporters: u64, mortal: &[bool]) {
        self.open("r0", exporters, mortal);
        for _ in 0..5 + self.random.below(25) {
            let (frame, stream) = (self.name('a', FRAMES), self.stream());
            match self.random.below(24) {
                0..14 => {
                    self.call(format!("take {frame} r0"));
                    match self.random.below(12) {
                        // Released unread, or later.
                        0 | 1 => {}
                        2 => self.call(format!("plain {frame} {stream}")),
                        3 => {
                            self.call(format!("read {frame} {stream}"));
                            let second = self.stream();
                            self.call(format!("read {frame} {second}"));
                        }
                        4 => {
                            self.call(format!("used {frame} {stream}"));
                            self.call(format!("read {frame} {stream}"));
                        }
                        _ => self.call(format!("read {frame} {stream}")),
                    }
                    match self.random.below(8) {
                        0 => {
                            self.call(format!("done {frame} {stream}"));
                            self.call(format!("destroy {stream}"));
                        }
                        1 => self.call(format!("release {frame} {stream}")),
                        2 => self.call(format!("hand {frame}")),
                        3..6 => self.call(format!("drop {frame}")),
                        _ => {}
                    }
                }
                14 => self.call(format!("drop {frame}")),
                15 => self.call(format!("read {frame} {stream}")),
                16 => self.call(format!("fetch {frame}")),
                17 | 18 if self.language == Language::Python => self.call(format!("clone {frame}")),
                17 if self.random.below(4) == 0 => {
                    self.call("leave r0".to_owned());
                    if self.random.below(2) == 0 {
                        self.open("r0", exporters, mortal);
                    }
                }
                _ => self.other(),
            }
        }
    }

    /// `mortal` tells which exporters die: streams that wait for events of one never continue.
    fn open(&mut self, name: &str, exporters: u64, mortal: &[bool]) {
        let exporter = self.random.below(exporters);
        let is_known = mortal.get(exporter as usize).is_some_and(|dies| !dies);
        let event = if is_known && self.language == Language::Rust { 2 } else { 0 };
        let policy = pick(self.random, &[("lossless", 1), ("latest", 1)]);
        let held = 1 + self.random.below(4);
        let place = pick(self.random, &[("gpu", 6), ("host", 2), ("late", 1), ("event", event)]);
        self.call(format!("open {name} {exporter} {policy} {held} {place}"));
    }
}
