// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events: the property of both elements, and navigation events in both forms.

use frameshare::upstream::{Navigation, NavigationValue, UpstreamKinds};
use glib::{prelude::*, translate::IntoGlib};
use gst_video::{NavigationCommand, NavigationModifierType as Modifiers};

/// The name of the structure of navigation events.
const NAVIGATION: &str = "application/x-gst-navigation";
/// Fields of the structure that are not among [`Navigation::fields`].
const EVENT: &str = "event";
const STATE: &str = "state";

/// Events that go from readers to the exporter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareUpstreamEvents")]
#[non_exhaustive]
pub enum FrameshareUpstreamEvents {
    /// None.
    #[default]
    #[enum_value(name = "No events", nick = "none")]
    None,
    /// Quality of service.
    #[enum_value(name = "Quality of service: whether frames are late", nick = "qos")]
    Qos,
    /// Navigation.
    #[enum_value(name = "Navigation: pointer, keys and touches", nick = "navigation")]
    Navigation,
    /// Both.
    #[enum_value(name = "Quality of service and navigation", nick = "all")]
    All,
}

impl FrameshareUpstreamEvents {
    pub(crate) fn kinds(self) -> UpstreamKinds {
        UpstreamKinds {
            qos: matches!(self, Self::Qos | Self::All),
            navigation: matches!(self, Self::Navigation | Self::All),
        }
    }
}

/// Returns the engine's form of a navigation event; none if it has other fields than navigation
/// events of GStreamer.
pub(crate) fn navigation_of(event: &gst::EventRef) -> Option<Navigation> {
    let structure = event.structure().filter(|structure| structure.name() == NAVIGATION)?;
    let mut navigation = Navigation::new(structure.get::<&str>(EVENT).ok()?);
    for (name, value) in structure.iter() {
        let value = match value.type_() {
            _ if name == EVENT => continue,
            kind if kind == Modifiers::static_type() => {
                navigation.modifiers = value.get::<Modifiers>().ok()?.bits();
                continue;
            }
            // GStreamer's library writes a number, its bindings for Rust the enumeration.
            kind if kind == NavigationCommand::static_type() => {
                let command = value.get::<NavigationCommand>().ok()?.into_glib();
                NavigationValue::Uint(u32::try_from(command).ok()?)
            }
            glib::Type::I32 => NavigationValue::Int(value.get().ok()?),
            glib::Type::U32 => NavigationValue::Uint(value.get().ok()?),
            glib::Type::F64 => NavigationValue::Double(value.get().ok()?),
            glib::Type::STRING => NavigationValue::Text(value.get().ok()?),
            _ => return None,
        };
        navigation = navigation.field(name.as_str(), value);
    }
    Some(navigation)
}

/// Returns the navigation event of the engine's form, whose values are within their limits.
pub(crate) fn navigation_event(navigation: &Navigation) -> gst::Event {
    let state = Modifiers::from_bits_retain(navigation.modifiers);
    let structure = gst::Structure::builder(NAVIGATION).field(EVENT, &navigation.event).field(STATE, state);
    let structure = navigation.fields.iter().fold(structure, |structure, (name, value)| {
        let value = match value {
            NavigationValue::Int(value) => value.to_send_value(),
            NavigationValue::Uint(value) => value.to_send_value(),
            NavigationValue::Double(value) => value.to_send_value(),
            NavigationValue::Text(value) => value.to_send_value(),
            // Of a later version of the engine.
            _ => return structure,
        };
        structure.field(name.as_str(), value)
    });
    gst::event::Navigation::new(structure.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn navigation_events_of_gstreamer_go_there_and_back() {
        gst::init().unwrap();
        use gst_video::NavigationEvent as Event;
        let modifier_state = Modifiers::SHIFT_MASK | Modifiers::BUTTON1_MASK;
        for event in [
            Event::new_mouse_move(12.5, 7.0),
            Event::MouseButtonPress { button: 1, x: 1.0, y: 2.0, modifier_state },
            Event::new_mouse_scroll(1.0, 2.0, 0.0, -3.0),
            Event::new_key_press("Left"),
            Event::TouchDown { identifier: 3, x: 1.0, y: 2.0, pressure: 0.5, modifier_state },
        ] {
            let event = event.build();
            let navigation = navigation_of(&event).unwrap();
            let back = navigation_event(&navigation);
            assert_eq!(back.type_(), gst::EventType::Navigation);
            let (before, after) = (event.structure().unwrap(), back.structure().unwrap());
            for (name, value) in before.iter() {
                assert_eq!(format!("{value:?}"), format!("{:?}", after.value(name).unwrap()), "{name}");
            }
            assert_eq!(navigation_of(&back), Some(navigation));
        }
    }

    #[test]
    fn commands_have_the_numbers_of_the_library() {
        gst::init().unwrap();
        let event = gst_video::NavigationEvent::new_command(NavigationCommand::Left).build();
        let navigation = navigation_of(&event).unwrap();
        let number = NavigationCommand::Left.into_glib() as u32;
        assert_eq!(navigation.get("command-code"), Some(&NavigationValue::Uint(number)));
        let back = navigation_event(&navigation);
        assert_eq!(back.structure().unwrap().get("command-code"), Ok(number));
        assert_eq!(navigation_of(&back), Some(navigation));
    }

    #[test]
    fn other_structures_are_no_navigation() {
        gst::init().unwrap();
        let structure = || gst::Structure::builder(NAVIGATION).field(EVENT, "key-press");
        let other = gst::Structure::builder("application/x-other").field(EVENT, "key-press");
        let nested = structure().field("more", gst::Structure::new_empty("more"));
        for structure in [other, nested, gst::Structure::builder(NAVIGATION)] {
            let event = gst::event::Navigation::new(structure.build());
            assert_eq!(navigation_of(&event), None, "{event:?}");
        }
        let event = gst::event::Navigation::new(structure().field("key", "a").build());
        assert!(navigation_of(&event).is_some());
    }
}
