// SPDX-License-Identifier: MIT OR Apache-2.0

//! Durations and sizes with a unit.

use std::time::Duration;

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 5] =
    [("B", 1), ("kB", 1000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

/// Parses a duration such as "60s".
pub fn duration(text: &str) -> Result<Duration, String> {
    let milliseconds = with_unit(text, &DURATIONS).ok_or_else(|| {
        format!("invalid duration \"{text}\": expected a number and ms, s, min, h or d, such as \"60s\"")
    })?;
    Ok(Duration::from_millis(milliseconds))
}

/// Parses a size such as "10GB".
pub fn size(text: &str) -> Result<u64, String> {
    with_unit(text, &SIZES).ok_or_else(|| {
        format!("invalid size \"{text}\": expected a number and B, kB, MB, GB or TB, such as \"10GB\"")
    })
}

/// Returns a duration in its largest whole unit, such as "17 min".
pub fn rounded(time: Duration) -> String {
    let fits = |(_, factor): &&(&str, u64)| time.as_millis() >= u128::from(*factor);
    let (unit, factor) = DURATIONS.iter().rfind(fits).unwrap_or(&DURATIONS[0]);
    format!("{} {unit}", time.as_millis() / u128::from(*factor))
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor).filter(|value| *value > 0)
}
