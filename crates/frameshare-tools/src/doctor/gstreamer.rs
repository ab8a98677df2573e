// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer and the plugin, as `gst-inspect-1.0` reports them.

use super::Check;
use std::{
    io::{self, Read},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const SUBJECT: &str = "gstreamer";
/// Limit for a run: the first one scans all plugins.
const LIMIT: Duration = Duration::from_secs(60);

pub fn checks() -> Vec<Check> {
    let version = match inspect("--version") {
        Ok(output) => output.lines().find(|line| line.starts_with("GStreamer ")).map(str::to_owned),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = "gst-inspect-1.0 is not installed: versions of GStreamer and its plugin are unknown";
            return vec![Check::ok(SUBJECT, text)];
        }
        Err(error) => {
            let remedy = "run gst-inspect-1.0, and remove the plugin that makes it fail";
            return vec![Check::warning(SUBJECT, format!("gst-inspect-1.0 failed: {error}"), remedy)];
        }
    };
    let version = version.unwrap_or_else(|| "GStreamer of an unknown version".to_owned());
    vec![Check::ok(SUBJECT, version), plugin()]
}

fn plugin() -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let found = inspect("frameshare").ok();
    let field = |name: &str| found.as_deref().and_then(|output| field(output, name)).map(str::to_owned);
    match field("Version") {
        Some(version) => {
            let text = format!(
                "plugin frameshare {version}, {}",
                field("Filename").unwrap_or_else(|| "in an unknown file".to_owned())
            );
            // Followed by the commit: "0.1.0-1a2b3c4".
            match version.split('-').next() == Some(own) {
                true => Check::ok(SUBJECT, text),
                false => {
                    let remedy = format!("install the plugin and this command ({own}) from one release");
                    Check::warning(SUBJECT, text, remedy)
                }
            }
        }
        None => Check::warning(
            SUBJECT,
            "the plugin frameshare is not found: framesharesink and framesharesrc are missing",
            "install it, or set GST_PLUGIN_PATH to its folder; `gst-inspect-1.0 -b` lists plugins that failed",
        ),
    }
}

fn field<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    output.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
}

/// Runs `gst-inspect-1.0` and returns its output.
fn inspect(argument: &str) -> io::Result<String> {
    let mut child = Command::new("gst-inspect-1.0")
        .arg(argument)
        .env("LC_ALL", "C")
        .env("GST_DEBUG", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let output = thread::spawn(move || {
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).map(|_| output)
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not done within {LIMIT:?}")));
            }
        }
    };
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    let output = output.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_output_of_both_versions() {
        let output =
            "Plugin Details:\n  Name                     frameshare\n  Version                  0.1.0\n";
        assert_eq!(field(output, "Version"), Some("0.1.0"));
        assert_eq!(field(output, "Vers"), None);
    }
}
