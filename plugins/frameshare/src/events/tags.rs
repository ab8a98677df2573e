// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tag lists: for each tag its name and the number of its values, then the values in the typed
//! [`form`](crate::meta::form).
//!
//! The type of a value is the tag's, which both sides know. A tag that the reader does not know is
//! dropped: GStreamer's functions on tag lists accept none.

use crate::meta::form::{Invalid, Reader, Writer, is_field_name};

/// Returns the bytes of a list. Values without a form are dropped.
pub(super) fn encode(list: &gst::TagListRef) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, values) in list.iter_generic().filter(|(name, _)| is_field_name(name)) {
        let mut tag = Writer::default();
        let mut count = 0_u32;
        for value in values {
            let mut writer = Writer::default();
            match writer.value(value) {
                Ok(()) => {
                    tag.0.append(&mut writer.0);
                    count += 1;
                }
                Err(error) => gst::debug!(super::CAT, "A value of the tag {name} stays behind: {error}"),
            }
        }
        let mut head = Writer(bytes);
        head.plain(&(name.as_str(), count));
        bytes = head.0;
        bytes.append(&mut tag.0);
    }
    bytes
}

/// Returns the list of bytes.
pub(super) fn decode(mut reader: Reader<'_, '_>, scope: gst::TagScope) -> Result<gst::TagList, Invalid> {
    let mut list = gst::TagList::new();
    let content = list.make_mut();
    content.set_scope(scope);
    while !reader.is_at_end() {
        let (name, count) = reader.plain::<(&str, u32)>()?;
        if !is_field_name(name) {
            return Err(Invalid::Impossible("name of a tag"));
        }
        reader.item(0)?;
        let is_known = gst::tags::tag_exists(name);
        if !is_known {
            gst::debug!(super::CAT, "This process has no tag {name}");
        }
        for _ in 0..count {
            let value = reader.value()?;
            if is_known && !is_empty(&value) {
                // Fails if the tag is of another type.
                let added = content.add_value(name, &value, gst::TagMergeMode::Append);
                added.map_err(|_| Invalid::Impossible("value of a tag"))?;
            }
        }
    }
    Ok(list)
}

/// Returns whether a value is a text that GStreamer warns about in a tag list.
fn is_empty(value: &glib::Value) -> bool {
    value.get::<Option<&str>>().is_ok_and(|text| text.is_none_or(str::is_empty))
}
