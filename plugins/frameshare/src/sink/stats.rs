// SPDX-License-Identifier: MIT OR Apache-2.0

//! The property `stats`, and the structures of the signals.

use super::{copy_stats::by_reason, stream::Stream};
use frameshare::exporter::{ReaderInfo, ReaderStats, Stats};

/// Identity of a reader.
pub(super) fn reader(info: &ReaderInfo) -> gst::Structure {
    gst::Structure::builder("framesharesink-reader")
        .field("id", info.id)
        .field("pid", info.pid)
        .field("uid", info.uid)
        .field("name", &info.name)
        .field("policy", info.policy.to_string())
        .field("max-held", info.credit)
        .field("max-queued", info.max_queued)
        .build()
}

fn reader_stats(stats: &ReaderStats) -> gst::Structure {
    let mut structure = reader(&stats.info);
    structure.set("held", stats.held);
    structure.set("queued", stats.queued);
    structure.set("waiting", stats.waiting);
    structure.set("adopted", stats.adopted);
    structure.set("sent", stats.sent);
    structure.set("lost", stats.lost);
    structure.set("lag", stats.lag);
    structure.set("copies-for-layout", stats.copies_for_layout);
    structure.set("fence", stats.fence.kind.to_string());
    structure.set("fence-why", &stats.fence.why);
    structure
}

/// Mean time in ns from the arrival of a frame to its publication.
fn mean_wait(stats: &Stats) -> u64 {
    let waited = u64::try_from(stats.waited.as_nanos()).unwrap_or(u64::MAX);
    waited.checked_div(stats.published).unwrap_or(0)
}

/// Statistics of a stream; before there is one, only zeros. It is paced if frames wait for their
/// time.
pub(super) fn stats(stream: Option<&Stream>, is_paced: bool) -> gst::Structure {
    let name = "framesharesink-stats";
    let Some(stream) = stream else {
        return gst::Structure::builder(name)
            .field("published", 0u64)
            .field("paced", is_paced)
            .field("mean-wait", 0u64)
            .field("copies", 0u64)
            .field("readers", gst::Array::default())
            .field("draining", gst::Array::default())
            .build();
    };
    let stats = stream.exporter.stats();
    let reasons = by_reason(&stats.copies)
        .fold(gst::Structure::builder("copies"), |builder, (reason, count)| builder.field(reason, count));
    let pool = gst::Structure::builder("pool")
        .field("memory", stats.memory.kind.to_string())
        .field("memory-why", stream.memory_why().unwrap_or(&stats.memory.why))
        .field("slots", stats.slots)
        .field("free-slots", stats.free_slots)
        .field("max-slots", stats.max_slots)
        .field("slot-size", stats.slot_size)
        .field("waiting-bytes", stats.waiting_bytes)
        .field("private-buffers", stream.slots.private())
        .build();
    let paths = stream
        .copy_stats
        .paths()
        .fold(gst::Structure::builder("paths"), |builder, (path, count)| builder.field(path, count));
    gst::Structure::builder(name)
        .field("published", stats.published)
        .field("paced", is_paced)
        .field("mean-wait", mean_wait(&stats))
        .field("paths", paths.build())
        .field("copies", by_reason(&stats.copies).map(|(_, count)| count).sum::<u64>())
        .field("copied-bytes", stream.copy_stats.bytes())
        .field("copy-reasons", reasons.build())
        .field("dropped-metas", stream.dropped_metas.count())
        .field("surfaces-held", stream.surfaces.held())
        .field("dma-bufs", stats.dma_bufs.frames)
        .field("dma-bufs-fenced", stats.dma_bufs.fenced)
        .field("pool", pool)
        .field("gop-units", stats.gop_units)
        .field("gop-bytes", stats.gop_bytes)
        .field("max-gop-bytes", stats.max_gop_bytes)
        .field("readers-total", stats.readers_total)
        .field("mps", stats.is_mps_client)
        .field("readers", gst::Array::new(stats.readers.iter().map(reader_stats)))
        .field("draining", gst::Array::new(stats.draining.iter().map(reader_stats)))
        .build()
}
