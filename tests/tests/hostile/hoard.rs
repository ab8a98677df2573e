// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers of another user that keep the memory of every frame and message that they get, by
//! another process that stays when they leave (`hostile hoard`).

use frameshare_tests::{
    process::{PATIENCE, Process, TestRun},
    skip,
};
use serde_json::Value;
use std::{
    fs, io,
    os::unix::fs::chown,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

const ATTACKER: &str = "setpriv --reuid 4001 --regid 4001 --clear-groups";
const OTHER: &str = "setpriv --reuid 4002 --regid 4002 --clear-groups";
/// Frames between two changes of caps, and the size of the smallest ones; the largest ones have
/// four times as many bytes.
const RENEW: u64 = 30;
const SIZE: u64 = 50_000;
const READ: &str = "read --socket s.sock --verify yes --quiet yes --timeout-ms 60000";
const MIB: u64 = 1 << 20;
/// Bytes of the largest slots, as many as all readers of the attack hold and some more, and of all
/// other files that they get.
const MOST: u64 = 160 * 4 * SIZE + 16 * MIB;

struct Attack {
    run: TestRun,
    exporter: Process,
    /// A reader of the exporter's user that may lose nothing.
    honest: Process,
    keeper: Process,
}

/// The memory that the attack got.
struct Loot {
    files: u64,
    bytes: u64,
    /// The reason for which the exporter ended or refused a reader for its limits.
    refusal: Option<String>,
}

impl Attack {
    /// Starts an exporter for readers of two other users.
    fn new(options: &str) -> Self {
        let run = TestRun::new();
        run.open_to_others();
        let mut exporter = run.peer(&format!(
            "export --socket s.sock --socket-mode 666 --allowed-uids 4001,4002 --frames 100000000 --fps 200 \
             --size {SIZE} --until end --readers 1 {options}"
        ));
        exporter.wait_for("open");
        let honest = run.peer(&format!("{READ} --policy lossless"));
        let (path, loot) = (run.path("hostile"), run.path("loot"));
        fs::create_dir(&loot).expect("the folder is ours");
        chown(&loot, Some(4001), None).expect("root may");
        let mut keeper = run.command(&format!("{ATTACKER} {} keep loot/s", path.display()));
        keeper.wait_for("keeps");
        let attack = Self { run, exporter, honest, keeper };
        // A refused attacker is no success of the exporter: its user may read.
        let summary = attack.read(ATTACKER, "--frames 100").expect_success().summary();
        assert_eq!((&summary["frames"], &summary["bad"]), (&100.into(), &0.into()), "{summary}");
        attack
    }

    fn read(&self, by: &str, options: &str) -> Process {
        self.run.peer_by(by, &format!("{READ} {options}"))
    }

    /// Collects memory for this time, in a process that ends.
    fn hoard(&mut self, seconds: u64) -> Loot {
        let (hostile, socket) = (self.run.path("hostile"), self.run.path("s.sock"));
        let by = format!("{ATTACKER} {} hoard {} loot/s {seconds}", hostile.display(), socket.display());
        let done = self.run.command(&by).expect_success().events("done").pop().expect("its end");
        let kept = self.keeper.wait_for("kept");
        let number = |value: &Value| value.as_u64().expect("a number");
        let refusal = done["refusal"].as_str().map(Into::into);
        println!("{done} {kept}");
        Loot { files: number(&kept["files"]), bytes: number(&kept["bytes"]), refusal }
    }

    /// Ends the stream, of which the honest reader has lost nothing.
    fn end(mut self) {
        fs::write(self.run.path("end"), "").expect("the folder is ours");
        let published = self.exporter.expect_success().summary()["published"].clone();
        let summary = self.honest.expect_success().summary();
        assert_eq!(
            (&summary["frames"], &summary["lost"], &summary["bad"], &summary["end"]),
            (&published, &0.into(), &0.into(), &"eos".into()),
            "{summary}"
        );
        self.keeper.kill();
    }
}

/// The memory of former caps is used for the next ones. Without the account, which readers of
/// trusted users have none of, each change of the caps costs the exporter some MiB: the control.
#[test]
fn slots_that_other_user_keeps_are_used_again() {
    if !skip::is_root("hostile/slots_that_other_user_keeps_are_used_again") {
        return;
    }
    let renew = format!("--renew-every {RENEW}");
    for (trusted, is_bounded) in [("", true), ("--trusted-uids 4001,4002", false)] {
        let mut attack = Attack::new(&format!("{renew} {trusted}"));
        let other = attack.read(OTHER, &format!("--policy latest --frames {}", 25 * RENEW));
        attack.hoard(8);
        let loot = attack.hoard(4);
        assert_eq!(loot.refusal, None, "its account is not full");
        assert_eq!(loot.bytes < MOST, is_bounded, "{} bytes in {} files", loot.bytes, loot.files);
        let summary = other.expect_success().summary();
        assert_eq!((&summary["frames"], &summary["bad"]), (&(25 * RENEW).into(), &0.into()), "{summary}");
        attack.end();
    }
}

/// Payload files of readers that take no frame after them are charged, and fill the account.
#[test]
fn user_with_full_account_gets_no_further_memory() {
    if !skip::is_root("hostile/user_with_full_account_gets_no_further_memory") {
        return;
    }
    const LIMIT: u64 = 16 * MIB;
    let options = format!("--event-bytes 100000 --renew-every {RENEW} --max-retired-bytes {LIMIT}");
    let mut attack = Attack::new(&options);
    let begin = Instant::now();
    let loot = loop {
        let loot = attack.hoard(4);
        if loot.refusal.is_some() {
            break loot;
        }
        assert!(begin.elapsed() < PATIENCE, "its account does not become full: {} bytes", loot.bytes);
    };
    let refusal = loot.refusal.unwrap_or_default();
    assert!(refusal.contains("user 4001") && refusal.contains("max_retired_bytes"), "{refusal}");
    assert!((LIMIT..LIMIT + MOST).contains(&loot.bytes), "{} bytes in {} files", loot.bytes, loot.files);
    // Others have accounts of their own.
    let summary = attack.read(OTHER, "--frames 100").expect_success().summary();
    assert_eq!((&summary["frames"], &summary["bad"]), (&100.into(), &0.into()), "{summary}");
    attack.end();
}

/// Honest readers with large payloads, which come and go, do not fill the account of their user.
#[test]
fn honest_reader_of_large_payloads_stays_within_account() {
    if !skip::is_root("hostile/honest_reader_of_large_payloads_stays_within_account") {
        return;
    }
    // Payloads of 800 frames have 80 MB.
    let attack = Attack::new(&format!("--metadata-bytes 100000 --max-retired-bytes {}", 8 * MIB));
    for _ in 0..8 {
        let summary = attack.read(OTHER, "--frames 100").expect_success().summary();
        assert_eq!((&summary["frames"], &summary["bad"]), (&100.into(), &0.into()), "{summary}");
    }
    attack.end();
}

/// A memory cgroup with a limit. The kernel removes it after its last process.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(limit: u64) -> io::Result<Self> {
        let name = format!("frameshare-test-{}", std::process::id());
        let (one, two) = (PathBuf::from("/sys/fs/cgroup/memory"), PathBuf::from("/sys/fs/cgroup"));
        let (root, file) = match one.exists() {
            true => (one, "memory.limit_in_bytes"),
            false => (two, "memory.max"),
        };
        let group = Self(root.join(name));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(file), limit.to_string())?;
        Ok(group)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            thread::yield_now();
        }
    }
}

/// The exporter survives in a memory cgroup, which the attack fills if it works on an exporter
/// without accounts: the control, which the kernel kills.
#[test]
fn memory_cgroup_of_exporter_is_not_filled() {
    const TEST: &str = "hostile/memory_cgroup_of_exporter_is_not_filled";
    if !skip::is_root(TEST) {
        return;
    }
    let limit = MOST + 64 * MIB;
    for (trusted, survives) in [("", true), ("--trusted-uids 4001", false)] {
        let group = match Cgroup::new(limit) {
            Ok(group) => group,
            Err(error) => return skip::skip(TEST, &format!("no memory cgroup can be made: {error}")),
        };
        let mut attack = Attack::new(&format!("--renew-every {RENEW} {trusted}"));
        fs::write(group.0.join("cgroup.procs"), attack.exporter.pid().to_string())
            .expect("the exporter's group");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) && !attack.exporter.has_exited() {
            attack.hoard(4);
        }
        assert_eq!(!attack.exporter.has_exited(), survives, "{trusted}");
        attack.exporter.kill();
        attack.honest.finish();
        attack.keeper.kill();
    }
}
