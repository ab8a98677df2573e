// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ages of the frames of each reader, as histograms.

use frameshare::observer::{AGE_BOUNDS, Ages};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use std::fmt;

/// Names and values of labels, which the encoder escapes.
pub type Labels = Vec<(&'static str, String)>;

/// The ages of all readers.
#[derive(Debug, Default)]
pub struct AgeHistograms(pub Vec<(Labels, Ages)>);

impl Collector for AgeHistograms {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time from the publication of a frame until the reader took it";
        let mut metric = encoder.encode_descriptor("frame_age_seconds", help, None, MetricType::Histogram)?;
        for (labels, ages) in &self.0 {
            let (buckets, count) = buckets(ages);
            let sum = ages.sum as f64 / 1e9;
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Returns bounds and numbers of the ranges, and the sum of the numbers. These are the reader's
/// own: those beyond the largest sum are left out.
fn buckets(ages: &Ages) -> (Vec<(f64, u64)>, u64) {
    let bounds = AGE_BOUNDS.iter().map(|bound| *bound as f64 / 1e9).chain([f64::INFINITY]);
    let mut sum = 0_u64;
    let counts = ages.counts.iter().map(|count| {
        let counted = (*count).min(u64::MAX - sum);
        sum += counted;
        counted
    });
    (bounds.zip(counts).collect(), sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_hostile_reader_do_not_overflow() {
        let ages = Ages { counts: [u64::MAX - 1; AGE_BOUNDS.len() + 1], sum: u64::MAX };
        let (buckets, sum) = buckets(&ages);
        assert_eq!(
            (buckets[0], buckets[1], buckets[15]),
            ((1e-4, u64::MAX - 1), (2e-4, 1), (f64::INFINITY, 0))
        );
        assert_eq!(sum, u64::MAX);
    }
}
