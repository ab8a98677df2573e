// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metrics in the text format of Prometheus.

use super::figures::{CameraFigures, Copies, ReaderFigures, StreamFigures};
use crate::{
    report::Condition,
    state::{Process, State},
};
use std::fmt::Write;

/// Content type of the format.
pub const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Figures of the page itself.
pub struct PageFigures {
    pub pages: usize,
    /// Name and number of tiles of each camera.
    pub tiles: Vec<(String, u64)>,
}

/// Writer of metrics: the samples of one metric follow each other.
#[derive(Default)]
struct Writer(String);

/// Labels, and a value.
type Sample<'a> = (Vec<(&'a str, String)>, f64);

impl Writer {
    fn metric<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<'a>>,
    ) {
        let _ = writeln!(self.0, "# HELP ingest_{name} {help}\n# TYPE ingest_{name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<_> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(self.0, "ingest_{name}{labels} {value}");
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the text of all metrics.
pub fn text(cameras: &[CameraFigures], state: Option<&State>, page: &PageFigures) -> String {
    let mut writer = Writer::default();
    write_streams(&mut writer, cameras);
    write_readers(&mut writer, cameras);
    if let Some(state) = state {
        write_processes(&mut writer, &state.processes);
    }
    writer.metric("pages", "gauge", "Pages that are open", [(Vec::new(), page.pages as f64)]);
    let tiles = page.tiles.iter().map(|(camera, count)| (vec![("camera", camera.clone())], *count as f64));
    writer.metric("tiles_total", "counter", "JPEG tiles made of a camera", tiles);
    writer.0
}

fn write_streams(writer: &mut Writer, cameras: &[CameraFigures]) {
    let of = |value: fn(&StreamFigures) -> Option<f64>| {
        let all = cameras.iter().flat_map(|camera| {
            camera.streams.iter().map(move |stream| (stream_labels(camera, stream), stream))
        });
        all.filter_map(move |(labels, stream)| value(stream).map(|value| (labels, value)))
    };
    let up = |stream: &StreamFigures| Some(f64::from(u8::from(stream.up)));
    writer.metric("stream_up", "gauge", "1 if the exporter answers", of(up));
    let published = |stream: &StreamFigures| stream.up.then_some(stream.published as f64);
    writer.metric("stream_published_total", "counter", "Frames or units published", of(published));
    let rate = |stream: &StreamFigures| Some(stream.rate);
    writer.metric("stream_rate", "gauge", "Frames or units in a second", of(rate));
    writer.metric(
        "stream_idle_seconds",
        "gauge",
        "Time since the last publication",
        of(|stream| stream.idle),
    );
    let bytes = |stream: &StreamFigures| stream.up.then_some(stream.bytes as f64);
    writer.metric("stream_memory_bytes", "gauge", "Memory of all slots", of(bytes));
    let copies = cameras.iter().flat_map(|camera| {
        let streams = camera.streams.iter();
        streams.flat_map(move |stream| with_reasons(&stream_labels(camera, stream), &stream.copies))
    });
    writer.metric("stream_copies_total", "counter", "Frames that the exporter copied", copies);
}

fn write_readers(writer: &mut Writer, cameras: &[CameraFigures]) {
    let all = || {
        cameras.iter().flat_map(|camera| camera.streams.iter().map(move |stream| (camera, stream))).flat_map(
            |(camera, stream)| {
                let readers = stream.readers.iter();
                readers.map(move |reader| (reader_labels(camera, stream, reader), reader))
            },
        )
    };
    let of = |value: fn(&ReaderFigures) -> Option<f64>| {
        all().filter_map(move |(labels, reader)| value(reader).map(|value| (labels, value)))
    };
    writer.metric(
        "reader_sent_total",
        "counter",
        "Frames published to the reader",
        of(|it| Some(it.sent as f64)),
    );
    writer.metric(
        "reader_lost_total",
        "counter",
        "Frames that the reader lost",
        of(|it| Some(it.lost as f64)),
    );
    writer.metric("reader_rate", "gauge", "Frames taken in a second", of(|it| Some(it.rate)));
    writer.metric("reader_held", "gauge", "Frames taken and not released", of(|it| Some(it.held.into())));
    writer.metric("reader_lag_frames", "gauge", "Frames behind the newest one", of(|it| Some(it.lag as f64)));
    let age = of(|it| it.age.map(|ms| ms / 1e3));
    writer.metric("reader_age_seconds", "gauge", "Mean age of frames when they are taken", age);
    let copies = all().flat_map(|(labels, reader)| with_reasons(&labels, &reader.copies));
    writer.metric("reader_copies_total", "counter", "Frames that the reader's application copied", copies);
}

fn write_processes(writer: &mut Writer, processes: &[Process]) {
    let labels = |process: &Process| {
        let role = format!("{:?}", process.role).to_lowercase();
        vec![("process", process.name.clone()), ("role", role)]
    };
    let of =
        |value: fn(&Process) -> f64| processes.iter().map(move |process| (labels(process), value(process)));
    let up = of(|process| f64::from(u8::from(process.pid.is_some())));
    writer.metric("process_up", "gauge", "1 if the process runs", up);
    let restarts = of(|process| process.restarts as f64);
    writer.metric("process_restarts_total", "counter", "Restarts of the process", restarts);
    let failed = processes.iter().flat_map(|process| {
        process.reports.values().map(move |report| {
            let mut labels = labels(process);
            labels.push(("camera", report.camera.clone()));
            (labels, f64::from(u8::from(report.condition == Condition::Failed)))
        })
    });
    let values = processes.iter().flat_map(|process| {
        process.reports.values().flat_map(move |report| {
            report.values.iter().map(move |(name, value)| {
                let mut labels = labels(process);
                labels.extend([("camera", report.camera.clone()), ("figure", name.clone())]);
                (labels, *value)
            })
        })
    });
    writer.metric("role_figure", "gauge", "Figures that a role reports", values);
    writer.metric("role_failed", "gauge", "1 if the camera is not at work and should be", failed);
}

fn stream_labels(camera: &CameraFigures, stream: &StreamFigures) -> Vec<(&'static str, String)> {
    vec![("camera", camera.camera.clone()), ("stream", stream.name.clone())]
}

fn reader_labels(
    camera: &CameraFigures,
    stream: &StreamFigures,
    reader: &ReaderFigures,
) -> Vec<(&'static str, String)> {
    let mut labels = stream_labels(camera, stream);
    labels.extend([("reader", reader.id.to_string()), ("name", reader.name.clone())]);
    labels
}

fn with_reasons(labels: &[(&'static str, String)], copies: &[Copies]) -> Vec<Sample<'static>> {
    let sample = |copies: &Copies| {
        let mut labels = labels.to_vec();
        labels.push(("reason", copies.reason.clone()));
        (labels, copies.count as f64)
    };
    copies.iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_camera_stream_and_reader() {
        let reader = ReaderFigures { id: 3, name: "a \"b\"\\".into(), lost: 2, ..Default::default() };
        let stream = StreamFigures {
            kind: "frames",
            name: "cam0".into(),
            up: true,
            published: 7,
            readers: vec![reader],
            ..Default::default()
        };
        let camera =
            CameraFigures { camera: "cam0".into(), tiles: None, streams: vec![stream], sample: [None; 4] };
        let page = PageFigures { pages: 1, tiles: vec![("cam0".into(), 9)] };
        let text = text(&[camera], None, &page);
        for line in [
            "# TYPE ingest_stream_published_total counter",
            "ingest_stream_published_total{camera=\"cam0\",stream=\"cam0\"} 7",
            r#"ingest_reader_lost_total{camera="cam0",stream="cam0",reader="3",name="a \"b\"\\"} 2"#,
            "ingest_pages 1",
            "ingest_tiles_total{camera=\"cam0\"} 9",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn dashboard_asks_for_metrics_that_exist() {
        let state = State { demo: false, processes: Vec::new(), events: Vec::new() };
        let text = text(&[], Some(&state), &PageFigures { pages: 0, tiles: Vec::new() });
        let known: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let dashboard = include_str!("../../grafana.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let asked = dashboard.split(|letter| !is_name(letter)).filter(|name| name.starts_with("ingest_"));
        let missing: Vec<_> = asked.clone().filter(|name| !known.contains(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
        assert!(asked.count() > 10, "the dashboard asks for nothing");
    }
}
