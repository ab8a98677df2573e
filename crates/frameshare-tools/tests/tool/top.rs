// SPDX-License-Identifier: MIT OR Apache-2.0

//! `top`: tables in a file and on a terminal, while readers and exporters die.

use crate::{TOOL, export, parse, read, run_tool, terminal::Terminal};
use frameshare_tests::process::{TestRun, wait_until};
use serde_json::Value;

/// Returns a row as the screen of 80 columns shows it, up to the costs of the process.
fn row([name, rate, age, lag, held, lost, copies]: [&str; 7]) -> String {
    format!("{name:25} {rate:>6} {age:>7} {lag:>5} {held:>6} {lost:>6} {copies:>6}")
}

/// Columns in front of the costs.
const KNOWN: usize = 25 + 7 + 8 + 6 + 7 + 7 + 7;
const TITLES: [&str; 7] = ["STREAM, READER", "RATE", "AGE", "LAG", "HELD", "LOST", "COPIES"];
const COSTS: &str = "  WAKES   CPU";
const KEYS: &str = "nraghlcwp sort, q quits";

/// Splits a line of the screen in front of the costs.
fn split(line: &str) -> (String, String) {
    (line.chars().take(KNOWN).collect(), line.chars().skip(KNOWN).collect())
}

/// Returns whether a text is that of wake-ups per second and CPU time.
fn is_cost(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    matches!(words[..], [wakeups, cpu] if is_number(wakeups) && cpu.strip_suffix('%').is_some_and(is_number))
}

fn titles() -> String {
    row(TITLES) + COSTS
}

#[test]
fn batch_follows_killed_reader_and_exporter() {
    let run = TestRun::new();
    let mut exporter = export(&run, "");
    let [mut killed, other] = [(); 2].map(|()| read(&run, ""));
    let mut top = run.command(&format!("{TOOL} top -b -d 0.1 --json"));
    let mut streams_until = |condition: &dyn Fn(&Value) -> bool| {
        loop {
            let line = top.next_line();
            let value = parse("top", &line);
            if condition(&value["streams"]) {
                return value["streams"].clone();
            }
        }
    };
    let is_fast = |value: &Value| value["rate"].as_f64().is_some_and(|rate| rate > 1.0);
    let streams = streams_until(&|streams| is_fast(&streams[0]) && is_fast(&streams[0]["readers"][1]));
    let pids: Vec<_> = [0, 1].map(|at| streams[0]["readers"][at]["pid"].clone()).into();
    assert_eq!(pids, [killed.pid(), other.pid()]);
    assert_eq!((&streams[0]["stream"], &streams[0]["readers"][0]["id"]), (&"s".into(), &1.into()));
    assert!(streams[0]["age"].as_f64().is_some_and(|age| age < 60.0), "{streams}");
    for process in [&streams[0], &streams[0]["readers"][0], &streams[0]["readers"][1]] {
        assert!(process["wakeups"].as_f64().is_some_and(|count| count >= 0.0), "{streams}");
        assert!(process["cpu"].as_f64().is_some_and(|cores| (0.0..1000.0).contains(&cores)), "{streams}");
        assert_eq!(process["copies"], 0.0, "{streams}");
    }
    assert_eq!(streams[0]["lost"], {
        let lost = |at: usize| streams[0]["readers"][at]["lost"].as_u64().unwrap();
        lost(0) + lost(1)
    });
    killed.kill();
    let streams =
        streams_until(&|streams| streams[0]["readers"].as_array().is_some_and(|all| all.len() == 1));
    assert_eq!(streams[0]["readers"][0]["pid"], other.pid());
    exporter.kill();
    streams_until(&|streams| *streams == Value::Array(Vec::new()));
    top.interrupt();
    assert_eq!(top.expect_success().stderr, "");
}

/// The delay counts for each table but the first.
#[test]
fn batch_prints_aligned_tables_in_order_of_key() {
    let run = TestRun::new();
    let _slow = export(&run, "--readers 9");
    let options = format!("export --socket {} --frames 100000000 --fps 100 --readers 0", run.socket("t"));
    let mut fast = run.peer(&options);
    fast.wait_for("open");
    let _reader = read(&run, "");
    let order = |arguments: &str| {
        let ran = run_tool(&run, arguments);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        let tables: Vec<_> = ran.stdout.split("\n\n").map(str::to_owned).collect();
        assert_eq!(tables.len(), 2, "{}", ran.stdout);
        assert!(tables.iter().all(|table| table.starts_with("STREAM, READER")), "{}", ran.stdout);
        let firsts = tables[1].lines().skip(1).filter_map(|line| line.chars().next());
        firsts.collect::<String>()
    };
    assert_eq!(order("top -b -n 2 -d 0.3"), "s└t");
    // A busy machine may publish nothing for a moment.
    wait_until("the faster stream is first", || order("top -n 2 -d 0.3 --sort rate") == "ts└");
    for key in ["copies", "wakeups", "cpu"] {
        let lines = run_tool(&run, &format!("top -n 2 -d 0.3 --json --sort {key}")).stdout;
        let last = parse("top", lines.lines().last().unwrap());
        // Rows are in order of thousandths, so that rows with nearly equal rates keep their places.
        let [first, second] = [0, 1].map(|at| (last["streams"][at][key].as_f64().unwrap() * 1e3) as u64);
        assert!(first >= second, "{key}: {last}");
    }
    for arguments in ["top -d 0", "top -d x", "top -n 0", "top --sort color"] {
        assert_eq!(run_tool(&run, arguments).status, 2, "{arguments}");
    }
}

#[test]
fn stopped_exporter_is_a_row_with_its_error() {
    let run = TestRun::new();
    let exporter = export(&run, "");
    exporter.suspend();
    let text = run_tool(&run, "top -b -n 1 -d 0.1").stdout;
    assert!(text.contains("\n└ the exporter at ") && text.contains("stopped, or hangs"), "{text}");
    let json = parse("top", &run_tool(&run, "top -n 1 --json").stdout);
    assert!(json["streams"][0]["error"].as_str().unwrap().contains("hangs"), "{json}");
}

/// A stream without frames, so that every character is known.
#[test]
fn screen_of_80_columns_shows_streams_and_readers() {
    let run = TestRun::new();
    let _exporter = export(&run, "--readers 9");
    let mut first = read(&run, "--max-held 4");
    let second = read(&run, "--policy lossless --max-held 3");
    let mut terminal = Terminal::start(&run, "top -d 0.1", (24, 80));
    let reader = |branch: &str, id: u32, pid: u32, rest: &str, credit: &str| {
        // Process numbers have up to seven digits.
        let name: String = format!("{branch} {id} peer {pid} {rest}").chars().take(25).collect();
        row([&name, "0", "", "0", credit, "0", "0"])
    };
    let expected = |summary: &str, readers: &[String]| {
        let mut rows = vec![row(["s application/x-frameshar", "0", "", "0", "0/0", "0", "0"])];
        rows.extend_from_slice(readers);
        (format!("{summary}{KEYS}"), rows)
    };
    // The costs are of this moment; all else is known.
    let shows = |lines: &[String], (summary, rows): &(String, Vec<String>)| {
        let found: Vec<_> = lines[2..2 + rows.len()].iter().map(|line| split(line)).collect();
        lines[0] == *summary
            && lines[1] == titles()
            && found.iter().zip(rows).all(|((known, cost), row)| known == row && is_cost(cost))
            && lines[2 + rows.len()..].iter().all(String::is_empty)
    };
    let [one, two] =
        [reader("├", 1, first.pid(), "latest", "0/4"), reader("└", 2, second.pid(), "lossless", "0/3")];
    let both = expected("1 streams, 2 readers, 0 frames/s; by name; ", &[one, two.clone()]);
    terminal.wait_for("both readers", |lines| shows(lines, &both));

    terminal.press("l");
    terminal.wait_for("the sort key", |lines| lines[0].contains("by lost;"));
    for (key, name) in [("c", "copies"), ("w", "wakeups"), ("p", "cpu"), ("r", "rate"), ("n", "name")] {
        terminal.press(key);
        terminal.wait_for("the sort key", |lines| lines[0].contains(&format!("by {name};")));
    }
    first.kill();
    let alone = expected("1 streams, 1 readers, 0 frames/s; by name; ", &[two]);
    terminal.wait_for("the end of a reader", |lines| shows(lines, &alone));
    terminal.press("q");
    terminal.expect_success();
}

#[test]
fn screen_follows_size_of_terminal_and_scrolls() {
    let run = TestRun::new();
    let _exporter = export(&run, "--readers 9");
    let _readers = [(); 2].map(|()| read(&run, ""));
    let mut terminal = Terminal::start(&run, "top -d 0.1", (24, 80));
    terminal.wait_for("wide titles", |lines| lines[1] == titles());
    terminal.resize(10, 100);
    terminal.wait_for("wider titles", |lines| lines[1].ends_with(COSTS) && lines[1].len() == 100);
    terminal.resize(3, 60);
    terminal.wait_for("one row", |lines| {
        lines[1].len() == 60 && lines[1].ends_with(" LOST") && lines[2].starts_with("s ")
    });
    // Down, as terminals send it; beyond the last row nothing moves.
    terminal.press("\u{1b}[B");
    terminal.wait_for("the first reader", |lines| lines[2].starts_with("├ 1"));
    terminal.press("\u{1b}[B\u{1b}[B\u{1b}[B");
    terminal.wait_for("the last reader", |lines| lines[2].starts_with("└ 2"));
    terminal.press("\u{1b}[A");
    terminal.wait_for("the first reader again", |lines| lines[2].starts_with("├ 1"));
    terminal.resize(24, 80);
    terminal.wait_for("all rows", |lines| lines[1] == titles() && lines[2].starts_with("s "));
    terminal.terminate();
    terminal.expect_success();
}

#[test]
fn screen_ends_after_count_and_escapes_text_of_peers() {
    let run = TestRun::new();
    let _exporter = export(&run, "--caps x/\u{1b}[31m\u{202e}");
    let mut terminal = Terminal::start(&run, "top -d 0.1", (24, 80));
    terminal.wait_for("escaped caps", |lines| lines[2].starts_with(r"s x/\u{1b}[31m\u{202e} "));
    terminal.press("\u{3}");
    terminal.expect_success();
    Terminal::start(&run, "top -n 2 -d 0.1", (24, 80)).expect_success();
}
