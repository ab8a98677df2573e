// SPDX-License-Identifier: MIT OR Apache-2.0

//! The name of this program, for people.

use std::{fs, path::Path};

/// Returns the name: GLib's, or that of the script which an interpreter runs.
pub(crate) fn name() -> String {
    let name = glib::program_name().map(String::from).filter(|name| !name.is_empty() && name != "<unknown>");
    let name = name.unwrap_or_else(|| frameshare::reader::Config::default().name);
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    script(&name, &arguments).unwrap_or(name)
}

/// Returns the script of a Python program, from its arguments as in `/proc/self/cmdline`.
fn script(program: &str, arguments: &[u8]) -> Option<String> {
    if !program.starts_with("python") {
        return None;
    }
    let mut arguments = arguments.split(|byte| *byte == 0).skip(1).map(String::from_utf8_lossy);
    let first = arguments.find(|argument| !matches!(&**argument, "-u" | "-B" | "-E" | "-I" | "-s" | "-O"))?;
    match &*first {
        "-m" => arguments.next().map(Into::into),
        other if other.starts_with('-') => None,
        other => Path::new(other).file_name().map(|name| name.to_string_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_names_a_python_program() {
        let of = |arguments: &str| script("python3.11", arguments.replace(' ', "\0").as_bytes());
        assert_eq!(of("python3 /srv/viewer.py --wide").as_deref(), Some("viewer.py"));
        assert_eq!(of("python3 -u viewer.py").as_deref(), Some("viewer.py"));
        assert_eq!(of("python3 -m viewer").as_deref(), Some("viewer"));
        assert_eq!(of("python3 -c pass"), None);
        assert_eq!(of("python3"), None);
        assert_eq!(script("gst-launch-1.0", b"gst-launch-1.0\0pipeline"), None);
    }
}
