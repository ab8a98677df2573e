//! The pool that lets upstream write straight into the exporter's slots.
