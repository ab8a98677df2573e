// SPDX-License-Identifier: MIT OR Apache-2.0

//! framesharesrc with frames on a GPU, connected to framesharesink.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::order::{self, Expected};

use super::sink::{CONVERTED, expected, needs_kernels, pictures, pictures_for};
use super::surfaces::{PICTURE, behind_decoder, decoded, decoder};
use super::{CUDA, Case, Descriptions, FRAMES, Needs, Place, case};
use crate::job::{Command, Decode, ReadApart, Receive, Received, Side};
use crate::peer::Peer;

const SUITE: &str = "gst-source";

pub const CASES: &[Case] = &[
    case(SUITE, "every-kind-of-memory-and-fence", kinds),
    case(SUITE, "sizes-change-in-place", sizes),
    case(SUITE, "sizes-change-in-slots", sizes_in_slots),
    case(SUITE, "read-on-another-stream", another_stream),
    case(SUITE, "read-in-another-context", another_context),
    case(SUITE, "read-where-nobody-knows-is-caught", hidden),
    case(SUITE, "host-frames-of-a-gpu-exporter", host_frames),
    case(SUITE, "converted-downstream", converted),
    case(SUITE, "two-streams-in-one-pipeline", two_streams),
    case(SUITE, "in-the-exporters-own-pipeline", same_process),
    case(SUITE, "the-next-exporter", next_exporter),
    case(SUITE, "steady-state", steady),
    Case { needs: Needs::TwoDevices, ..case(SUITE, "on-another-gpu", another_gpu) },
];

/// Starts a reading pipeline in a peer.
fn begin(reader: &Peer, pipeline: String) -> Result<()> {
    reader.begin(&Command::Receive(Receive { pipeline, hold: 2, ..Receive::default() }))
}

/// Waits until this number of readers has connected.
pub(super) fn await_readers(exporter: &Peer, count: usize) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while exporter.stats(Command::Stats)?.fences.len() < count {
        ensure!(Instant::now() < until, "{count} readers did not connect in time");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Checks that a pipeline got every frame, each intact.
fn whole(received: &Received, expected: &[u64]) -> Result<()> {
    let Received { frames, lost, error, .. } = received;
    ensure!(error.is_empty(), "after {} frames: {error}", frames.len());
    ensure!(
        frames.len() == expected.len() && *lost == 0,
        "{} frames arrived, {lost} were lost",
        frames.len()
    );
    for ((sequence, sum), (number, expected)) in frames.iter().zip((1..).zip(expected)) {
        ensure!(*sequence == number && sum == expected, "frame {number} has a wrong checksum");
    }
    Ok(())
}

/// Frames arrive unchanged in CUDA memory, after cudadownload, and in system memory.
fn kinds(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=322,height=241");
    let sums = expected(&pictures)?;
    let mut seen = Vec::new();
    for memory in ["vmm", "pool", "legacy"] {
        for fence in ["event", "timeline"] {
            let place = Place::new()?;
            let exporter = Peer::new()?;
            let sink = place.sink(&format!("memory={memory}"));
            exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! {sink}"))?;
            let readers = Peer::some(3)?;
            let source = place.source(&format!("fence={fence}"));
            for (reader, rest) in
                readers.iter().zip([&format!("{CUDA} !"), "cudadownload ! video/x-raw !", ""])
            {
                begin(reader, format!("{source} ! {rest} appsink name=out"))?;
            }
            await_readers(&exporter, readers.len())?;
            exporter.execute(Command::Go)?;
            for (number, reader) in readers.iter().enumerate() {
                let received = reader.received()?;
                whole(&received, &sums).with_context(|| format!("{memory}, {fence}, reader {number}"))?;
                let on_gpu = if number == 0 { FRAMES } else { 0 };
                ensure!(received.on_gpu == on_gpu, "reader {number}: {} in CUDA memory", received.on_gpu);
            }
            exporter.execute(Command::AwaitEnd { ms: 10_000 })?;
            seen = exporter.stats(Command::Stop)?.fences;
        }
    }
    Ok(seen.join(", "))
}

/// A sink with a GPU that gets system memory: readers with a GPU get host frames, with caps that
/// say so.
fn host_frames(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=322,height=241");
    let sums = expected(&pictures)?;
    let place = Place::new()?;
    let exporter = Peer::new()?;
    exporter.play(&format!("{pictures} ! cudaupload ! {}", place.sink("")))?;
    let readers = Peer::some(3)?;
    let source = place.source("");
    begin(&readers[0], format!("{source} ! cudaupload ! {CUDA} ! appsink name=out"))?;
    begin(&readers[1], format!("{source} ! capsfilter caps=\"{CUDA};video/x-raw\" ! appsink name=out"))?;
    await_readers(&exporter, 2)?;
    begin(&readers[2], format!("{source} ! {CUDA} ! appsink name=out"))?;
    let refused = readers[2].received()?;
    ensure!(refused.frames.is_empty() && refused.error.contains("cudaupload"), "{refused:?}");
    exporter.execute(Command::Go)?;
    for (number, on_gpu) in [(0, FRAMES), (1, 0)] {
        let received = readers[number].received()?;
        whole(&received, &sums).with_context(|| format!("reader {number}"))?;
        ensure!(received.on_gpu == on_gpu, "reader {number}: {} in CUDA memory", received.on_gpu);
    }
    Ok(refused.error)
}

/// A decoder changes its frame size twenty times, its surfaces shared in place, while frames of old
/// sizes are held.
fn sizes(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "")?;
    let readers = Peer::some(2)?;
    begin(&readers[0], format!("{} max-held=8 ! {CUDA} ! appsink name=out", place.source("")))?;
    begin(&readers[1], format!("{} ! cudadownload ! appsink name=out", place.source("")))?;
    exporter.execute(Command::Go)?;
    await_readers(&exporter, readers.len())?;
    let mut sums = Vec::new();
    for (round, (width, height)) in (0..20).zip([PICTURE, (640, 480), (192, 144)].into_iter().cycle()) {
        sums.extend(decoded((round + 1) * 4, (width, height))?.split_off(sums.len()));
        exporter.decode(Decode { width, height, anew: true, ..decoder(4) })?;
    }
    exporter.execute(Command::EndOfStream)?;
    for (number, reader) in readers.iter().enumerate() {
        whole(&reader.received()?, &sums).with_context(|| format!("reader {number}"))?;
    }
    let stats = exporter.stats(Command::Stop)?;
    drop(readers);
    ensure!(exporter.number(Command::EndDecoder { ms: 4000 })? == 0, "surfaces were not returned");
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// The same in slots that upstream writes to.
fn sizes_in_slots(_: u64) -> Result<String> {
    const SIZES: [(u32, u32); 4] = [(322, 241), (640, 480), (160, 120), (322, 241)];
    for memory in ["vmm", "pool", "legacy"] {
        let parts = SIZES
            .map(|(width, height)| pictures_for(&format!("format=NV12,width={width},height={height}"), 8));
        let mut sums = Vec::new();
        for part in &parts {
            sums.extend(expected(part)?);
        }
        let place = Place::new()?;
        let exporter = Peer::new()?;
        let parts = parts.map(|part| format!("{part} ! cudaupload ! {CUDA} ! c.")).join(" ");
        exporter.play(&format!("concat name=c ! {} {parts}", place.sink(&format!("memory={memory}"))))?;
        let reader = Peer::new()?;
        begin(&reader, format!("{} max-held=8 ! {CUDA} ! appsink name=out", place.source("")))?;
        await_readers(&exporter, 1)?;
        exporter.execute(Command::Go)?;
        whole(&reader.received()?, &sums).context(memory)?;
        exporter.execute(Command::AwaitEnd { ms: 10_000 })?;
    }
    Ok(String::new())
}

/// Sends frames at full speed in few slots to a reader that reads them late on its own stream and
/// releases each at once; returns the received frames and the expected checksums.
fn read_apart(side: Side, memory: &str, fence: &str) -> Result<(Received, Vec<u64>)> {
    // More than the reader takes: the end of the stream would free the memory.
    let pictures = |frames| pictures_for("format=NV12,width=320,height=240", frames);
    let sums = expected(&pictures(APART))?;
    let place = Place::new()?;
    let exporter = Peer::new()?;
    let sink = place.sink(&format!("memory={memory} fence={fence} max-slots=8"));
    exporter.play(&format!("{} ! cudaupload ! {CUDA} ! {sink}", pictures(500 * APART)))?;
    let reader = Peer::new()?;
    let pipeline = format!("{} max-held=6 ! {CUDA} ! appsink name=out", place.source(""));
    // Slower than the exporter even on a busy machine, where its frames are to be overwritten.
    let slow_us = if side == Side::OtherHidden { 50_000 } else { 5000 };
    reader.begin(&Command::ReadApart(ReadApart { pipeline, frames: APART, slow_us, side }))?;
    await_readers(&exporter, 1)?;
    exporter.execute(Command::Go)?;
    let received = reader.received()?;
    // Frames copied by the source are safe anyway and test nothing.
    ensure!(received.copied * 4 < APART, "{} of {APART} frames were copied", received.copied);
    Ok((received, sums))
}

/// Number of frames that [`read_apart`] reads; their work fits on a stream at once.
const APART: u64 = FRAMES;

/// Work on any stream of the pipeline's context is waited for, even if the frame it reads was
/// released before the work began.
fn another_stream(_: u64) -> Result<String> {
    let mut seen = Vec::new();
    for (memory, fence) in [("vmm", "timeline"), ("vmm", "event"), ("legacy", "timeline"), ("pool", "event")]
    {
        let (received, sums) = read_apart(Side::Same, memory, fence)?;
        whole(&received, &sums).with_context(|| format!("{memory}, {fence}"))?;
        seen.push(format!("{memory} {fence}: {} frames, {} copied", sums.len(), received.copied));
    }
    Ok(seen.join(", "))
}

/// The same for work in another context, if its stream is named in the frame's meta.
fn another_context(_: u64) -> Result<String> {
    for fence in ["timeline", "event"] {
        let (received, sums) = read_apart(Side::OtherNamed, "vmm", fence)?;
        whole(&received, &sums).context(fence)?;
    }
    Ok(String::new())
}

/// Negative control of both: a reader in another context whose use is not declared gets overwritten
/// frames, which is detected. The plugin's own tests remove the context-wide record, which cannot
/// be done from outside.
fn hidden(_: u64) -> Result<String> {
    order::expect(Expected::Unordered);
    let mut seen = Vec::new();
    for fence in ["timeline", "event"] {
        let (received, sums) = read_apart(Side::OtherHidden, "vmm", fence)?;
        let frames = received.frames.iter().zip(&sums);
        let wrong = frames.filter(|((_, sum), expected)| sum != *expected).count();
        ensure!(
            wrong > 0,
            "{fence}: none of {} frames is wrong: the test does not detect a missing fence",
            sums.len()
        );
        seen.push(format!("{fence}: {wrong} of {} wrong", sums.len()));
    }
    Ok(seen.join(", "))
}

/// cudaconvertscale reads frames in place, on its own stream where possible, and releases them with
/// its kernels still queued. The result must equal that of the same frames in a single pipeline.
fn converted(_: u64) -> Result<String> {
    needs_kernels()?;
    let pictures = pictures_for("format=NV12,width=640,height=480", 3 * FRAMES);
    let sums = expected(&format!("{pictures} ! cudaupload ! {CONVERTED} ! cudadownload ! video/x-raw"))?;
    let mut seen = Vec::new();
    for memory in ["vmm", "pool", "legacy"] {
        // Without an allocation query no stream is shared, so each side keeps its own.
        for between in ["", "identity drop-allocation=true !"] {
            let place = Place::new()?;
            let exporter = Peer::new()?;
            let sink = place.sink(&format!("memory={memory} max-slots=8"));
            exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! {sink}"))?;
            let reader = Peer::new()?;
            let source = format!("{} max-held=4 ! {CUDA} ! {between}", place.source(""));
            let rest = "queue ! cudadownload ! video/x-raw ! appsink name=out";
            reader.begin(&Command::Receive(Receive {
                pipeline: format!("{source} {CONVERTED} ! {rest}"),
                ..Receive::default()
            }))?;
            await_readers(&exporter, 1)?;
            exporter.execute(Command::Go)?;
            let received = reader.received()?;
            whole(&received, &sums).with_context(|| format!("{memory}, {between}"))?;
            exporter.execute(Command::AwaitEnd { ms: 10_000 })?;
            seen.push(format!("{memory}: {} frames, {} copied", sums.len(), received.copied));
        }
    }
    Ok(seen.join(", "))
}

/// Two sources of one pipeline share its context, so that both can read even legacy memory.
fn two_streams(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=320,height=240");
    let sums = expected(&pictures)?;
    for memory in ["legacy", "vmm"] {
        let places = [Place::new()?, Place::new()?];
        let exporters = Peer::some(2)?;
        for (place, exporter) in places.iter().zip(&exporters) {
            let sink = place.sink(&format!("memory={memory}"));
            exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! {sink}"))?;
        }
        let reader = Peer::new()?;
        let [first, second] = [&places[0], &places[1]].map(|place| place.source(""));
        let rest = format!("{CUDA} ! fakesink sync=false");
        begin(&reader, format!("{first} ! cudadownload ! appsink name=out  {second} ! {rest}"))?;
        for exporter in exporters.iter().rev() {
            await_readers(exporter, 1)?;
            exporter.execute(Command::Go)?;
        }
        let received = reader.received()?;
        whole(&received, &sums).context(memory)?;
        ensure!(received.received == [FRAMES; 2], "{memory}: {:?}", received.received);
    }
    Ok(String::new())
}

/// A source reads the stream of a sink in the same process and context.
fn same_process(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=320,height=240");
    let sums = expected(&pictures)?;
    for memory in ["vmm", "pool", "legacy"] {
        for fence in ["event", "timeline"] {
            let place = Place::new()?;
            // Neither of the two sinks may block the preroll of the other.
            let sink =
                place.sink(&format!("memory={memory} fence={fence} wait-for-connection=true async=false"));
            let source = place.source("");
            let reader = Peer::new()?;
            begin(
                &reader,
                format!(
                    "{pictures} ! cudaupload ! {CUDA} ! {sink}  {source} ! cudadownload ! appsink name=out"
                ),
            )?;
            whole(&reader.received()?, &sums).with_context(|| format!("{memory}, {fence}"))?;
        }
    }
    Ok(String::new())
}

/// An exporter is killed; the source continues with its successor, which uses another kind of
/// memory.
fn next_exporter(_: u64) -> Result<String> {
    let place = Place::new()?;
    let reader = Peer::new()?;
    // With speculative delivery some frames would be torn when an exporter is killed: those that
    // are killed use event fences, which the reader did not ask for.
    let source = place.source("on-disconnect=wait connection-timeout=-1");
    begin(&reader, format!("{source} ! {CUDA} ! appsink name=out"))?;
    let mut sums = Vec::new();
    for (memory, fence) in [("vmm", "event"), ("legacy", "event"), ("pool", "event"), ("vmm", "timeline")] {
        let pictures = pictures_for("format=NV12,width=320,height=240", 5 * FRAMES);
        let of_one = expected(&pictures)?;
        let mut exporter = Peer::new()?;
        let sink = place.sink(&format!("memory={memory} fence={fence}"));
        // Slow enough to be killed while it publishes.
        exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! identity sleep-time=2000 ! {sink}"))?;
        await_readers(&exporter, 1)?;
        exporter.execute(Command::Go)?;
        if sums.len() == 3 {
            exporter.execute(Command::AwaitEnd { ms: 30_000 })?;
        } else {
            settle(&exporter, 20)?;
            exporter.kill()?;
        }
        sums.push(of_one);
    }
    let received = reader.received()?;
    ensure!(received.error.is_empty(), "{}", received.error);
    // Each session counts from one; frames not taken before an exporter died are lost.
    let mut session = 0;
    let mut last = 0;
    for (sequence, sum) in &received.frames {
        session += usize::from(*sequence <= last);
        last = *sequence;
        let expected = sums.get(session).and_then(|sums| sums.get(usize::try_from(sequence - 1).ok()?));
        ensure!(expected == Some(sum), "frame {sequence} of exporter {session} has a wrong checksum");
    }
    ensure!(session == 3 && last == 5 * FRAMES, "the stream ended with frame {last} of exporter {session}");
    Ok(format!("{} frames of four exporters", received.frames.len()))
}

/// Waits until this number of frames is published.
pub(super) fn settle(exporter: &Peer, published: u64) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while exporter.stats(Command::Stats)?.published < published {
        ensure!(Instant::now() < until, "{published} frames were not published in time");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// In the steady state the source makes no call that allocates, frees, copies or waits, and imports
/// each slot once.
fn steady(_: u64) -> Result<String> {
    const COUNTED: u64 = 2 * FRAMES;
    const SLOTS: u64 = 10;
    // The last frames are not counted: after them all resources are released.
    let pictures = pictures_for("format=NV12,width=320,height=240", FRAMES + COUNTED + 10);
    let sums = expected(&pictures)?;
    let mut seen = Vec::new();
    for (memory, fence) in [("vmm", "timeline"), ("legacy", "event")] {
        let place = Place::new()?;
        let exporter = Peer::new()?;
        let sink = place.sink(&format!("memory={memory} fence={fence} max-slots={SLOTS}"));
        exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! {sink}"))?;
        let reader = Peer::new()?;
        let source = place.source("max-held=8");
        // A download waits for the frame, so that frames are released one by one and none is
        // copied.
        let pipeline = format!("{source} ! cudadownload ! video/x-raw ! appsink name=out");
        let counted = Some((FRAMES, FRAMES + COUNTED));
        reader.begin(&Command::Receive(Receive { pipeline, hold: 0, counted }))?;
        await_readers(&exporter, 1)?;
        exporter.execute(Command::Go)?;
        let Received { calls, copied, .. } = {
            let received = reader.received()?;
            whole(&received, &sums)?;
            received
        };
        ensure!(copied == 0, "{copied} frames were copied");
        let of = |word: &str| -> u64 {
            calls.iter().filter(|(call, _)| call.contains(word)).map(|(_, count)| *count).sum()
        };
        for word in ["Alloc", "Free", "Close", "Synchronize", "Register", "Create", "Destroy", "Memcpy"] {
            ensure!(of(word) == 0, "{memory}, {fence}: {word} among {calls:?}");
        }
        // Upstream may use a slot late for the first time.
        let imports = of("Import") + of("IpcOpen");
        ensure!(imports < SLOTS, "{memory}, {fence}: {imports} imports for {SLOTS} slots");
        // Frames in transit may count or not.
        ensure!(of("cuCtxRecordEvent") <= COUNTED + SLOTS, "{calls:?}");
        let calls = calls.iter().map(|(call, count)| format!("{call} {:.2}", *count as f64 / COUNTED as f64));
        seen.push(format!("{memory} {fence}: {}", calls.collect::<Vec<_>>().join(", ")));
    }
    Ok(seen.join(" | "))
}

/// A pipeline on the second GPU reads frames of the first in place.
fn another_gpu(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=320,height=240");
    let sums = expected(&pictures)?;
    for memory in ["vmm", "pool", "legacy"] {
        let place = Place::new()?;
        let exporter = Peer::new()?;
        let sink = place.sink(&format!("memory={memory} cuda-device-id=0"));
        exporter.play(&format!("{pictures} ! cudaupload cuda-device-id=0 ! {CUDA} ! {sink}"))?;
        let reader = Peer::new()?;
        begin(&reader, format!("{} cuda-device-id=1 ! {CUDA} ! appsink name=out", place.source("")))?;
        await_readers(&exporter, 1)?;
        exporter.execute(Command::Go)?;
        let received = reader.received()?;
        whole(&received, &sums).context(memory)?;
        ensure!(received.on_gpu == FRAMES, "{memory}: {} in CUDA memory", received.on_gpu);
    }
    Ok(String::new())
}
