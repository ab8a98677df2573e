// SPDX-License-Identifier: MIT OR Apache-2.0

//! H.264 access units for WebCodecs: a byte stream with parameter sets in front of each key unit.

const START: [u8; 4] = [0, 0, 0, 1];
const SPS: u8 = 7;
const PPS: u8 = 8;

/// Makes byte streams of the units of a stream.
pub struct Converter {
    /// Bytes of the length in front of each NAL unit; none for byte streams.
    length_size: Option<usize>,
    /// Parameter sets of the caps, or the last ones of the stream, as a byte stream.
    sets: Vec<u8>,
}

impl Converter {
    /// Returns the converter for H.264 in access units; `None` for other media.
    pub fn of(caps: &gst::Caps) -> Option<Self> {
        let caps = caps.structure(0)?;
        let is_units = caps.get::<&str>("alignment").is_ok_and(|alignment| alignment == "au");
        if caps.name() != "video/x-h264" || !is_units {
            return None;
        }
        match caps.get::<&str>("stream-format").ok()? {
            "byte-stream" => Some(Self { length_size: None, sets: Vec::new() }),
            "avc" | "avc3" => {
                let Ok(data) = caps.get::<gst::Buffer>("codec_data") else {
                    return Some(Self { length_size: Some(4), sets: Vec::new() });
                };
                let (length_size, sets) = read_configuration(data.map_readable().ok()?.as_slice())?;
                Some(Self { length_size: Some(length_size), sets })
            }
            _ => None,
        }
    }

    /// Returns a unit as a byte stream; `None` if it is malformed.
    pub fn convert(&mut self, unit: &[u8], is_key: bool) -> Option<Vec<u8>> {
        let mut stream = match self.length_size {
            Some(size) => to_byte_stream(unit, size)?,
            None => unit.to_vec(),
        };
        let sets: Vec<_> = units_of(&stream).filter(|unit| matches!(kind(unit), SPS | PPS)).collect();
        if sets.iter().any(|unit| kind(unit) == SPS) {
            self.sets = sets.iter().flat_map(|unit| START.iter().chain(*unit)).copied().collect();
        } else if is_key {
            stream = [self.sets.as_slice(), &stream].concat();
        }
        Some(stream)
    }
}

/// Returns the codec string of RFC 6381 for the first SPS of a byte stream.
pub fn codec_of(stream: &[u8]) -> Option<String> {
    let sps = units_of(stream).find(|unit| kind(unit) == SPS)?;
    let [_, profile, constraints, level, ..] = sps else { return None };
    Some(format!("avc1.{profile:02x}{constraints:02x}{level:02x}"))
}

fn kind(unit: &[u8]) -> u8 {
    unit.first().map_or(0, |header| header & 0x1f)
}

/// Reads an AVCDecoderConfigurationRecord (ISO 14496-15, 5.3.3.1): the size of lengths, and the
/// parameter sets as a byte stream.
fn read_configuration(data: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (&[version, _, _, _, size, count], mut rest) = data.split_first_chunk::<6>()?;
    if version != 1 {
        return None;
    }
    let mut sets = Vec::new();
    let mut take = |count: u8, rest: &mut &[u8]| {
        for _ in 0..count {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            let (set, behind) = behind.split_at_checked(u16::from_be_bytes(*length).into())?;
            sets.extend(START.iter().chain(set));
            *rest = behind;
        }
        Some(())
    };
    take(count & 0x1f, &mut rest)?;
    let (&count, mut rest) = rest.split_first()?;
    take(count, &mut rest)?;
    Some((usize::from(size & 3) + 1, sets))
}

fn to_byte_stream(mut unit: &[u8], length_size: usize) -> Option<Vec<u8>> {
    let mut stream = Vec::with_capacity(unit.len() + 16);
    while !unit.is_empty() {
        let (length, rest) = unit.split_at_checked(length_size)?;
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let (nal, rest) = rest.split_at_checked(length)?;
        stream.extend(START.iter().chain(nal));
        unit = rest;
    }
    Some(stream)
}

/// Returns the NAL units of a byte stream, without start codes and the zeros behind units.
fn units_of(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = after_start(stream);
    std::iter::from_fn(move || {
        let unit = rest?;
        let end = unit.windows(3).position(|bytes| matches!(bytes, [0, 0, 0 | 1]));
        rest = end.and_then(|end| after_start(&unit[end..]));
        Some(&unit[..end.unwrap_or(unit.len())])
    })
}

fn after_start(stream: &[u8]) -> Option<&[u8]> {
    let start = stream.windows(3).position(|bytes| bytes == [0, 0, 1])?;
    Some(&stream[start + 3..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPS_UNIT: [u8; 5] = [0x67, 0x42, 0xc0, 0x1f, 0x95];
    const PPS_UNIT: [u8; 3] = [0x68, 0xce, 0x3c];
    const SLICE: [u8; 3] = [0x65, 0x88, 0x84];

    fn stream(units: &[&[u8]]) -> Vec<u8> {
        units.iter().flat_map(|unit| START.iter().chain(*unit)).copied().collect()
    }

    fn configuration() -> Vec<u8> {
        let mut data = vec![1, 0x42, 0xc0, 0x1f, 0xff, 0xe1, 0, 5];
        data.extend(SPS_UNIT);
        data.extend([1, 0, 3]);
        data.extend(PPS_UNIT);
        data
    }

    #[test]
    fn lengths_become_start_codes_and_sets_are_added() {
        let (length_size, sets) = read_configuration(&configuration()).unwrap();
        assert_eq!((length_size, sets.clone()), (4, stream(&[&SPS_UNIT, &PPS_UNIT])));
        let mut converter = Converter { length_size: Some(4), sets };
        let unit = [&[0, 0, 0, 3], SLICE.as_slice()].concat();
        let key = converter.convert(&unit, true).unwrap();
        assert_eq!(key, stream(&[&SPS_UNIT, &PPS_UNIT, &SLICE]));
        assert_eq!(codec_of(&key).as_deref(), Some("avc1.42c01f"));
        assert_eq!(converter.convert(&unit, false).unwrap(), stream(&[&SLICE]));
    }

    #[test]
    fn sets_of_the_stream_replace_earlier_ones() {
        let mut converter = Converter { length_size: None, sets: Vec::new() };
        let with_sets = stream(&[&[9, 0x10], &SPS_UNIT, &PPS_UNIT, &SLICE]);
        assert_eq!(converter.convert(&with_sets, true).unwrap(), with_sets);
        let next = converter.convert(&stream(&[&SLICE]), true).unwrap();
        assert_eq!(next, stream(&[&SPS_UNIT, &PPS_UNIT, &SLICE]));
    }

    #[test]
    fn malformed_units_are_refused() {
        let mut converter = Converter { length_size: Some(4), sets: Vec::new() };
        for unit in [&[0, 0, 0, 4, 1][..], &[0, 0, 1], &[0xff, 0xff, 0xff, 0xff, 1]] {
            assert_eq!(converter.convert(unit, true), None);
        }
        let whole = configuration();
        for end in 0..whole.len() {
            assert_eq!(read_configuration(&whole[..end]), None, "{end} bytes");
        }
        assert_eq!(codec_of(&stream(&[&[0x67, 0x42]])), None);
        assert_eq!(codec_of(&[]), None);
    }

    #[test]
    fn units_end_at_start_codes_of_three_and_four_bytes() {
        let bytes = [0, 0, 1, 7, 1, 0, 0, 0, 1, 8, 2, 0, 0, 1, 5];
        assert_eq!(units_of(&bytes).collect::<Vec<_>>(), [&[7, 1][..], &[8, 2], &[5]]);
    }
}
