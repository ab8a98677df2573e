// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runner: runs seeds on several threads, until one fails or the time is over.

use crate::{
    choices::Choices,
    end::End,
    outcomes::Counts,
    run::{Report, Run, World},
};
use std::{
    fmt::{self, Display, Formatter},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Which runs to make.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed; the following runs have the following ones.
    pub seed: u64,
    /// Threads, at least 1.
    pub threads: usize,
    /// Real time after which no further run begins.
    pub limit: Duration,
    /// Real time between two reports of progress.
    pub progress: Duration,
}

/// Totals of many runs.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Steps of all tasks of all runs.
    pub steps: u64,
    /// Virtual time of all runs.
    pub simulated: Duration,
    /// Real time.
    pub elapsed: Duration,
    /// Runs that ended as `End::Stuck`, and that the world did not call a failure.
    pub stuck: u64,
    /// Runs that ended as `End::TooLong`, and that the world did not call a failure.
    pub too_long: u64,
    /// Outcomes reached.
    pub outcomes: Counts,
    /// The run under way that began first: its seed, and for how long it runs in real time. A task
    /// that makes no step ends by no bound on steps.
    pub slowest: Option<(u64, Duration)>,
}

/// A seed whose run failed.
#[derive(Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// Its report.
    pub report: Report,
}

impl Summary {
    fn new(world: &dyn World) -> Self {
        Self {
            runs: 0,
            steps: 0,
            simulated: Duration::ZERO,
            elapsed: Duration::ZERO,
            stuck: 0,
            too_long: 0,
            outcomes: Counts::new(world.outcomes()),
            slowest: None,
        }
    }

    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.steps += report.steps;
        self.simulated = self.simulated.saturating_add(report.duration());
        self.stuck += u64::from(matches!(report.end, End::Stuck(_)));
        self.too_long += u64::from(report.end == End::TooLong);
    }

    fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.simulated = self.simulated.saturating_add(other.simulated);
        self.stuck += other.stuck;
        self.too_long += other.too_long;
        self.outcomes.merge(&other.outcomes);
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{seconds:.0} s: {} runs, {} steps ({:.1} million a second), {:.1} s of virtual time",
            self.runs,
            self.steps,
            self.steps as f64 / seconds.max(1e-9) / 1e6,
            self.simulated.as_secs_f64(),
        )?;
        if self.stuck + self.too_long > 0 {
            write!(f, ", {} stuck, {} too long", self.stuck, self.too_long)?;
        }
        match self.slowest {
            Some((seed, time)) if time >= SLOW => {
                write!(f, ", seed {seed} runs for {:.0} s", time.as_secs_f64())
            }
            _ => Ok(()),
        }
    }
}

/// Runs seeds until one fails or the time is over. Calls `progress` now and then, and never at the
/// end. Returns the failure of the smallest seed of those that failed.
pub fn explore(
    world: &dyn World,
    plan: &Plan,
    mut progress: impl FnMut(&Summary),
) -> (Summary, Option<Found>) {
    let start = Instant::now();
    let shared = Shared {
        world,
        end: start + plan.limit,
        next: AtomicU64::new(0),
        found: Mutex::new(None),
        total: Mutex::new(Summary::new(world)),
        running: (0..plan.threads).map(|_| Mutex::default()).collect(),
    };
    let summary = || {
        let mut total = shared.total.lock().expect("no worker panics").clone();
        total.elapsed = start.elapsed();
        total.slowest = shared.slowest();
        total
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            shared.running.iter().map(|own| scope.spawn(|| shared.work(plan.seed, own))).collect();
        let mut reported = Instant::now();
        while !workers.iter().all(|worker| worker.is_finished()) {
            thread::park_timeout(Duration::from_millis(20));
            if reported.elapsed() >= plan.progress {
                reported = Instant::now();
                progress(&summary());
            }
        }
    });
    let summary = summary();
    (summary, shared.found.into_inner().expect("no worker panics"))
}

/// Real time after which a worker adds its runs to the total.
const BATCH: Duration = Duration::from_millis(200);

/// Real time after which a run is named in reports of progress.
const SLOW: Duration = Duration::from_secs(1);

struct Shared<'a> {
    world: &'a dyn World,
    end: Instant,
    /// Runs begun.
    next: AtomicU64,
    found: Mutex<Option<Found>>,
    total: Mutex<Summary>,
    /// The run of each worker.
    running: Vec<Mutex<Option<Running>>>,
}

/// A seed, and when its run began.
type Running = (u64, Instant);

impl Shared<'_> {
    fn work(&self, first: u64, running: &Mutex<Option<Running>>) {
        while !self.is_over() {
            let mut batch = Summary::new(self.world);
            let start = Instant::now();
            while !self.is_over() && start.elapsed() < BATCH {
                let seed = first.wrapping_add(self.next.fetch_add(1, Ordering::Relaxed));
                *running.lock().expect("no worker panics") = Some((seed, Instant::now()));
                let report = self.world.run(Run::new(Choices::seeded(seed)));
                batch.add(&report);
                if report.failure().is_some() {
                    self.report(Found { seed, report });
                }
            }
            batch.outcomes.take_from_thread();
            *running.lock().expect("no worker panics") = None;
            self.total.lock().expect("no worker panics").merge(&batch);
        }
    }

    fn slowest(&self) -> Option<(u64, Duration)> {
        let running = self.running.iter().filter_map(|running| *running.lock().expect("no worker panics"));
        running.min_by_key(|(_, begun)| *begun).map(|(seed, begun)| (seed, begun.elapsed()))
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end || self.found.lock().expect("no worker panics").is_some()
    }

    fn report(&self, found: Found) {
        let mut first = self.found.lock().expect("no worker panics");
        if first.as_ref().is_none_or(|first| found.seed < first.seed) {
            *first = Some(found);
        }
    }
}
