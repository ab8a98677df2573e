// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks: preemption, waits, virtual time, kills, and the ends of runs.

use frameshare_simulation::{
    choices::Choices,
    end::End,
    enumeration::Enumeration,
    run::{Report, Run},
    settings::{Clock, Preemption, Settings},
    task::{self, block, chance, choose, is_dying, kill, now, pause, process, spawn, step, stop},
    time::Time,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    panic::catch_unwind,
    rc::Rc,
    time::Duration,
};

fn run(setup: impl FnOnce()) -> Report {
    Run::new(Choices::seeded(1)).start(&Settings::default(), setup)
}

fn each_run(settings: &Settings, mut world: impl FnMut(Run, &Settings) -> Report) -> u64 {
    let mut enumeration = Enumeration::new();
    while let Some(choices) = enumeration.next() {
        let report = world(Run::new(choices), settings);
        enumeration.learn(report.choices);
    }
    enumeration.runs()
}

fn each_step() -> Settings {
    Settings { preemption: Preemption::Each, ..Settings::default() }
}

/// Sets a flag when dropped, and takes steps while it does.
struct Witness(Rc<Cell<u32>>);

impl Drop for Witness {
    fn drop(&mut self) {
        step("in a destructor");
        assert!(!block("in a destructor", None, || false));
        assert_eq!(choose(5), 0);
        self.0.set(self.0.get() + if is_dying() { 1 } else { 100 });
    }
}

#[test]
fn all_orders_of_two_tasks_are_enumerated() {
    let orders = RefCell::new(BTreeSet::new());
    let runs = each_run(&each_step(), |run, settings| {
        let log = Rc::new(RefCell::new(String::new()));
        let report = run.start(settings, || {
            for name in ["a", "b"] {
                let log = Rc::clone(&log);
                spawn(0, name, move || {
                    for _ in 0..2 {
                        step("write");
                        log.borrow_mut().push_str(name);
                    }
                });
            }
        });
        orders.borrow_mut().insert(log.take());
        report
    });
    let orders: Vec<_> = orders.into_inner().into_iter().collect();
    assert_eq!(orders, ["aabb", "abab", "abba", "baab", "baba", "bbaa"]);
    // One more choice than writes: before the first step of each task.
    assert_eq!(runs, 20);
}

#[test]
fn bound_on_deviations_leaves_fewer_runs() {
    let runs = |deviations| {
        each_run(&Settings { deviations, ..each_step() }, |run, settings| {
            run.start(settings, || {
                for name in ["a", "b"] {
                    spawn(0, name, || (0..4).for_each(|_| step("work")));
                }
            })
        })
    };
    // With one deviation, the second task first, or after any of the four steps of the first.
    assert_eq!((runs(0), runs(1)), (1, 6));
    let (two, all) = (runs(2), runs(u32::MAX));
    assert!((7..40).contains(&two) && all == 252, "{two} and {all} runs");
}

#[test]
fn kill_hits_at_each_step() {
    let reached = RefCell::new(BTreeSet::new());
    each_run(&each_step(), |run, settings| {
        let (steps, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let report = run.start(settings, || {
            let witness = Witness(Rc::clone(&dropped));
            let count = Rc::clone(&steps);
            spawn(1, "victim", move || {
                let _witness = witness;
                for _ in 0..5 {
                    step("count");
                    count.set(count.get() + 1);
                }
                block("wait to die", None, || false);
            });
            spawn(2, "killer", || {
                step("kill");
                kill(1);
            });
        });
        assert_eq!(report.end, End::Done);
        assert_eq!(dropped.get(), 1, "the destructor runs once, and knows that it is dying");
        reached.borrow_mut().insert(steps.get());
        report
    });
    assert_eq!(reached.into_inner(), (0..=5).collect());
}

#[test]
fn own_process_can_be_killed_and_begun_anew() {
    let dropped = Rc::new(Cell::new(0));
    let witness = Witness(Rc::clone(&dropped));
    let count = Rc::new(Cell::new(0));
    let lives = Rc::clone(&count);
    let report = run(move || {
        spawn(1, "first", move || {
            let _witness = witness;
            assert_eq!(process(), Some(1));
            spawn(2, "parent", move || {
                block("wait", Some(Time::from_nanos(1_000_000)), || false);
                spawn(1, "second", move || lives.set(lives.get() + 1));
            });
            kill(1);
            unreachable!("the task is dead");
        });
    });
    assert_eq!(report.end, End::Done);
    assert_eq!((count.get(), dropped.get()), (1, 1));
}

#[test]
fn code_that_catches_its_death_takes_no_further_step() {
    let count = Rc::new(Cell::new(0));
    let steps = Rc::clone(&count);
    let report = run(|| {
        spawn(1, "stubborn", move || {
            loop {
                let _ = catch_unwind(|| block("wait", None, || false));
                step("go on");
                steps.set(steps.get() + 1);
            }
        });
        spawn(2, "killer", || kill(1));
    });
    assert_eq!((report.end, count.get()), (End::Done, 0));
}

#[test]
fn time_jumps_to_the_earliest_deadline() {
    let times = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&times);
    let settings =
        Settings { clock: Clock { tick: Duration::ZERO, ..Clock::default() }, ..Settings::default() };
    let report = Run::new(Choices::seeded(1)).start(&settings, move || {
        for delay in [30, 10, 20] {
            let log = Rc::clone(&log);
            spawn(0, format!("after {delay} s"), move || {
                let until = now() + Duration::from_secs(delay);
                assert!(!block("sleep", Some(until), || false));
                log.borrow_mut().push((delay, now() - Time::ZERO));
            });
        }
    });
    assert_eq!(report.end, End::Done);
    let expected = [10, 20, 30].map(|seconds| (seconds, Duration::from_secs(seconds)));
    assert_eq!(times.take(), expected);
}

#[test]
fn blocked_task_wakes_when_its_condition_holds() {
    for seed in 0..100 {
        let ready = Rc::new(Cell::new(false));
        let seen = Rc::clone(&ready);
        let report = Run::new(Choices::seeded(seed)).start(&Settings::default(), || {
            spawn(0, "waiter", move || {
                let is_ready = || {
                    step("no preemption in a condition");
                    seen.get()
                };
                assert!(block("wait", Some(now() + Duration::from_secs(1)), is_ready));
            });
            spawn(0, "setter", move || {
                (0..20).for_each(|_| step("work"));
                ready.set(true);
            });
        });
        assert_eq!(report.end, End::Done, "seed {seed}");
        assert!(report.time < Time::from_nanos(1_000_000));
    }
}

#[test]
fn run_without_progress_is_stuck_and_says_where() {
    let report = run(|| {
        spawn(3, "reader", || {
            block("wait for a frame", None, || false);
        });
        spawn(4, "writer", || ());
    });
    assert_eq!(report.end, End::Stuck(vec!["p3 reader: wait for a frame".into()]));
}

#[test]
fn endless_run_is_too_long() {
    let settings = Settings { steps: 1_000, ..Settings::default() };
    for code in [|| step("spin"), || pause("spin")] {
        let report = Run::new(Choices::seeded(1)).start(&settings, || {
            (0..2).for_each(|process| {
                spawn(process, "spinner", move || {
                    loop {
                        code();
                    }
                })
            });
        });
        assert_eq!((report.end, report.steps), (End::TooLong, 1_000));
    }
}

#[test]
fn paused_task_lets_all_others_go_first() {
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    let report = Run::new(Choices::listed(vec![])).start(&Settings::default(), || {
        spawn(0, "spinner", move || {
            while seen.get() < 3 {
                pause("spin");
            }
        });
        for _ in 0..3 {
            let count = Rc::clone(&count);
            spawn(0, "worker", move || count.set(count.get() + 1));
        }
    });
    assert_eq!((report.end, report.steps), (End::Done, 1));
}

#[test]
fn stop_ends_the_run_and_kills_the_others() {
    let dropped = Rc::new(Cell::new(0));
    let witnesses = [(); 2].map(|()| Witness(Rc::clone(&dropped)));
    let report = run(move || {
        for witness in witnesses {
            spawn(1, "endless", move || {
                let _witness = witness;
                loop {
                    step("work");
                }
            });
        }
        spawn(2, "end", || {
            step("end");
            stop();
        });
    });
    assert_eq!((report.end, dropped.get()), (End::Done, 2));
}

#[test]
fn panic_fails_the_run_and_spares_the_process() {
    let report = run(|| {
        let witness = Witness(Rc::default());
        spawn(1, "careless", move || {
            let _witness = witness;
            step("before");
            panic!("slot {} is in use", 5);
        });
        spawn(2, "other", || {
            loop {
                step("work");
            }
        });
    });
    let failure = report.failure().expect("the run fails");
    assert_eq!(failure.what, "slot 5 is in use");
    assert!(failure.place.contains("scheduling.rs"));
    // Panics in the setup, in a condition, and of a task that was never begun.
    assert!(run(|| panic!("setup")).failure().is_some());
    let report = run(|| {
        spawn(0, "waiter", || {
            block("wait", None, || panic!("condition"));
        });
    });
    assert_eq!(report.failure().expect("the run fails").what, "condition");
    assert_eq!(run(|| spawn(0, "next", || ())).end, End::Done);
}

#[test]
fn faulty_clocks_stand_jump_and_differ() {
    let settings = Settings {
        preemption: Preemption::Sparse { mean: 3 },
        clock: Clock {
            tick: Duration::from_nanos(10),
            fault_one_in: 4,
            jump: Duration::from_secs(10),
            skew: Duration::from_secs(1_000),
        },
        ..Settings::default()
    };
    let (mut longest, mut skewed) = (Time::ZERO, 0);
    for seed in 0..100 {
        let clocks = Rc::new(RefCell::new(Vec::new()));
        let report = Run::new(Choices::seeded(seed)).start(&settings, || {
            for process in 0..2 {
                let clocks = Rc::clone(&clocks);
                spawn(process, "clock", move || {
                    let mut last = now();
                    for _ in 0..20 {
                        step("work");
                        assert!(now() >= last, "clocks do not go back");
                        last = now();
                    }
                    clocks.borrow_mut().push(last);
                });
            }
        });
        assert_eq!(report.end, End::Done);
        longest = longest.max(report.time);
        let clocks = clocks.take();
        let apart = (clocks[0] - clocks[1]).max(clocks[1] - clocks[0]);
        skewed += u32::from(apart > Duration::from_secs(200));
    }
    assert!(longest > Time::from_nanos(1_000_000_000), "the longest run took {longest}");
    assert!((50..100).contains(&skewed), "the clocks of {skewed} of 100 runs differ");
}

#[test]
fn steps_take_virtual_time() {
    let end = Rc::new(Cell::new(Time::ZERO));
    let seen = Rc::clone(&end);
    let report = run(move || {
        spawn(0, "clock", move || {
            (0..1_000).for_each(|_| step("work"));
            seen.set(now());
        });
    });
    assert_eq!((end.get(), report.steps), (Time::from_nanos(50_000), 1_000));
}

#[test]
fn code_under_test_runs_outside_of_a_run() {
    step("outside");
    assert!(!is_dying());
    assert_eq!((process(), now()), (None, Time::ZERO));
}

#[test]
fn choices_of_tasks_are_recorded() {
    let report = run(|| {
        spawn(0, "chooser", || {
            assert!(choose(1_000) < 1_000);
            chance(7);
            assert!([1, 2, 3].contains(task::among(&[1, 2, 3])));
            assert_eq!(task::weighted(&[0, 1, 0]), 1);
        });
    });
    assert!(report.choices.made().iter().any(|choice| choice.of == 1_000));
}

#[test]
fn stack_overflow_fails_the_run() {
    fn recurse(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 64]);
        if depth == u64::MAX { 0 } else { recurse(depth + 1) + std::hint::black_box(frame)[5] }
    }
    for _ in 0..3 {
        let report = run(|| {
            spawn(0, "deep", || {
                recurse(0);
            });
        });
        assert_eq!(report.failure().expect("the run fails").what, "stack overflow of a task");
    }
}

/// The steps of a loop that reads nothing differ in the position of their task only.
#[test]
fn cuts_keep_states_that_differ_in_positions() {
    for preemption in [Preemption::Each, Preemption::Sparse { mean: 3 }] {
        let clock = Clock { tick: Duration::ZERO, ..Clock::default() };
        let settings = Settings { preemption, clock, ..Settings::default() };
        let seen = Rc::new(RefCell::new(BTreeSet::new()));
        let mut enumeration = Enumeration::cutting_seen_states();
        while let Some(choices) = enumeration.next() {
            let seen = Rc::clone(&seen);
            let report = Run::new(choices).start(&settings, move || {
                task::set_state(|| 0);
                let count = Rc::new(Cell::new(0));
                let steps = Rc::clone(&count);
                spawn(0, "counter", move || {
                    for _ in 0..4 {
                        step("count");
                        steps.set(steps.get() + 1);
                    }
                });
                spawn(1, "observer", move || {
                    step("observe");
                    seen.borrow_mut().insert(count.get());
                });
            });
            enumeration.learn(report.choices);
        }
        assert_eq!(seen.take(), (0..=4).collect(), "{preemption:?}");
    }
}
