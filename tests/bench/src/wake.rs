// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers of the engine that sleep, predict the next frame, or spin, at 60 frames a second with
//! more and less jitter, beside a bare futex: time from the publication until the reader has the
//! frame, CPU time of the reader, and time of the publication itself.
//!
//! Each reader is a process of its own, and so is each sleeper of one bare futex; those of the
//! other one are threads of this process.

use crate::{
    alone::{Alone, in_folder, median, publish},
    slow::spread,
    stamp::{nanoseconds, now},
    usage::Usage,
};
use anyhow::{Context, Result, anyhow, bail};
use frameshare::{
    Endpoint, Interrupt,
    exporter::{Config, Exporter},
    reader::{self, Item, Reader, Wake},
};
use frameshare_tests::raw::Page;
use rustix::{
    thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags},
    time::ClockId,
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

const RATE: u32 = 60;
/// Frames before the measurement: a prediction needs 32.
const WARM: usize = 45;
const FRAMES: usize = 120;
/// Bytes of a page that waker and sleepers share.
const SIZE: u64 = 4096;
/// Maximum delays of a frame behind its due time.
const JITTERS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(5)];

/// A way to wait for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// Between threads.
    BareFutex,
    /// Between processes, by the system call that a reader makes.
    SharedFutex,
    Sleep,
    /// The exporter publishes on another stream just before: the code of a publication is in its
    /// core's caches.
    SleepWarm,
    Predict,
    Spin,
    /// As [`Way::SleepWarm`].
    SpinWarm,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::BareFutex,
        Self::SharedFutex,
        Self::Sleep,
        Self::SleepWarm,
        Self::Predict,
        Self::Spin,
        Self::SpinWarm,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::BareFutex => "control: bare futex of threads",
            Self::SharedFutex => "control: bare futex of processes",
            Self::Sleep => "`wake=sleep`",
            Self::SleepWarm => "control: `wake=sleep`, warm code",
            Self::Predict => "`wake=predict`",
            Self::Spin => "`wake=spin`",
            Self::SpinWarm => "control: `wake=spin`, warm code",
        }
    }

    fn wake(self) -> Wake {
        match self {
            Self::BareFutex | Self::SharedFutex | Self::Sleep | Self::SleepWarm => Wake::Sleep,
            Self::Predict => Wake::Predict,
            Self::Spin | Self::SpinWarm => Wake::Spin,
        }
    }

    fn is_warm(self) -> bool {
        matches!(self, Self::SleepWarm | Self::SpinWarm)
    }
}

/// A reader in a process of its own, or a sleeper.
#[derive(Serialize, Deserialize)]
struct Reads {
    /// The socket of the stream, or the folder of [`Shared`].
    path: String,
    way: Way,
}

/// Measurements of one reader.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Woken {
    /// Latency in µs.
    p50: f64,
    p95: f64,
    /// CPU time and time in spins, % of a core.
    cpu: f64,
    spins: f64,
    /// Frames that came during a spin, %.
    spun: f64,
}

/// Collects the latencies of one reader after the warm-up.
struct Watch {
    clock: fn() -> u64,
    seen: usize,
    began: u64,
    cpu: u64,
    latencies: Vec<u64>,
}

impl Watch {
    /// `clock` is the CPU time in ns.
    fn new(clock: fn() -> u64) -> Self {
        Self { clock, seen: 0, began: 0, cpu: 0, latencies: Vec::with_capacity(FRAMES) }
    }

    /// Records a frame. Returns true at the begin of the measurement.
    fn see(&mut self, published: u64) -> bool {
        let time = now();
        self.seen += 1;
        if self.seen == WARM {
            (self.began, self.cpu) = (time, (self.clock)());
            return true;
        }
        if self.seen > WARM {
            self.latencies.push(time.saturating_sub(published));
        }
        false
    }

    fn end(mut self, spins: Duration, spun: u64) -> Woken {
        let seconds = (now() - self.began) as f64 / 1e9;
        let cpu = ((self.clock)() - self.cpu) as f64 / 1e7 / seconds;
        let frames = self.latencies.len();
        self.latencies.sort_unstable();
        let at = |part: usize| {
            self.latencies.get(frames * part / 100).map_or(f64::NAN, |latency| *latency as f64 / 1e3)
        };
        let spun = spun as f64 * 100.0 / frames.max(1) as f64;
        Woken { p50: at(50), p95: at(95), cpu, spins: spins.as_secs_f64() * 100.0 / seconds, spun }
    }
}

/// Reads to the end of the stream, and prints the measurements.
pub fn read(plan: &str) -> Result<()> {
    let plan: Reads = serde_json::from_str(plan).context("no plan of a reader")?;
    if plan.way == Way::SharedFutex {
        return Shared::open(Path::new(&plan.path))?.sleep();
    }
    let config = reader::Config::default().wake(plan.way.wake());
    let interrupt = Interrupt::new()?;
    let mut reader = Reader::connect(&Endpoint::at(&plan.path)?, config, &interrupt)?;
    let mut watch = Watch::new(|| Usage::now().cpu);
    let mut before = reader.stats();
    loop {
        match reader.next(None, &interrupt)? {
            Some(Item::Frame(frame)) => {
                let begins = watch.see(frame.descriptor().published);
                if begins {
                    before = reader.stats();
                }
            }
            Some(Item::EndOfStream) => break,
            _ => {}
        }
    }
    let stats = reader.stats();
    let (spins, spun) = (stats.spin_time - before.spin_time, stats.spin_frames - before.spin_frames);
    crate::say(&watch.end(spins, spun))
}

/// Cost of a publication in µs, the median.
#[derive(Clone, Copy)]
struct Publication {
    /// Woken readers may run in between.
    time: f64,
    cpu: f64,
}

/// Measurements of all readers, and of the publications.
type Run = (Vec<Woken>, Publication);

/// Calls `prepare` and `publish` for each frame when it is due, and measures `publish` after the
/// warm-up.
fn pace(
    jitter: Duration,
    mut prepare: impl FnMut() -> Result<()>,
    mut publish: impl FnMut() -> Result<()>,
) -> Result<Publication> {
    let begin = Instant::now();
    let (mut times, mut cpus) = (Vec::with_capacity(FRAMES), Vec::with_capacity(FRAMES));
    for number in 0..(WARM + FRAMES) as u32 {
        let part = f64::from(number.wrapping_mul(0x9e37_79b9) >> 8) / f64::from(1 << 24);
        let due = begin + Duration::from_secs(1) * number / RATE + jitter.mul_f64(part);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        prepare()?;
        let (call, cpu) = (Instant::now(), nanoseconds(ClockId::ThreadCPUTime));
        publish()?;
        if number >= WARM as u32 {
            cpus.push((nanoseconds(ClockId::ThreadCPUTime) - cpu) as f64 / 1e3);
            times.push(call.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(Publication { time: median(&times), cpu: median(&cpus) })
}

fn nothing() -> Result<()> {
    Ok(())
}

/// Readers or sleepers, each a process of its own.
struct Running(Vec<(Child, BufReader<ChildStdout>)>);

impl Running {
    fn start(plan: &Reads, readers: usize) -> Result<Self> {
        let plan = serde_json::to_string(plan)?;
        let start = |_| -> Result<_> {
            let mut process = Command::new(env::current_exe()?)
                .args(["wake-read", &plan])
                .stdout(Stdio::piped())
                .spawn()?;
            let output = BufReader::new(process.stdout.take().context("its output is piped")?);
            Ok((process, output))
        };
        (0..readers).map(start).collect::<Result<Vec<_>>>().map(Self)
    }

    fn results(self) -> Result<Vec<Woken>> {
        let result = |(mut process, mut output): (Child, BufReader<ChildStdout>)| {
            let mut line = String::new();
            output.read_line(&mut line)?;
            process.wait()?;
            serde_json::from_str(&line).with_context(|| format!("a reader said {line:?}"))
        };
        self.0.into_iter().map(result).collect()
    }
}

fn engine(folder: &Path, way: Way, readers: usize, jitter: Duration) -> Result<Run> {
    let socket = folder.join("woken.sock");
    let exporter = Exporter::bind(&Endpoint::at(&socket)?, Config::default(), |_| ())?;
    let running = Running::start(&Reads { path: socket.to_string_lossy().into(), way }, readers)?;
    while exporter.reader_count() < readers {
        thread::sleep(Duration::from_millis(1));
    }
    let mut other = way.is_warm().then(|| Alone::new(folder, 1)).transpose()?;
    let prepare = || match &mut other {
        Some(other) => publish(&other.exporter).and_then(|()| other.take()),
        None => Ok(()),
    };
    let call = pace(jitter, prepare, || publish(&exporter))?;
    exporter.end_of_stream();
    Ok((running.results()?, call))
}

/// Words of the futex between processes, mapped by the waker and all sleepers.
struct Shared {
    futexes: Page,
    /// Time of the last wake-up in ns.
    sent: Page,
}

impl Shared {
    /// Added to by each wake-up.
    const WORD: u32 = 0;
    /// Number of sleepers that have started.
    const STARTED: u32 = 1;
    /// Not 0 after the last wake-up.
    const OVER: u32 = 2;

    fn open(folder: &Path) -> Result<Self> {
        let map = |name| -> Result<Page> {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(folder.join(name))?;
            file.set_len(SIZE)?;
            Ok(Page::writable(&file, SIZE as usize)?)
        };
        Ok(Self { futexes: map("futexes")?, sent: map("sent")? })
    }

    /// Sleeps until the last wake-up, and prints the measurements.
    fn sleep(&self) -> Result<()> {
        let (word, private) = (self.futexes.futex(Self::WORD), AtomicU32::new(0));
        let mut watch = Watch::new(|| Usage::now().cpu);
        self.futexes.futex(Self::STARTED).fetch_add(1, SeqCst);
        loop {
            let value = word.load(SeqCst);
            if self.futexes.futex(Self::OVER).load(SeqCst) != 0 {
                return crate::say(&watch.end(Duration::ZERO, 0));
            }
            let waiters = [(word, value, WaitFlags::empty()), (&private, 0, WaitFlags::PRIVATE)];
            let waiters = waiters.map(|(word, value, flags)| {
                let mut waiter = Wait::new();
                waiter.val = value.into();
                waiter.uaddr = WaitPtr::new(word.as_ptr().cast());
                waiter.flags = flags | WaitFlags::SIZE_U32;
                waiter
            });
            match futex::waitv(&waiters, WaitvFlags::empty(), None, futex::ClockId::Monotonic) {
                Ok(_) if self.futexes.futex(Self::OVER).load(SeqCst) == 0 => {
                    watch.see(self.sent[0].load(SeqCst));
                }
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => bail!("futex_waitv (Linux 5.16): {error}"),
            }
        }
    }

    fn wake(&self, sleepers: usize) {
        let word = self.futexes.futex(Self::WORD);
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), sleepers as u32);
    }
}

fn shared_futex(folder: &Path, sleepers: usize, jitter: Duration) -> Result<Run> {
    let shared = Shared::open(folder)?;
    shared.futexes.futex(Shared::STARTED).store(0, SeqCst);
    shared.futexes.futex(Shared::OVER).store(0, SeqCst);
    let plan = Reads { path: folder.to_string_lossy().into(), way: Way::SharedFutex };
    let running = Running::start(&plan, sleepers)?;
    while shared.futexes.futex(Shared::STARTED).load(SeqCst) < sleepers as u32 {
        thread::sleep(Duration::from_millis(1));
    }
    let call = pace(jitter, nothing, || {
        shared.sent[0].store(now(), SeqCst);
        shared.wake(sleepers);
        Ok(())
    })?;
    shared.futexes.futex(Shared::OVER).store(1, SeqCst);
    shared.wake(sleepers);
    Ok((running.results()?, call))
}

fn bare_futex(sleepers: usize, jitter: Duration) -> Result<Run> {
    let (word, sent, over) = (AtomicU32::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let sleep = || {
        let mut watch = Watch::new(|| nanoseconds(ClockId::ThreadCPUTime));
        loop {
            let value = word.load(SeqCst);
            if over.load(SeqCst) {
                return watch.end(Duration::ZERO, 0);
            }
            // Not private: as one between processes.
            if futex::wait(&word, futex::Flags::empty(), value, None).is_ok() && !over.load(SeqCst) {
                watch.see(sent.load(SeqCst));
            }
        }
    };
    let wake = || {
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(&word, futex::Flags::empty(), sleepers as u32);
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..sleepers).map(|_| scope.spawn(sleep)).collect();
        let done = pace(jitter, nothing, || {
            sent.store(now(), SeqCst);
            wake();
            Ok(())
        });
        over.store(true, SeqCst);
        wake();
        let join = |thread: thread::ScopedJoinHandle<'_, Woken>| {
            thread.join().map_err(|_| anyhow!("a sleeper panicked"))
        };
        done.and_then(|call| Ok((threads.into_iter().map(join).collect::<Result<_>>()?, call)))
    })
}

/// Measures, and prints a table.
pub fn all(rounds: usize, readers: usize) -> Result<()> {
    println!(
        "\n{RATE} frames/s, number of readers: {readers}. Time from the publication until the slowest reader \
         has the frame, in µs; the publication, in µs, and CPU time of it; CPU time of a reader, and the \
         part of it in spins, % of a core\n"
    );
    // The exporter needs a core, too.
    let can_spin = thread::available_parallelism()?.get() > readers;
    let ways = Way::ALL.into_iter().filter(|way| can_spin || way.wake() != Wake::Spin);
    let costs = "publication | CPU of it | CPU | spins | frames that came in a spin, %";
    println!("| jitter of the source | way | p50 | p95 | {costs} |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    in_folder("wake", |folder| {
        for jitter in JITTERS {
            let mut figures: Vec<_> = ways.clone().map(|way| (way, Vec::new())).collect();
            for _ in 0..rounds {
                for (way, figures) in &mut figures {
                    let woken = match way {
                        Way::BareFutex => bare_futex(readers, jitter)?,
                        Way::SharedFutex => shared_futex(folder, readers, jitter)?,
                        _ => engine(folder, *way, readers, jitter)?,
                    };
                    figures.push((combine(&woken.0), woken.1));
                }
            }
            for (way, figures) in &figures {
                print_row(jitter, *way, figures);
            }
        }
        Ok(())
    })
}

/// The slowest latencies, and the mean of the costs.
fn combine(readers: &[Woken]) -> Woken {
    let most = |of: fn(&Woken) -> f64| readers.iter().map(of).fold(0.0, f64::max);
    let mean = |of: fn(&Woken) -> f64| readers.iter().map(of).sum::<f64>() / readers.len() as f64;
    Woken {
        p50: most(|woken| woken.p50),
        p95: most(|woken| woken.p95),
        cpu: mean(|woken| woken.cpu),
        spins: mean(|woken| woken.spins),
        spun: mean(|woken| woken.spun),
    }
}

fn print_row(jitter: Duration, way: Way, figures: &[(Woken, Publication)]) {
    let of = |of: fn(&Woken) -> f64| spread(&figures.iter().map(|(woken, _)| of(woken)).collect::<Vec<_>>());
    let call =
        |of: fn(&Publication) -> f64| spread(&figures.iter().map(|(_, call)| of(call)).collect::<Vec<_>>());
    let [time, time_cpu] = [call(|call| call.time), call(|call| call.cpu)];
    let [p50, p95] = [of(|woken| woken.p50), of(|woken| woken.p95)];
    let [cpu, spins, spun] = [of(|woken| woken.cpu), of(|woken| woken.spins), of(|woken| woken.spun)];
    let (jitter, way) = (jitter.as_millis(), way.name());
    println!("| {jitter} ms | {way} | {p50} | {p95} | {time} | {time_cpu} | {cpu} | {spins} | {spun} |");
}
