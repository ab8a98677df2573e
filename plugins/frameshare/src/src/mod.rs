//! `framesharesrc`.

/// Makes the element known to the plugin.
pub(crate) fn register(_plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    Ok(())
}
