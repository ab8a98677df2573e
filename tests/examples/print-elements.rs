// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prints options of the engine, and elements, pads, properties and signals of the plugin, one a
//! line, for `tools/interface.py`. The arguments are names of signals.
//!
//! Properties of base classes and formats of pads depend on the version of GStreamer and are left
//! out.

use frameshare::{ConfigOption, exporter, reader};
use gst::{glib, prelude::*};

/// Returns " in MINIMUM..=MAXIMUM", unless the property takes all numbers of its type.
fn range(spec: &glib::ParamSpec) -> String {
    macro_rules! of_number {
        ($($spec:ident $number:ident),+) => {$(
            if let Some(spec) = spec.downcast_ref::<glib::$spec>() {
                let (minimum, maximum) = (spec.minimum(), spec.maximum());
                let is_any = (minimum, maximum) == ($number::MIN, $number::MAX);
                return if is_any { String::new() } else { format!(" in {minimum}..={maximum}") };
            }
        )+};
    }
    of_number!(ParamSpecUInt u32, ParamSpecUInt64 u64, ParamSpecInt i32, ParamSpecInt64 i64);
    let Some(class) = glib::EnumClass::with_type(spec.value_type()) else { return String::new() };
    let values: Vec<_> = class.values().iter().map(|value| value.nick().to_owned()).collect();
    format!(" in {}", values.join("|"))
}

/// Returns the last state in which a property can be set.
fn access(spec: &glib::ParamSpec) -> &'static str {
    let flags = spec.flags();
    if !flags.contains(glib::ParamFlags::WRITABLE) {
        "read-only"
    } else if flags.contains(gst::PARAM_FLAG_MUTABLE_PLAYING) {
        "set up to PLAYING"
    } else if flags.contains(gst::PARAM_FLAG_MUTABLE_PAUSED) {
        "set up to PAUSED"
    } else {
        "set up to READY"
    }
}

fn print_property(name: &str, spec: &glib::ParamSpec) {
    let has_default =
        spec.flags().contains(glib::ParamFlags::WRITABLE) && spec.value_type() != gst::Array::static_type();
    let default = if has_default { spec.default_value().serialize().ok() } else { None };
    let default = default.map(|default| format!(" = {default}")).unwrap_or_default();
    println!(
        "property {name}.{}: {}{default}{}, {}",
        spec.name(),
        spec.value_type(),
        range(spec),
        access(spec)
    );
}

fn print_signal(name: &str, signal: &glib::subclass::SignalQuery) {
    let parameters: Vec<_> = signal.param_types().iter().map(|kind| kind.type_().name()).collect();
    let kind = if signal.flags().contains(glib::SignalFlags::ACTION) { "action" } else { "signal" };
    let result = signal.return_type().type_();
    println!("{kind} {name}.{}({}) -> {result}", signal.signal_name(), parameters.join(", "));
}

fn print_element(factory: &gst::ElementFactory, signals: &[String]) {
    let name = factory.name();
    println!("element {name}: {}", factory.klass());
    for template in factory.static_pad_templates() {
        let pad = template.name_template();
        if template.caps().is_any() {
            println!("pad {name}.{pad}: ANY");
        }
        for (structure, features) in template.caps().iter_with_features() {
            let is_plain = features.to_string() == gst::CAPS_FEATURE_MEMORY_SYSTEM_MEMORY.as_str();
            let features = if is_plain { String::new() } else { format!("({features})") };
            println!("pad {name}.{pad}: {}{features}", structure.name());
        }
    }
    for protocol in factory.uri_protocols() {
        println!("uri {name} {protocol}://");
    }
    let element = factory.create().build().expect("a registered element can be made");
    for spec in element.list_properties().iter().filter(|spec| spec.owner_type() == element.type_()) {
        print_property(&name, spec);
    }
    for signal in signals {
        if let Some(signal) = glib::subclass::SignalId::lookup(signal, element.type_()) {
            print_signal(&name, &signal.query());
        }
    }
}

/// Prints the options of a configuration with their defaults.
fn print_options(configuration: &str, options: &[ConfigOption], values: &[String]) {
    for (option, value) in options.iter().zip(values) {
        // A reader's name is that of its program.
        let value = if option.name == "name" { "program" } else { value };
        println!("option {configuration}.{} = {value}", option.name);
    }
}

fn main() {
    print_options("exporter", exporter::Config::OPTIONS, &exporter::Config::default().values());
    print_options("reader", reader::Config::OPTIONS, &reader::Config::default().values());
    gst::init().expect("GStreamer is installed");
    gstframeshare::plugin_register_static().expect("the plugin registers its elements");
    let signals: Vec<_> = std::env::args().skip(1).collect();
    for feature in gst::Registry::get().features_by_plugin("frameshare") {
        match feature.downcast::<gst::ElementFactory>() {
            Ok(factory) => print_element(&factory, &signals),
            Err(feature) => println!("{} {}", feature.type_(), feature.name()),
        }
    }
}
