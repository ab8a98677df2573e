// SPDX-License-Identifier: MIT OR Apache-2.0

//! A terminal for the command: a pseudo-terminal, and the screen that its output draws.

use crate::TOOL;
use frameshare_tests::process::{PATIENCE, TestRun, wait_until};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read, Write},
    num::NonZero,
    os::fd::OwnedFd,
    process::{Child, Command},
    time::{Duration, Instant},
};

/// A terminal with a running command.
pub struct Terminal {
    pty: File,
    child: Child,
    parser: vt100::Parser,
}

impl Terminal {
    /// Starts the command in the runtime folder of a test run.
    pub fn start(run: &TestRun, arguments: &str, (rows, columns): (u16, u16)) -> Self {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let side: OwnedFd = open(name, flags, Mode::empty()).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", TOOL]).args(arguments.split_whitespace()).current_dir(run.path(""));
        command.env("XDG_RUNTIME_DIR", run.path("")).env_remove("FRAMESHARE_PATH").env("TERM", "xterm");
        command.env("COLORTERM", "truecolor").env_remove("TERM_PROGRAM").env_remove("NO_COLOR");
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        set_size(&pty, rows, columns);
        let child = command.spawn().expect("setsid starts");
        let parser = vt100::Parser::new(size(rows), size(columns), 0);
        Self { pty: pty.into(), child, parser }
    }

    pub fn press(&mut self, keys: &str) {
        self.pty.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.parser.screen_mut().set_size(size(rows), size(columns));
        set_size(&self.pty, rows, columns);
    }

    pub fn lines(&self) -> Vec<String> {
        let screen = self.parser.screen();
        screen.rows(0, screen.size().1.get()).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until the lines of the screen fulfill a condition.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str, condition: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.lines()) {
            assert!(Instant::now() < deadline, "{what}:\n{}", self.lines().join("\n"));
            assert!(self.receive(), "{what}: it ended:\n{}", self.lines().join("\n"));
        }
    }

    /// Receives all output up to the end of the command.
    pub fn wait_for_end(&mut self) {
        while self.receive() {}
    }

    /// Returns the colors of a character and of its background, if they are given as RGB.
    pub fn colors(&self, row: u16, column: u16) -> Option<([u8; 3], [u8; 3])> {
        let cell = self.parser.screen().cell(row, column)?;
        let rgb = |color: vt100::Color| match color {
            vt100::Color::Rgb(r, g, b) => Some([r, g, b]),
            _ => None,
        };
        Some((rgb(cell.fgcolor())?, rgb(cell.bgcolor())?))
    }

    /// Sends SIGTERM to the command.
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits for the end of the command, with success and with the terminal as it was.
    #[track_caller]
    pub fn expect_success(mut self) {
        while self.receive() {}
        let mut status = None;
        wait_until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}: {}", self.lines().join("\n"));
        let screen = self.parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "the terminal is not restored");
    }

    /// Receives output for a moment; returns false at its end.
    fn receive(&mut self) -> bool {
        let mut fds = [PollFd::new(&self.pty, PollFlags::IN)];
        let moment = Timespec::try_from(Duration::from_millis(20)).unwrap();
        if poll(&mut fds, Some(&moment)).unwrap() == 0 {
            return true;
        }
        let mut bytes = [0; 4096];
        // EIO once no process has the terminal open.
        match self.pty.read(&mut bytes) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.parser.process(&bytes[..count]);
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(characters: u16) -> NonZero<u16> {
    NonZero::new(characters).expect("a terminal has a size")
}

/// The kernel sends SIGWINCH to the foreground processes.
fn set_size(pty: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(pty, size).unwrap();
}
