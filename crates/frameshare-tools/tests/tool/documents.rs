// SPDX-License-Identifier: MIT OR Apache-2.0

//! The manual, the completions and the man pages.

use crate::{export, ran, read, run_tool, tool};
use frameshare_tests::process::TestRun;
use std::{fs, process::Command};

const MANUAL: &str = include_str!("../../../../docs/tool.md");

const MESON: &str = include_str!("../../../../meson.build");

/// Returns the words of a command for the test's stream: the manual's are called `cam0`.
fn commands() -> Vec<String> {
    let indented = MANUAL.lines().filter_map(|line| line.strip_prefix("    "));
    let commands = indented.map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned());
    commands.filter(|line| line.contains("frameshare ")).collect()
}

/// Each command in the manual runs as it is shown, in a shell.
#[test]
fn commands_of_manual_succeed() {
    let run = TestRun::new();
    let _publisher = run.command(&format!("{} publish cam0 --rate 100", crate::TOOL));
    let mut reader = run.peer(&format!("read --socket {} --quiet yes", run.socket("cam0")));
    reader.wait_for("connected");
    // The first one of the path is this build's.
    let path = std::env::join_paths(
        [std::path::Path::new(crate::TOOL).parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    let commands = commands();
    assert!(commands.len() >= 3, "{commands:?}");
    for line in commands {
        let mut shell = Command::new("sh");
        // These run until they are interrupted, once: timeout(1) also signals its own process group
        // otherwise, and a second signal ends a command at once.
        let endless = ["frameshare metrics", "frameshare top", "frameshare publish test"];
        let until = match endless.contains(&line.as_str()) {
            true => "timeout --foreground --preserve-status -k 60 -s INT 3 ",
            false => "",
        };
        shell
            .args(["-euc", &format!("{until}{line}")])
            .current_dir(run.path(""))
            .env("XDG_RUNTIME_DIR", run.path(""));
        let ran = ran(shell.env("PATH", &path));
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{line}");
        assert!(!ran.stdout.is_empty(), "{line}");
    }
}

/// Each command is in the manual, in its help, in each completion, and has a man page.
#[test]
fn completions_and_man_pages_cover_all_commands() {
    let run = TestRun::new();
    let _streams = (export(&run, ""), read(&run, ""));
    let ran = ran(tool(&run, "generate generated").env("LANG", "C"));
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let help = run_tool(&run, "--help").stdout;
    let section = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<_> = section.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"list") && !commands.contains(&"generate"), "{commands:?}");
    let text = |name: &str| fs::read_to_string(run.path("generated").join(name)).expect(name);
    let completions = ["frameshare.bash", "_frameshare", "frameshare.fish"].map(text);
    for command in commands.into_iter().filter(|command| *command != "help") {
        assert!(text(&format!("frameshare-{command}.1")).contains("\\- "), "{command}");
        assert!(completions.iter().all(|completion| completion.contains(command)), "{command}");
        assert!(MANUAL.contains(&format!("| `{command}")), "{command} is not in docs/tool.md");
    }
    assert!(text("frameshare.1").contains("FRAMESHARE_PATH"));

    // All of them are installed.
    let written = fs::read_dir(run.path("generated")).unwrap();
    let mut written: Vec<_> =
        written.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let outputs = MESON.split("custom_target('tool-manual'").nth(1).unwrap();
    let (outputs, _) = outputs.split_once("command:").unwrap();
    let mut installed: Vec<_> = outputs.split('\'').skip(1).step_by(2).map(str::to_owned).collect();
    written.sort_unstable();
    installed.sort_unstable();
    assert_eq!(installed, written, "meson.build");
}
