// SPDX-License-Identifier: MIT OR Apache-2.0

//! A decoder's own surfaces, shared in place.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_gpu_harness::Skip;

use super::{CUDA, Case, Descriptions, FRAMES, Place, case, is_costly, listed, right, whole};
use crate::job::{Command, Connect, Decode, Read, Stats};
use crate::peer::Peer;
use crate::picture::plain;
use crate::reconfigured::NAME;

const SUITE: &str = "gst-surfaces";

pub const CASES: &[Case] = &[
    case(SUITE, "in-place", in_place),
    case(SUITE, "a-decoder-never-stalls", never_stalls),
    case(SUITE, "surfaces-released-since-the-last-frame", released),
    case(SUITE, "a-paused-reader", paused),
    case(SUITE, "a-slow-stream", slow_stream),
    case(SUITE, "a-decoder-outlives-imports", outlives),
    case(SUITE, "a-decoder-that-clears-its-surfaces", cleared),
    case(SUITE, "memories-that-name-a-stale-stream", stale),
    case(SUITE, "a-reader-that-cannot", cannot),
    case(SUITE, "a-killed-reader", killed),
    case(SUITE, "steady-state", steady),
];

/// Starts a sink behind the decoder imitation.
pub(super) fn behind_decoder(place: &Place, properties: &str) -> Result<Peer> {
    let exporter = Peer::new()?;
    exporter.play(&format!("appsrc name=source caps={CUDA} ! {}", place.sink(properties)))?;
    Ok(exporter)
}

pub(super) const PICTURE: (u32, u32) = (320, 240);

pub(super) fn decoder(frames: u64) -> Decode {
    Decode { frames, surfaces: 10, width: PICTURE.0, height: PICTURE.1, slow_us: 500, ..Decode::default() }
}

/// Returns the checksums of the decoder imitation's frames.
pub(super) fn decoded(frames: u64, (width, height): (u32, u32)) -> Result<Vec<u64>> {
    let (rows, width) = (usize::try_from(height * 3 / 2)?, usize::try_from(width)?);
    Ok((0..frames).map(|frame| plain(rows, width, frame)).collect())
}

/// A decoder's surfaces are shared in place; readers of all kinds get every frame.
fn in_place(_: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in ["event", "timeline"] {
        let place = Place::new()?;
        let exporter = behind_decoder(&place, &format!("fence={fence}"))?;
        let readers = Peer::some(3)?;
        readers[0].connect(place.lossless())?;
        readers[1].connect(Connect { max_held: Some(2), ..place.lossless() })?;
        readers[2].connect(Connect { host: true, ..place.lossless() })?;
        exporter.execute(Command::Go)?;
        for reader in &readers {
            reader.begin(&Command::Read(Read { frames: Some(FRAMES), slow_us: 300, ..Read::default() }))?;
        }
        exporter.decode(decoder(FRAMES))?;
        let sums = decoded(FRAMES, PICTURE)?;
        for (number, reader) in readers.iter().enumerate() {
            whole(&reader.was_read()?, &sums).with_context(|| format!("{fence}, reader {number}"))?;
        }
        let stats = exporter.stats(Command::Stats)?;
        let (in_place, beyond) = (stats.path("in-place"), stats.reason("surfaces-held"));
        ensure!(in_place > FRAMES / 2 && in_place + beyond == FRAMES, "{stats:?}");
        seen.push(format!("{in_place} in place, {beyond} copied"));
        // No frame is copied while readers keep up.
        let stop = exporter.stats(Command::Stop)?;
        ensure!(stop.surfaces_held <= 7, "{stop:?}");
        drop(readers);
        ensure!(exporter.number(Command::EndDecoder { ms: 3000 })? == 0, "surfaces were not returned");
    }
    Ok(seen.join(", "))
}

/// Readers that hold frames for long do not block the decoder: when surfaces run low, frames are
/// copied.
fn never_stalls(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "")?;
    let readers = Peer::some(2)?;
    for reader in &readers {
        let latest = Connect { path: place.path(), max_held: Some(8), ..Connect::default() };
        reader.connect(latest)?;
    }
    exporter.execute(Command::Go)?;
    let sums = decoded(8 * FRAMES, PICTURE)?;
    let mut published = 0;
    for reader in &readers {
        // One reader after the other takes frames and holds them.
        reader.begin(&Command::Read(Read { frames: Some(8), hold: 8, ..Read::default() }))?;
        exporter.decode(decoder(FRAMES))?;
        right(&reader.was_read()?, &sums)?;
        published += FRAMES;
    }
    exporter.decode(decoder(FRAMES))?;
    published += FRAMES;
    // The last frames may still be in transit.
    let stats = settled(&exporter, published)?;
    ensure!(stats.reason("surfaces-held") > 0, "no surface was held, so the case tested nothing: {stats:?}");
    ensure!((2..=7).contains(&stats.surfaces_held), "{stats:?}");
    for reader in &readers {
        reader.execute(Command::ReleaseHeld)?;
    }
    // After the release of frames, surfaces are shared in place again, one by one.
    let before = stats.path("in-place");
    let until = Instant::now() + Duration::from_secs(20);
    let stats = loop {
        exporter.decode(decoder(1))?;
        published += 1;
        let stats = settled(&exporter, published)?;
        if stats.path("in-place") > before {
            break stats;
        }
        ensure!(Instant::now() < until, "{stats:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// A frame is not copied because of surfaces that readers have released meanwhile. Another thread
/// of the sink may be returning them at that moment, so one run of five is enough.
fn released(_: u64) -> Result<String> {
    // One more, and the next frame would be copied.
    const HELD: usize = 6;
    let frames = HELD as u64;
    let sums = decoded(frames, PICTURE)?;
    let mut copied = Vec::new();
    for _ in 0..5 {
        let place = Place::new()?;
        // After a pause, which a busy machine may make, frames are copied for history.
        let exporter = behind_decoder(&place, "history=0")?;
        let reader = Peer::new()?;
        reader.connect(Connect { max_held: Some(8), ..place.lossless() })?;
        exporter.execute(Command::Go)?;
        reader.begin(&Command::Read(Read { frames: Some(frames), hold: HELD, ..Read::default() }))?;
        exporter.decode(decoder(frames))?;
        right(&reader.was_read()?, &sums)?;
        reader.execute(Command::ReleaseHeld)?;
        // At once: the next poll would find the surfaces, too.
        exporter.decode(decoder(1))?;
        let stats = settled(&exporter, frames + 1)?;
        if stats.path("in-place") == frames + 1 {
            return Ok(format!("{} in place", frames + 1));
        }
        copied.push(stats);
    }
    bail!("{copied:?}")
}

/// Frames wait for a paused lossless reader as copies: the decoder keeps its surfaces, and another
/// reader gets every frame meanwhile.
fn paused(_: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in ["event", "timeline"] {
        let place = Place::new()?;
        let exporter = behind_decoder(
            &place,
            &format!("fence={fence} slow-readers=disconnect max-queued-time=60000000000"),
        )?;
        let readers = Peer::some(2)?;
        for reader in &readers {
            reader.connect(place.lossless())?;
        }
        exporter.execute(Command::Go)?;
        let read = || Command::Read(Read { frames: Some(FRAMES), ..Read::default() });
        readers[1].begin(&read())?;
        exporter.decode(decoder(FRAMES))?;
        let sums = decoded(FRAMES, PICTURE)?;
        whole(&readers[1].was_read()?, &sums).with_context(|| format!("{fence}, the other reader"))?;
        let stats = settled(&exporter, FRAMES)?;
        let (in_place, waiting) = (stats.path("in-place"), stats.reason("reader-waits"));
        ensure!(waiting + 10 > FRAMES && (1..=8).contains(&in_place), "{stats:?}");
        readers[0].begin(&read())?;
        whole(&readers[0].was_read()?, &sums).with_context(|| format!("{fence}, the paused reader"))?;
        seen.push(format!("{in_place} in place, {waiting} copied"));
        exporter.stats(Command::Stop)?;
        drop(readers);
        ensure!(exporter.number(Command::EndDecoder { ms: 3000 })? == 0, "surfaces were not returned");
    }
    Ok(seen.join(", "))
}

/// Surfaces of a slow stream are copied, so that a joining reader gets the last frame while the
/// decoder has its surface back. A fast stream stays in place.
fn slow_stream(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "")?;
    exporter.execute(Command::Go)?;
    let sums = decoded(40, PICTURE)?;
    for _ in 0..3 {
        exporter.decode(decoder(1))?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let stats = settled(&exporter, 3)?;
    ensure!(stats.path("in-place") == 1 && stats.reason("history") == 2, "{stats:?}");
    // One surface keeps the decoder alive.
    ensure!(stats.surfaces_held <= 1, "{stats:?}");
    let readers = Peer::some(2)?;
    for (reader, host) in readers.iter().zip([false, true]) {
        reader.connect(Connect { host, ..place.lossless() })?;
        reader.begin(&Command::Read(Read { frames: Some(1), ..Read::default() }))?;
        let read = reader.was_read()?;
        right(&read, &sums)?;
        ensure!(read.frames.len() == 1 && read.frames[0].0 == 3 && read.lost == 0, "{read:?}");
        reader.execute(Command::Disconnect)?;
    }
    let before = stats.path("in-place");
    exporter.decode(decoder(30))?;
    let stats = settled(&exporter, 33)?;
    ensure!(stats.path("in-place") > before, "{stats:?}");
    exporter.stats(Command::Stop)?;
    drop(readers);
    ensure!(exporter.number(Command::EndDecoder { ms: 3000 })? == 0, "surfaces were not returned");
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// Waits until a sink has published this many frames; returns its statistics.
pub(super) fn settled(exporter: &Peer, published: u64) -> Result<Stats> {
    for _ in 0..5000 {
        let stats = exporter.stats(Command::Stats)?;
        if stats.published >= published {
            return Ok(stats);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("{published} frames were not published in time: {:?}", exporter.stats(Command::Stats)?)
}

/// A replaced decoder instance keeps its surfaces until readers have closed them, even if the caps
/// did not change.
fn outlives(_: u64) -> Result<String> {
    const ROUNDS: u64 = 6;
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "")?;
    let readers = Peer::some(2)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
    }
    exporter.execute(Command::Go)?;
    let mut sums = Vec::new();
    let mut sizes = [(320, 240), (320, 240), (192, 144)].into_iter().cycle();
    for round in 0..ROUNDS {
        let (width, height) = sizes.next().context("sizes")?;
        sums.extend(decoded((round + 1) * 8, (width, height))?.split_off(sums.len()));
        for reader in &readers {
            reader.begin(&Command::Read(Read { frames: Some(8), ..Read::default() }))?;
        }
        if round > 0 {
            exporter.execute(Command::AskForAllocation)?;
        }
        exporter.decode(Decode { width, height, anew: true, ..decoder(8) })?;
        for reader in &readers {
            let read = reader.was_read()?;
            ensure!(read.frames.len() == 8 && read.lost == 0, "round {round}: {read:?}");
            right(&read, &sums).with_context(|| format!("round {round}"))?;
        }
    }
    for reader in &readers {
        // While a reader waits for further frames it processes retirements.
        reader.begin(&Command::Read(Read { frames: Some(1), ..Read::default() }))?;
    }
    exporter.decode(Decode { anew: true, ..decoder(1) })?;
    for reader in &readers {
        reader.was_read()?;
        reader.begin(&Command::Read(Read { frames: Some(1), ..Read::default() }))?;
    }
    exporter.execute(Command::AskForAllocation)?;
    let left = exporter.number(Command::EndDecoder { ms: 4000 })?;
    ensure!(left == 0, "{left} decoders still have their surfaces");
    let stats = exporter.stats(Command::Stats)?;
    ensure!(stats.path("in-place") > 0 && stats.surfaces_held == 0, "{stats:?}");
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// A decoder clears the surfaces of one size before it says that there is another: frames are
/// intact nevertheless, in place and copied, before and after a change.
fn cleared(_: u64) -> Result<String> {
    const ROUNDS: u64 = 8;
    let mut seen = Vec::new();
    for export in ["auto", "copy"] {
        let place = Place::new()?;
        let exporter = Peer::new()?;
        let sink = place.sink(&format!("export={export} history=0"));
        exporter
            .play(&format!("appsrc name=source format=time ! {NAME} name=decoder ! identity ! {sink}"))?;
        let readers = Peer::some(2)?;
        for reader in &readers {
            reader.connect(place.lossless())?;
        }
        exporter.execute(Command::Go)?;
        for reader in &readers {
            reader.begin(&Command::Read(Read { slow_us: 1500, ..Read::default() }))?;
        }
        let mut sums = Vec::new();
        let mut sizes = [(320, 240), (192, 144)].into_iter().cycle();
        for round in 1..=ROUNDS {
            let (width, height) = sizes.next().context("sizes")?;
            sums.extend(decoded(round * 8, (width, height))?.split_off(sums.len()));
            exporter.decode(Decode { width, height, ..decoder(8) })?;
        }
        exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            whole(&reader.was_read()?, &sums).with_context(|| export.to_owned())?;
        }
        let stats = exporter.stats(Command::Stats)?;
        let (in_place, waited) = (stats.path("in-place"), stats.reason("decoder-changes"));
        ensure!(waited >= ROUNDS - 1 || export == "copy", "{stats:?}");
        ensure!(in_place > 0 || export == "copy", "{stats:?}");
        exporter.stats(Command::Stop)?;
        drop(readers);
        ensure!(exporter.number(Command::EndDecoder { ms: 3000 })? == 0, "surfaces were not returned");
        seen.push(format!("{in_place} in place, {} copied", stats.path("copied")));
    }
    Ok(seen.join("; "))
}

/// A decoder's memories name a stream other than the one that writes: frames are intact
/// nevertheless, in place and copied, while the allocation query is repeated.
fn stale(_: u64) -> Result<String> {
    for export in ["auto", "copy"] {
        let place = Place::new()?;
        let exporter = behind_decoder(&place, &format!("export={export}"))?;
        let readers = Peer::some(2)?;
        for reader in &readers {
            reader.connect(place.lossless())?;
        }
        exporter.execute(Command::Go)?;
        for reader in &readers {
            reader.begin(&Command::Read(Read { frames: Some(FRAMES), ..Read::default() }))?;
        }
        for round in 0..8 {
            exporter.decode(Decode { stale: true, slow_us: 2000, ..decoder(FRAMES / 8) })?;
            if round < 7 {
                exporter.execute(Command::AskForAllocation)?;
            }
        }
        let sums = decoded(FRAMES, PICTURE)?;
        for reader in &readers {
            whole(&reader.was_read()?, &sums).with_context(|| export.to_owned())?;
        }
        let stats = exporter.stats(Command::Stats)?;
        let path = if export == "copy" { "copied" } else { "in-place" };
        ensure!(stats.path(path) > 0, "{stats:?}");
    }
    Ok(String::new())
}

/// Another user may have GPU memory but cannot open a decoder's surfaces: from its connection on
/// every frame is copied, for all readers, and none is lost.
fn cannot(_: u64) -> Result<String> {
    if rustix::process::geteuid().as_raw() != 0 {
        return Err(Skip("changing the user requires root".into()).into());
    }
    let place = Place::new()?;
    place.open()?;
    // The second reader takes long to connect: the first surface after that is not to be copied for
    // readers that join.
    let access = "history=0 trusted-uids=<65534> allowed-uids=<65534> socket-mode=0666";
    let exporter = behind_decoder(&place, access)?;
    let readers = Peer::some(2)?;
    readers[0].connect(place.lossless())?;
    exporter.execute(Command::Go)?;
    readers[0].begin(&Command::Read(Read { frames: Some(2 * FRAMES), ..Read::default() }))?;
    exporter.decode(decoder(FRAMES))?;
    let first = settled(&exporter, FRAMES)?;
    ensure!(first.reason("reader-cannot") == 0 && first.path("in-place") > 0, "{first:?}");
    readers[1].become_nobody()?;
    readers[1].connect(Connect { lossless: false, max_held: Some(8), ..place.lossless() })?;
    readers[1].begin(&Command::Read(Read { frames: Some(4), ..Read::default() }))?;
    exporter.decode(decoder(FRAMES))?;
    let sums = decoded(2 * FRAMES, PICTURE)?;
    whole(&readers[0].was_read()?, &sums)?;
    let read = readers[1].was_read()?;
    ensure!(read.error.is_empty() && read.on_gpu == 4, "{read:?}");
    right(&read, &sums)?;
    let stats = settled(&exporter, 2 * FRAMES)?;
    ensure!(stats.reason("reader-cannot") == FRAMES, "{stats:?}");
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// A reader that holds frames is killed: the others continue, and the decoder gets its surfaces
/// back.
fn killed(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "fence=timeline")?;
    let mut readers = Peer::some(2)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
    }
    exporter.execute(Command::Go)?;
    readers[0].begin(&Command::Read(Read { frames: Some(2 * FRAMES), ..Read::default() }))?;
    readers[1].begin(&Command::Read(Read { frames: Some(3), hold: 3, ..Read::default() }))?;
    exporter.decode(decoder(4))?;
    readers[1].was_read()?;
    readers[1].kill()?;
    exporter.decode(decoder(2 * FRAMES - 4))?;
    whole(&readers[0].was_read()?, &decoded(2 * FRAMES, PICTURE)?)?;
    drop(readers);
    exporter.stats(Command::Stop)?;
    let left = exporter.number(Command::EndDecoder { ms: 4000 })?;
    ensure!(left == 0, "the decoder still has its surfaces");
    Ok(String::new())
}

/// In the steady state the sink makes no call that allocates, frees, imports, exports or waits; in
/// place, none that copies.
fn steady(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "fence=timeline")?;
    let readers = Peer::some(2)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
        reader.begin(&Command::Read(Read::default()))?;
    }
    exporter.execute(Command::Go)?;
    let mut published = 0;
    let mut step = |frames: u64| -> Result<Stats> {
        // One frame at a time, so that none is copied for lack of surfaces.
        for _ in 0..frames {
            exporter.decode(Decode { slow_us: 0, ..decoder(1) })?;
            published += 1;
            settled(&exporter, published)?;
            std::thread::sleep(Duration::from_millis(2));
        }
        exporter.stats(Command::Stats)
    };
    // On a busy machine a frame may need one event more than all frames before.
    let mut before = step(30)?;
    loop {
        let after = step(30)?;
        ensure!(after.path("in-place") == after.published, "{after:?}");
        let calls = after.calls_since(&before);
        if !calls.iter().any(|(call, _)| is_costly(call, "Memcpy")) {
            return Ok(listed(&calls));
        }
        ensure!(after.published < 180, "in each of 5 times 30 frames; in the last: {}", listed(&calls));
        before = after;
    }
}
