// SPDX-License-Identifier: MIT OR Apache-2.0

//! Report of the figures as tables.

use crate::{
    case::{Case, Transport},
    options::Options,
    outcome::{Figures, Outcome},
};
use std::{collections::BTreeMap, fmt::Write, fs, time::Duration};

/// One figure of a run.
struct Measure {
    title: &'static str,
    /// Rate of the runs that it applies to.
    rate: u32,
    /// Whether it applies to runs whose readers launch a kernel for each frame.
    by_kernel: bool,
    of: fn(&Figures) -> f64,
    /// Whether the figure of the decoder alone is subtracted.
    is_added: bool,
}

const fn measure(title: &'static str, rate: u32, of: fn(&Figures) -> f64) -> Measure {
    Measure { title, rate, by_kernel: false, of, is_added: false }
}

const fn by_kernel(title: &'static str, rate: u32, of: fn(&Figures) -> f64) -> Measure {
    Measure { title, rate, by_kernel: true, of, is_added: false }
}

const fn added(title: &'static str, rate: u32, of: fn(&Figures) -> f64) -> Measure {
    Measure { title, rate, by_kernel: false, of, is_added: true }
}

const MEASURES: [Measure; 19] = [
    measure("Frames/s, free-running (the slowest reader's)", 0, rate),
    measure("Latency p50 in µs, free-running", 0, p50),
    measure("Latency p99 in µs, free-running", 0, p99),
    measure("Latency p50 in µs at 60 frames/s", 60, p50),
    measure("Latency p99 in µs at 60 frames/s", 60, p99),
    measure("Latency p50 in µs at 1,000 frames/s", 1000, p50),
    measure("Latency p99 in µs at 1,000 frames/s", 1000, p99),
    by_kernel("Latency p50 in µs until a kernel has read the frame, free-running", 0, p50),
    by_kernel("Latency p99 in µs until a kernel has read the frame, free-running", 0, p99),
    by_kernel("Latency p50 in µs until a kernel has read the frame, at 60 frames/s", 60, p50),
    by_kernel("Latency p99 in µs until a kernel has read the frame, at 60 frames/s", 60, p99),
    measure("Reader's CPU in µs a frame, free-running", 0, reader_cpu),
    measure("Exporter's CPU in µs a frame, free-running", 0, exporter_cpu),
    measure("Reader's CPU in µs a frame at 1,000 frames/s", 1000, reader_cpu),
    measure("Exporter's CPU in µs a frame at 1,000 frames/s", 1000, exporter_cpu),
    measure("Reader's CPU in µs a frame at 60 frames/s", 60, reader_cpu),
    measure("Exporter's CPU in µs a frame at 60 frames/s", 60, exporter_cpu),
    added("Exporter's CPU in µs a frame above decoding alone, free-running", 0, exporter_cpu),
    added("Exporter's CPU in µs a frame above decoding alone, at 60 frames/s", 60, exporter_cpu),
];

fn rate(figures: &Figures) -> f64 {
    let rate = |frames: u64, seconds: f64| if seconds > 0.0 { frames as f64 / seconds } else { 0.0 };
    if figures.received.is_empty() {
        return rate(figures.exported.frames, figures.exported.seconds);
    }
    figures.received.iter().map(|reader| rate(reader.frames, reader.seconds)).fold(f64::INFINITY, f64::min)
}

/// Largest median of all readers.
pub fn p50(figures: &Figures) -> f64 {
    figures.received.iter().map(|reader| reader.p50).fold(f64::NAN, f64::max)
}

fn p99(figures: &Figures) -> f64 {
    figures.received.iter().map(|reader| reader.p99).fold(f64::NAN, f64::max)
}

/// Mean of all readers.
fn reader_cpu(figures: &Figures) -> f64 {
    let cpu: u64 = figures.received.iter().map(|reader| reader.usage.cpu).sum();
    let frames: u64 = figures.received.iter().map(|reader| reader.frames).sum();
    cpu as f64 / 1e3 / frames as f64
}

fn exporter_cpu(figures: &Figures) -> f64 {
    let exported = &figures.exported;
    (exported.usage.cpu + exported.daemon_cpu) as f64 / 1e3 / exported.frames as f64
}

/// Sent frames that did not arrive, of all readers.
fn lost(figures: &Figures) -> u64 {
    let sent = figures.exported.frames;
    figures.received.iter().map(|reader| sent.saturating_sub(reader.frames)).sum()
}

/// One run as a line of progress.
pub fn line(outcome: &Outcome) -> String {
    let figures = match &outcome.result {
        Ok(figures) => figures,
        Err(stuck) => return format!("stuck: {stuck}"),
    };
    let per_frame = |count: u64| count as f64 / figures.exported.frames as f64;
    let sleeps = figures.received.iter().map(|reader| reader.usage.sleeps).sum::<u64>();
    let mut line = format!(
        "{:.0}/s, CPU {:.1} + {:.1} µs a frame, sleeps {:.2} + {:.2} a frame, lost {}",
        rate(figures),
        exporter_cpu(figures),
        reader_cpu(figures),
        per_frame(figures.exported.usage.sleeps),
        per_frame(sleeps) / figures.received.len() as f64,
        lost(figures),
    );
    if p99(figures) > 0.0 {
        let _ = write!(line, ", p50 {:.0} p99 {:.0} µs", p50(figures), p99(figures));
    }
    if let Some(copied) = figures.exported.copied.filter(|copied| *copied > 0) {
        let _ = write!(line, ", {copied} copied");
    }
    if let Some(memory) = figures.received.first().and_then(|reader| reader.memory.as_deref()) {
        let _ = write!(line, ", in {memory}");
    }
    line
}

/// The whole report in Markdown.
pub fn markdown(
    options: &Options,
    transports: &[Transport],
    missing: &[Transport],
    outcomes: &[Outcome],
    took: Duration,
) -> String {
    let (major, minor, micro, _) = gst::version();
    let mut text = format!(
        "GStreamer {major}.{minor}.{micro}, {}. {}. {} rounds in turn, {:?} a measurement, {:.0} s altogether. {NUMBERS}\n",
        options.gstreamer_of,
        machine(),
        options.rounds,
        options.measure,
        took.as_secs_f64(),
    );
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|transport| transport.name()).collect();
        let _ = writeln!(text, "This machine has no {}, which is left out.", names.join(" and no "));
    }
    if transports.contains(&Transport::Pipewire) {
        text += "PipeWire is not run without a pace, at which it stops; its daemon's CPU counts as the exporter's.\n";
    }
    text + &tables(transports, &options.cases, outcomes)
}

/// Report of the figures of earlier runs.
pub fn earlier(outcomes: &[Outcome]) -> String {
    let (mut transports, mut cases) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        if !transports.contains(&outcome.transport) {
            transports.push(outcome.transport);
        }
        if !cases.contains(&outcome.case) {
            cases.push(outcome.case);
        }
    }
    format!("{NUMBERS}\n{}", tables(&transports, &cases, outcomes))
}

const NUMBERS: &str = "Medians; ratios are of the same round, their median (least to most).";

fn tables(transports: &[Transport], cases: &[Case], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut say = |line: String| text.push_str(&(line + "\n"));
    for measure in &MEASURES {
        if measure.is_added && !transports.contains(&Transport::Decoder) {
            continue;
        }
        let is_of = |case: &Case| (case.rate, case.by_kernel) == (measure.rate, measure.by_kernel);
        let cases: Vec<_> = cases.iter().filter(|case| is_of(case)).collect();
        // At full speed frames queue up, so that latency has no meaning; none is recorded.
        let is_known = |outcome: &Outcome| {
            is_of(&outcome.case) && outcome.result.as_ref().is_ok_and(|figures| (measure.of)(figures) > 0.0)
        };
        if !cases.is_empty() && outcomes.iter().any(is_known) {
            say(format!("\n**{}**\n", measure.title));
            table(&mut say, transports, &cases, outcomes, measure);
        }
    }
    say("\n**Frames lost, all rates, readers and rounds**\n".into());
    losses(&mut say, transports, cases, outcomes);
    text
}

fn table(
    say: &mut impl FnMut(String),
    transports: &[Transport],
    cases: &[&Case],
    outcomes: &[Outcome],
    measure: &Measure,
) {
    let compared = |transport: &&Transport| !measure.is_added || **transport != Transport::Decoder;
    let transports: Vec<_> = transports.iter().filter(compared).collect();
    let rivals = transports.iter().map(|rival| **rival).filter(|transport| transport.is_rival());
    let ratios: Vec<_> = rivals.filter_map(|rival| Some((ours(&transports, rival)?, rival))).collect();
    let names = transports.iter().map(|transport| transport.name().to_owned());
    let names: Vec<_> = names.chain(ratios.iter().map(|(_, rival)| format!("to {}", rival.name()))).collect();
    say(format!("| size | readers | {} |", names.join(" | ")));
    say(format!("| --- | --- |{}", " --- |".repeat(names.len())));
    for case in cases {
        let of = |transport| values(outcomes, **case, transport, measure);
        let mut cells: Vec<String> = transports.iter().map(|transport| cell(&of(**transport))).collect();
        cells.extend(ratios.iter().map(|(ours, rival)| ratio(&of(*ours), &of(*rival))));
        say(format!("| {} | {} | {} |", case.size, case.readers, cells.join(" | ")));
    }
}

/// Returns what is compared with a rival: iceoryx2 has no elements either.
fn ours(transports: &[&Transport], rival: Transport) -> Option<Transport> {
    let mut ours = transports.iter().map(|transport| **transport).filter(|transport| !transport.is_rival());
    let engine = ours.clone().find(|ours| *ours == Transport::Engine && rival == Transport::Iceoryx2);
    engine.or_else(|| ours.next())
}

fn losses(say: &mut impl FnMut(String), transports: &[Transport], cases: &[Case], outcomes: &[Outcome]) {
    let names: Vec<_> = transports.iter().map(|transport| transport.name()).collect();
    say(format!("| size | readers | {} |", names.join(" | ")));
    say(format!("| --- | --- |{}", " --- |".repeat(names.len())));
    let mut rows: Vec<_> = cases.iter().map(|case| (case.size, case.readers)).collect();
    rows.dedup();
    for (size, readers) in rows {
        let cell = |transport: &Transport| {
            let is_here = |outcome: &&Outcome| {
                let case = outcome.case;
                outcome.transport == *transport && (case.size, case.readers) == (size, readers)
            };
            let runs: Vec<_> = outcomes.iter().filter(is_here).collect();
            let done = || runs.iter().filter_map(|run| run.result.as_ref().ok());
            let sent: u64 =
                done().map(|figures| figures.exported.frames * figures.received.len() as u64).sum();
            let stuck = runs.iter().filter(|run| run.result.is_err()).count();
            let lost =
                format!("{} of {}", thousands(done().map(lost).sum::<u64>() as f64), thousands(sent as f64));
            if stuck > 0 { format!("{lost}; stuck in {stuck} of {} runs", runs.len()) } else { lost }
        };
        let cells: Vec<_> = transports.iter().map(cell).collect();
        say(format!("| {size} | {readers} | {} |", cells.join(" | ")));
    }
}

/// Values by round; `None` for a stuck run.
type Values = BTreeMap<usize, Option<f64>>;

fn values(outcomes: &[Outcome], case: Case, transport: Transport, measure: &Measure) -> Values {
    let of = |transport| -> Values {
        let runs =
            outcomes.iter().filter(move |outcome| outcome.case == case && outcome.transport == transport);
        runs.map(|outcome| (outcome.round, outcome.result.as_ref().ok().map(measure.of))).collect()
    };
    if !measure.is_added {
        return of(transport);
    }
    let alone = of(Transport::Decoder);
    let added = |(round, whole): (usize, Option<f64>)| {
        Some((round, whole.zip(*alone.get(&round)?).map(|(whole, alone)| whole - alone)))
    };
    of(transport).into_iter().filter_map(added).collect()
}

fn cell(values: &Values) -> String {
    let figures: Vec<f64> = values.values().copied().flatten().collect();
    let stuck = values.len() - figures.len();
    match (median(&figures), stuck) {
        // Not measured.
        (None, 0) => "–".into(),
        (None, _) => "stuck".into(),
        // No readers.
        (Some(median), _) if median.is_nan() => "–".into(),
        (Some(median), 0) => round(median),
        (Some(median), _) => format!("{} (stuck {stuck} of {})", round(median), values.len()),
    }
}

fn ratio(ours: &Values, rival: &Values) -> String {
    let pairs = ours.iter().filter_map(|(round, ours)| Some((*ours)? / (*rival.get(round)?)?));
    let ratios: Vec<f64> = pairs.filter(|ratio| ratio.is_finite()).collect();
    let Some(median) = median(&ratios) else { return "–".into() };
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{median:.2} ({least:.2}–{most:.2})")
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[low] + values[high]) / 2.0)
}

fn round(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { thousands(value) }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{cores} cores of {}, load {load} at the end", model.map_or("an unnamed CPU", |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_pass_over_stuck_runs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(cell(&Values::from([(1, Some(1234.0)), (2, None)])), "1,234 (stuck 1 of 2)");
        assert_eq!(cell(&Values::from([(1, None), (2, None)])), "stuck");
        assert_eq!(cell(&Values::new()), "–");
        let ours = Values::from([(1, Some(2.0)), (2, Some(3.0)), (3, Some(8.0)), (4, Some(1.0))]);
        assert_eq!(
            ratio(&ours, &Values::from([(1, Some(1.0)), (2, None), (3, Some(2.0))])),
            "3.00 (2.00–4.00)"
        );
        assert_eq!(ratio(&ours, &Values::from([(4, Some(-2.0))])), "-0.50 (-0.50–-0.50)");
        assert_eq!(ratio(&ours, &Values::from([(1, None)])), "–");
    }

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!([999.0, 1000.0, 1234567.0].map(thousands), ["999", "1,000", "1,234,567"]);
    }
}
