// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metas of a frame, in the [form](frameshare_protocol::form::meta) that the elements use, too.

use super::{
    Caps, Structure,
    codec::{Invalid, Reader, Writer},
};
use frameshare_protocol::form::{
    is_field_name,
    meta::{Item, MAX_PARAMS, VERSION},
};

/// A meta of a frame.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Meta {
    /// A custom meta of GStreamer, or of an application: a name with values.
    Custom(Structure),
    /// A region of interest, such as the box of a detected object.
    Region {
        /// Its type, such as `face`.
        kind: String,
        /// Its number, and that of the region that contains it; 0 for none.
        id: i32,
        /// The number of the region that contains it.
        parent: i32,
        /// Left, top, width and height in pixels.
        rect: [u32; 4],
        /// Further values.
        params: Vec<Structure>,
    },
    /// The visible part of the image: left, top, width and height in pixels.
    Crop([u32; 4]),
    /// The time of the frame by another clock, such as that of a camera.
    ReferenceTimestamp {
        /// Names the clock, such as `timestamp/x-unix` or `timestamp/x-ntp`.
        reference: Caps,
        /// The time by that clock, in ns.
        timestamp: u64,
        /// In ns.
        duration: Option<u64>,
    },
    /// A meta of another kind, by its name.
    Other(&'static str),
}

/// The reason why the metas of a frame cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// The metadata is in another form: that of another version, or the publisher's own.
    #[error("the frame's metadata are no metas of version {VERSION}")]
    Version,
    /// The bytes are no metas.
    #[error("the frame's metas are cut short or damaged")]
    Malformed,
    /// A name, number or nesting is outside of its limits.
    #[error("a meta has an invalid {0}")]
    Invalid(&'static str),
}

impl From<Invalid> for MetaError {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::Malformed => Self::Malformed,
            Invalid::Limit(what) => Self::Invalid(what),
        }
    }
}

impl Meta {
    /// Reads the metas in a frame's metadata, as `framesharesink` and [`Meta::to_metadata`] write
    /// them. The bytes come from another process: everything is checked.
    ///
    /// ```
    /// # use frameshare::event::{Meta, Structure};
    /// let meta = Meta::Custom(Structure::new("detector").field("score", 0.5));
    /// let metadata = Meta::to_metadata(&[meta.clone()])?;
    /// assert_eq!(Meta::of_metadata(&metadata)?, [meta]);
    /// # Ok::<(), frameshare::event::MetaError>(())
    /// ```
    ///
    /// # Errors
    /// [`MetaError`] if the bytes are invalid.
    pub fn of_metadata(metadata: &[u8]) -> Result<Vec<Self>, MetaError> {
        let Some((version, body)) = metadata.split_first() else { return Ok(Vec::new()) };
        if *version != VERSION {
            return Err(MetaError::Version);
        }
        let mut reader = Reader::new(body);
        let mut metas = Vec::new();
        while !reader.is_at_end() {
            reader.item()?;
            metas.push(Self::read(&mut reader)?);
        }
        Ok(metas)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Invalid> {
        let parts =
            |count: u32| if count > MAX_PARAMS { Err(Invalid::Limit("number of parts")) } else { Ok(count) };
        Ok(match reader.plain::<Item<'_>>()? {
            Item::Custom { tags } => {
                for _ in 0..parts(tags)? {
                    reader.plain::<&str>()?;
                }
                Self::Custom(reader.structure()?)
            }
            Item::RegionOfInterest { kind, id, parent, rect, params } => {
                let kind = kind.to_owned();
                let params = (0..parts(params)?).map(|_| reader.structure()).collect::<Result<_, _>>()?;
                Self::Region { kind, id, parent, rect, params }
            }
            Item::Crop(rect) => Self::Crop(rect),
            Item::ReferenceTimestamp { timestamp, duration } => {
                Self::ReferenceTimestamp { reference: reader.caps()?, timestamp, duration }
            }
            Item::Video(_) => Self::Other("video"),
            Item::TimeCode(_) => Self::Other("timecode"),
            Item::Caption { .. } => Self::Other("caption"),
            Item::ActiveFormat { .. } => Self::Other("active format"),
            Item::Bar { .. } => Self::Other("bar"),
            Item::Audio(_) => Self::Other("audio"),
            Item::Serialized { .. } => Self::Other("serialized by GStreamer"),
        })
    }

    /// Returns the metadata of a frame with these metas, for
    /// [`exporter::Frame::metadata`](crate::exporter::Frame#structfield.metadata).
    /// `framesharesrc` reads them.
    ///
    /// # Errors
    /// [`MetaError::Invalid`] for a name, number or nesting that readers refuse, and for
    /// [`Meta::Other`].
    pub fn to_metadata(metas: &[Self]) -> Result<Vec<u8>, MetaError> {
        let mut writer = Writer::default();
        let structure =
            |writer: &mut Writer, structure| writer.structure(structure).map_err(MetaError::Invalid);
        for meta in metas {
            match meta {
                Self::Custom(custom) => {
                    writer.plain(&Item::Custom { tags: 0 });
                    structure(&mut writer, custom)?;
                }
                &Self::Region { ref kind, id, parent, rect, ref params } => {
                    if !is_field_name(kind) {
                        return Err(MetaError::Invalid("type of a region"));
                    }
                    let count = u32::try_from(params.len()).ok().filter(|count| *count <= MAX_PARAMS);
                    let params_count = count.ok_or(MetaError::Invalid("number of parts"))?;
                    writer.plain(&Item::RegionOfInterest { kind, id, parent, rect, params: params_count });
                    params.iter().try_for_each(|param| structure(&mut writer, param))?;
                }
                Self::Crop(rect) => writer.plain(&Item::Crop(*rect)),
                &Self::ReferenceTimestamp { ref reference, timestamp, duration } => {
                    writer.plain(&Item::ReferenceTimestamp { timestamp, duration });
                    writer.caps(reference).map_err(MetaError::Invalid)?;
                }
                Self::Other(_) => return Err(MetaError::Invalid("kind")),
            }
        }
        if writer.0.is_empty() { Ok(Vec::new()) } else { Ok([&[VERSION], &writer.0[..]].concat()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CapsStructure, Value};

    fn metas() -> Vec<Meta> {
        let custom =
            Structure::new("detector").field("model", "v3").field("boxes", Value::List(vec![1.into()]));
        let rect = [10, 20, 30, 40];
        let params = vec![Structure::new("score").field("value", 0.5)];
        let region = Meta::Region { kind: "face".into(), id: 1, parent: 0, rect, params };
        let unix = CapsStructure {
            any_features: false,
            features: vec!["memory:SystemMemory".into()],
            structure: Structure::new("timestamp/x-unix"),
        };
        let reference = Caps::Structures(vec![unix]);
        let time =
            Meta::ReferenceTimestamp { reference, timestamp: 1_700_000_000_000_000_001, duration: None };
        vec![Meta::Custom(custom), region, Meta::Crop(rect), time]
    }

    #[test]
    fn metas_survive_metadata() {
        assert_eq!(Meta::of_metadata(&Meta::to_metadata(&metas()).unwrap()).unwrap(), metas());
        assert_eq!(Meta::of_metadata(&[]).unwrap(), []);
        assert_eq!(Meta::to_metadata(&[]).unwrap(), []);
    }

    #[test]
    fn damaged_metas_are_rejected() {
        let bytes = Meta::to_metadata(&metas()).unwrap();
        for end in 2..bytes.len() {
            let read = Meta::of_metadata(&bytes[..end]);
            assert!(read.is_err() || read.unwrap().len() < 4, "cut at {end}");
        }
        assert_eq!(Meta::of_metadata(b"\x01own"), Err(MetaError::Version));
        let own = Meta::Custom(Structure::new("1st"));
        assert_eq!(Meta::to_metadata(&[own]), Err(MetaError::Invalid("name of a structure")));
        assert_eq!(Meta::to_metadata(&[Meta::Other("video")]), Err(MetaError::Invalid("kind")));
    }

    /// Elements drop all metas of a frame with such a region.
    #[test]
    fn types_of_regions_that_elements_refuse_are_rejected() {
        for kind in ["", "license plate", "a\0b", &"a".repeat(257)] {
            let region =
                Meta::Region { kind: kind.into(), id: 0, parent: 0, rect: [0; 4], params: Vec::new() };
            assert_eq!(Meta::to_metadata(&[region]), Err(MetaError::Invalid("type of a region")), "{kind:?}");
        }
    }
}
