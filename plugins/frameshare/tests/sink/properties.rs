// SPDX-License-Identifier: MIT OR Apache-2.0

//! Property changes of both elements in the PLAYING and PAUSED states.

use super::*;

/// Returns a different value for a property; none if the elements have no property of its type.
fn another(element: &gst::Element, spec: &glib::ParamSpec) -> Option<glib::Value> {
    let value = element.property_value(spec.name());
    macro_rules! next_number {
        ($($number:ty),+) => {$(
            if let Ok(number) = value.get::<$number>() {
                return Some(if number > 4 { number - 1 } else { number + 1 }.to_value());
            }
        )+};
    }
    next_number!(u32, u64, i32, i64);
    if let Ok(flag) = value.get::<bool>() {
        return Some((!flag).to_value());
    }
    if let Ok(text) = value.get::<Option<String>>() {
        return Some(format!("{}x", text.unwrap_or_default()).to_value());
    }
    if value.get::<gst::Array>().is_ok() {
        return Some(gst::Array::new([12_345_u32]).to_value());
    }
    let class = glib::EnumClass::with_type(spec.value_type())?;
    let current = value.transform::<i32>().ok()?.get::<i32>().ok()?;
    class.values().iter().find(|one| one.value() != current).map(|one| one.to_value(&class))
}

fn same(one: &glib::Value, other: &glib::Value) -> bool {
    one.serialize().ok() == other.serialize().ok()
}

#[test]
fn ready_only_properties_keep_their_values_while_playing() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let exporter =
        launch(&format!("videotestsrc is-live=true ! framesharesink name=it socket-path={}", path.display()));
    let reader = launch(&format!("framesharesrc name=it socket-path={} ! fakesink", path.display()));
    for pipeline in [&exporter, &reader] {
        let element = pipeline.by_name("it").unwrap();
        let own = |spec: &&glib::ParamSpec| {
            spec.owner_type() == element.type_() && spec.flags().contains(glib::ParamFlags::WRITABLE)
        };
        let all = element.list_properties();
        let specs = all.iter().filter(own).collect::<Vec<_>>();
        assert!(specs.len() > 10);
        // In READY, all can be set (positive control).
        for spec in &specs {
            let before = element.property_value(spec.name());
            let other = another(&element, spec).unwrap_or_else(|| panic!("{}: unknown type", spec.name()));
            element.set_property_from_value(spec.name(), &other);
            assert!(same(&element.property_value(spec.name()), &other), "{}", spec.name());
            element.set_property_from_value(spec.name(), &before);
        }
        for (state, flags) in [
            (gst::State::Playing, gst::PARAM_FLAG_MUTABLE_PLAYING),
            (gst::State::Paused, gst::PARAM_FLAG_MUTABLE_PLAYING | gst::PARAM_FLAG_MUTABLE_PAUSED),
        ] {
            pipeline.set_state(state).unwrap();
            assert!(pipeline.state(gst::ClockTime::from_seconds(10)).0.is_ok());
            for spec in &specs {
                let before = element.property_value(spec.name());
                let other = another(&element, spec).unwrap();
                element.set_property_from_value(spec.name(), &other);
                let after = element.property_value(spec.name());
                let expected = if spec.flags().intersects(flags) { &other } else { &before };
                assert!(same(&after, expected), "{} in {state:?}: {after:?}", spec.name());
                element.set_property_from_value(spec.name(), &before);
            }
        }
        pipeline.set_state(gst::State::Playing).unwrap();
    }
    for pipeline in [&reader, &exporter] {
        pipeline.set_state(gst::State::Null).unwrap();
    }
    // After a stop, they can be set again.
    let sink = exporter.by_name("it").unwrap();
    sink.set_property("max-slots", 20_u32);
    assert_eq!(sink.property::<u32>("max-slots"), 20);
}
