// SPDX-License-Identifier: MIT OR Apache-2.0

//! The world of a stream: one exporter and its readers, with the real decisions of both sides and
//! the real queue between them.
//!
//! | module | is responsible for |
//! | --- | --- |
//! | `memory` | slots: their content, and the rule that no process writes one that another accesses |
//! | `words`, `channel` | shared pages, sockets, wake-ups, the end of processes |
//! | `gpu` | GPU work, fences, downloads |
//! | `system` | what core asks of the system |
//! | `exporter`, `reader` | the two sides: locks, waits, turns, sleeps |
//! | `process` | numbers of processes |
//! | `publisher` | what the application of the exporter does |
//! | `rules` | what holds whenever the state is unlocked |
//! | `record`, `outcome` | what happened, and what runs are meant to reach |

pub(crate) mod channel;
pub(crate) mod exporter;
mod files;
pub(crate) mod gpu;
pub(crate) mod memory;
mod outcome;
pub(crate) mod process;
mod publisher;
pub(crate) mod reader;
pub(crate) mod record;
mod rules;
pub(crate) mod system;
pub(crate) mod words;

pub use outcome::Outcome;

use crate::{
    choices::Choices,
    run::{Report, Run, World},
    settings::{Clock, Preemption, Settings},
    task::{block, chance, choose, kill, now, spawn},
    trace,
};
use exporter::Exporter;
use frameshare_core::exporter::{
    limits::{Limits, SlowReaders},
    peer::Peer,
};
use frameshare_protocol::{FenceKind, MemoryKind, Policy};
use process::{EXPORTER, FATE, FIRST_PID};
use publisher::Plan;
use reader::Behaviour;
use record::Record;
use std::{rc::Rc, time::Duration};
use system::Shortages;

/// The world of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream;

/// The choices that are made before a run.
#[derive(Clone, Debug)]
struct Setting {
    exporter: exporter::Settings,
    plan: Plan,
    readers: Vec<Behaviour>,
    /// Readers are killed.
    kills: bool,
    /// The exporter is killed.
    kills_exporter: bool,
    is_regular: bool,
    mean: u32,
}

impl World for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn outcomes(&self) -> &'static [&'static str] {
        Outcome::NAMES
    }

    fn run(&self, mut run: Run) -> Report {
        let setting = Setting::choose(run.choices());
        let clock = Clock {
            fault_one_in: if setting.is_regular { 0 } else { 50 },
            jump: Duration::from_secs(3),
            ..Clock::default()
        };
        let preemption = Preemption::Sparse { mean: setting.mean };
        let settings = Settings { preemption, clock, steps: 3_000_000, ..Settings::default() };
        let record = Rc::new(Record::default());
        record.is_regular.set(setting.is_regular);
        let kept = record.clone();
        let kills_exporter = setting.kills_exporter;
        let mut report = run.start(&settings, || {
            trace!("{setting:?}");
            begin(setting, &record);
        });
        report.fail_unless_done();
        if matches!(report.end, crate::end::End::Done) && !kills_exporter {
            check_end(&kept, &mut report);
        }
        report
    }
}

/// In the end nothing is held, and all memory is free.
pub(crate) fn check_end(record: &Record, report: &mut Report) {
    let kept = *record.kept_alive.lock().unwrap_or_else(|error| error.into_inner());
    if kept > 0 {
        report.fail(format!("the user data of {kept} publications was never dropped"));
    }
    let allocated = record.allocated.lock().unwrap_or_else(|error| error.into_inner());
    let left = allocated.iter().filter(|memory| memory.get().is_some()).count();
    if left > 0 {
        report.fail(format!("{left} slots were never freed"));
    }
}

/// Spawns the processes of a run.
fn begin(setting: Setting, record: &Rc<Record>) {
    let exporter = Exporter::new(EXPORTER, &setting.exporter, record);
    let service = exporter.clone();
    spawn(EXPORTER, "service", move || service.serve());
    publisher::begin(EXPORTER, &exporter, record, &setting.plan);
    let count = setting.readers.len() as u32;
    for (index, behaviour) in setting.readers.into_iter().enumerate() {
        let process = EXPORTER + 1 + index as u32;
        let (exporter, record) = (exporter.clone(), record.clone());
        spawn(process, "reader", move || {
            gpu::take_time("before it joins", [0, 1000, 300_000][choose(3) as usize]);
            reader::run(process, &exporter, &record, behaviour);
            gpu::take_time("before its process ends", 1000);
            record.end_process(process);
        });
    }
    if setting.kills || setting.kills_exporter {
        let record = record.clone();
        spawn(FATE, "fate", move || {
            for _ in 0..3 {
                wait(chance(3));
                if setting.kills_exporter && chance(2) {
                    Outcome::ExporterDied.reach();
                    record.has_exporter_died.set(true);
                    kill(EXPORTER);
                    record.channels.borrow().values().for_each(channel::Channel::exit_exporter);
                    return;
                }
                if setting.kills {
                    let process = EXPORTER + 1 + choose(count);
                    if record.killed.borrow_mut().insert(process) {
                        trace!("kills reader {process}");
                        Outcome::Died.reach();
                        if record.holding.borrow().contains(&process) {
                            Outcome::DiedHolding.reach();
                        }
                        kill(process);
                        record.end_process(process);
                    }
                }
            }
        });
    }
}

/// Waits for some time, a long or a short one.
fn wait(is_long: bool) {
    let us = if is_long { choose(200_000) } else { choose(3000) };
    block("wait", Some(now() + Duration::from_micros(u64::from(us))), || false);
}

impl Setting {
    fn choose(choices: &mut Choices) -> Self {
        let kinds = [MemoryKind::Host, MemoryKind::Vmm, MemoryKind::Legacy, MemoryKind::Pool];
        let kind = kinds[choices.weighted(&[4, 2, 1, 1])];
        let count = 1 + choices.weighted(&[4, 4, 2, 2, 1, 1, 1, 1]) as u32;
        let slow_readers = *choices.among(&[
            SlowReaders::Wait,
            SlowReaders::QueueThenWait,
            SlowReaders::QueueThenDisconnect,
        ]);
        let has_faults = choices.chance(3);
        let is_regular = !choices.chance(4);
        // A clock that jumps gives work up that is about to end.
        let fence_timeout = Duration::from_millis(if is_regular { 500 } else { 1_000_000 });
        let limits = Limits {
            max_slots: 4 + choices.choose(16),
            max_held: 1 + choices.choose(5),
            reader_timeout: Duration::from_millis(*choices.among(&[200, 1000])),
            slow_readers,
            keeps_frames: choices.chance(3),
            history_pause: Duration::from_millis(*choices.among(&[0, 5])),
            max_queued_bytes: *choices.among(&[1 << 20, 3 * 4096]),
            max_queued_time: Duration::from_millis(*choices.among(&[2000, 20])),
            fence_timeout,
            max_retired_bytes: *choices.among(&[1 << 20, 2 * 4096, 20_000]),
            max_gop_bytes: *choices.among(&[1 << 20, 3 * 4200]),
        };
        let shortages = match has_faults {
            true => Shortages {
                memory: *choices.among(&[0, 10]),
                descriptors: *choices.among(&[0, 5]),
                payloads: *choices.among(&[0, 4]),
                downloads: *choices.among(&[0, 4]),
                gpu: *choices.among(&[0, 0, 0, 40]),
            },
            false => Shortages::default(),
        };
        let fence = *choices.among(&[FenceKind::Timeline, FenceKind::Event]);
        let exporter =
            exporter::Settings { kind, fence, limits, shortages, whole_descriptors: false, inspect: |_| () };
        let plan = Plan::choose(choices, kind);
        let readers = (0..count).map(|index| behaviour(choices, index, kind, is_regular)).collect();
        Self {
            exporter,
            plan,
            readers,
            kills: choices.chance(3),
            kills_exporter: choices.chance(12),
            is_regular,
            mean: *choices.among(&[200, 30, 6]),
        }
    }
}

fn behaviour(choices: &mut Choices, index: u32, kind: MemoryKind, is_regular: bool) -> Behaviour {
    let is_other = choices.chance(5);
    let peer = Peer {
        pid: FIRST_PID + index,
        uid: if is_other { 2000 } else { 1000 },
        is_own: !is_other,
        is_own_or_root: !is_other,
        is_in_this_process: false,
        is_trusted: !is_other,
        may_have_gpu_memory: !is_other,
        may_queue: !is_other || choices.chance(2),
    };
    Behaviour {
        policy: *choices.among(&[Policy::Latest, Policy::Lossless]),
        credit: choices.choose(5),
        max_queued: choices.choose(4),
        peer,
        on_gpu: kind.is_gpu() && !is_other && !choices.chance(3),
        max_gop_bytes: *choices.among(&[1 << 20, 0]),
        holds_us: *choices.among(&[0, 50, 5000]),
        holds: choices.choose(3) as usize,
        in_batches: choices.chance(4),
        gpu_us: *choices.among(&[0, 100, 10_000]),
        endless: if is_regular && choices.chance(10) { 20 } else { 0 },
        leaves_after: if choices.chance(3) { 1 + choices.choose(20) } else { 0 },
        lies: if choices.chance(8) { 10 } else { 0 },
        fails_to_import: if choices.chance(10) { 6 } else { 0 },
        pauses_ms: *choices.among(&[0, 0, 20, 1500]),
        on_socket: choices.chance(4),
        room: 2 + choices.choose(12) as usize,
        gives_up: None,
        is_blameless: false,
    }
}
