// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prometheus' text format, from that of OpenMetrics.
//!
//! The samples are the same in both. In Prometheus' format, HELP and TYPE of a counter and of an
//! info have the name of their samples, with its suffix, and an info is a gauge.

/// Returns metrics in Prometheus' text format.
pub fn of_open_metrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(named, _)| *named == name) {
                plain += &format!("# HELP {name}{suffix} {help}\n");
            }
            plain += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            plain += line;
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_names_of_their_samples() {
        let open = "# HELP b Build.\n# TYPE b info\nb_info{v=\"# EOF\"} 1\n# HELP c Count.\n# TYPE c counter\n\
                    # UNIT c bytes\nc_total{a=\"# TYPE x counter\"} 2\n# HELP g Gauge.\n# TYPE g gauge\ng 1.5\n# EOF\n";
        let plain = "# HELP b_info Build.\n# TYPE b_info gauge\nb_info{v=\"# EOF\"} 1\n\
                     # HELP c_total Count.\n# TYPE c_total counter\nc_total{a=\"# TYPE x counter\"} 2\n\
                     # HELP g Gauge.\n# TYPE g gauge\ng 1.5\n";
        assert_eq!(of_open_metrics(open), plain);
    }
}
