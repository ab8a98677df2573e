//! Lists of tags.
//!
//! Each value is written as what it is: texts as they are, images with their bytes, everything else in GStreamer's own
//! words. The type of a value is the tag's, which both sides know; a tag that the reader does not know is left out,
//! since GStreamer's functions on tag lists take none.

use crate::meta::{is_harmless, parse_structure};
use glib::prelude::*;
use serde::{Deserialize, Serialize};

/// The longest name of a tag that is looked up.
const MAX_NAME: usize = 256;
/// Name of the structure that a value is written in, and of its field.
const FIELD: &str = "v";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tags(Vec<Tag>);

#[derive(Debug, Serialize, Deserialize)]
struct Tag {
    name: String,
    values: Vec<Value>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Value {
    Text(String),
    /// As the only field of a structure.
    Other(String),
    /// Images and attachments.
    Sample {
        caps: Option<String>,
        info: Option<String>,
        data: Vec<u8>,
    },
}

impl Tags {
    pub fn of(list: &gst::TagListRef) -> Self {
        let tags = list.iter_generic().map(|(name, values)| {
            let values = values.filter_map(|value| {
                let written = Value::of(value);
                if written.is_none() {
                    gst::warning!(super::CAT, "A value of the tag {name} cannot be written down: {value:?}");
                }
                written
            });
            Tag { name: name.to_string(), values: values.collect() }
        });
        Self(tags.collect())
    }

    /// The list that these tags are; an error names what no exporter of ours would send.
    pub fn list(self, scope: gst::TagScope) -> Result<gst::TagList, &'static str> {
        let mut list = gst::TagList::new();
        let content = list.make_mut();
        content.set_scope(scope);
        for Tag { name, values } in self.0 {
            if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
                return Err("name of a tag");
            }
            if !gst::tags::tag_exists(name.as_str()) {
                gst::debug!(super::CAT, "This process has no tag {name}");
                continue;
            }
            let kind = gst::tags::tag_get_type(name.as_str());
            for value in values {
                let value = value.read(kind).ok_or("value of a tag")?;
                content
                    .add_value(name.as_str(), &value, gst::TagMergeMode::Append)
                    .map_err(|_| "value of a tag")?;
            }
        }
        Ok(list)
    }
}

impl Value {
    fn of(value: &glib::SendValue) -> Option<Self> {
        if let Ok(text) = value.get::<Option<&str>>() {
            return text.map(|text| Self::Text(text.to_owned()));
        }
        if let Ok(sample) = value.get::<gst::Sample>() {
            let data = sample.buffer()?.map_readable().ok()?.to_vec();
            let text = |caps: &gst::CapsRef| caps.to_string();
            let (caps, info) = (sample.caps().map(text), sample.info().map(ToString::to_string));
            return Some(Self::Sample { caps, info, data });
        }
        let mut fields = gst::Structure::new_empty(FIELD);
        fields.set_value(FIELD, value.clone());
        let text = fields.to_string();
        // GStreamer writes NULL for what it has no text for.
        (only_field(&text)?.type_() == value.type_()).then_some(Self::Other(text))
    }

    /// The value, of the type that the tag's values are of.
    fn read(self, kind: glib::Type) -> Option<glib::SendValue> {
        let value = match self {
            Self::Text(text) if kind == glib::Type::STRING && !text.contains('\0') => text.to_send_value(),
            Self::Other(text) => only_field(&text)?,
            Self::Sample { caps, info, data } if kind == gst::Sample::static_type() => {
                let caps =
                    caps.filter(|text| is_harmless(text)).and_then(|text| text.parse::<gst::Caps>().ok());
                let info = info.and_then(|text| parse_structure(&text));
                let buffer = gst::Buffer::from_mut_slice(data);
                let sample =
                    gst::Sample::builder().buffer(&buffer).caps_if_some(caps.as_ref()).info_if_some(info);
                sample.build().to_send_value()
            }
            _ => return None,
        };
        (value.type_() == kind).then_some(value)
    }
}

fn only_field(text: &str) -> Option<glib::SendValue> {
    parse_structure(text)?.value(FIELD).ok().cloned()
}

#[cfg(test)]
impl Tags {
    pub fn for_test(name: &str, text: &str) -> Self {
        Self(vec![Tag { name: name.into(), values: vec![Value::Text(text.into())] }])
    }
}
