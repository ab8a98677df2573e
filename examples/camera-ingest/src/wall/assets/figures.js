// SPDX-License-Identifier: MIT OR Apache-2.0

// The state of a camera, and its streams and readers as tables.

import { bytes, element, format, milliseconds, number, rate } from "./dom.js";

/** The reports of all roles on a camera: role, process, condition, text, values. */
export function reportsOf(site, camera) {
  return site.processes
    .filter(({ cameras }) => cameras.includes(camera))
    .map((process) => {
      const report = process.reports[camera];
      const text = process.pid === null ? process.last_exit ?? "not running" : report?.text ?? "no report yet";
      const condition = process.pid === null ? "failed" : report?.condition ?? "waiting";
      return { role: process.role, process, condition, text, values: report?.values ?? {} };
    });
}

const stream = (figures, kind) => figures?.streams.find((other) => other.kind === kind);

/** Space for recordings, as the recorder that deletes old ones reports it. */
export function diskOf(site) {
  return site.processes.map(({ role, reports }) => (role === "record" ? reports[""]?.values : undefined)).find(Boolean);
}

/** What a tile says: a state (`live`, `waiting`, `off`, `failed`), and why it is not live. */
export function stateOf(camera, figures, site) {
  const reports = reportsOf(site, camera.name);
  const of = (role) => reports.find((report) => report.role === role);
  const [frames, video] = [stream(figures, "frames"), stream(figures, "video")];
  const capture = of("capture");
  if (capture?.condition === "failed") return { state: "failed", text: capture.text };
  const record = of("record");
  if (record?.condition === "failed") return { state: "failed", text: `recording: ${record.text}` };
  if (frames?.up && frames.rate > 0) return { state: "live", text: "" };
  if (camera.decode === "never" && !camera.raw) {
    return video?.up ? { state: "off", text: "decoding: off, by the configuration" } : { state: "waiting", text: video?.why ?? "" };
  }
  const decode = of("decode");
  if (decode && decode.condition !== "running") {
    return { state: decode.condition === "failed" ? "failed" : decode.condition, text: `decoding: ${decode.condition}, ${decode.text}` };
  }
  if (figures?.tiles) return { state: "failed", text: figures.tiles };
  if (!figures) return { state: "waiting", text: "waiting for figures" };
  if (!frames?.up) return { state: "waiting", text: frames?.why ?? "no frames" };
  return { state: "waiting", text: frames.idle === null ? "no frame yet" : `no frame for ${number(frames.idle)} s` };
}

/** Frames lost by all readers of a camera. */
export function lostOf(figures) {
  return figures.streams.flatMap(({ readers }) => readers).reduce((sum, { lost }) => sum + lost, 0);
}

/** The name of the process with this number. */
function processOf(site, pid) {
  return site.processes.find((process) => process.pid === pid)?.name;
}

const KINDS = { video: "as the camera made it", sub: "smaller stream of the camera", audio: "sound", frames: "decoded",
  motion: "results of motion detection", model: "results of the model" };

/** One panel for each stream of a camera. */
export function streamPanels(camera, figures, site) {
  return figures.streams.map((stream) => {
    const note = stream.kind === "video" && camera.raw ? "encoded here once: the source sends raw frames" : KINDS[stream.kind];
    const head = element("div", { class: "stream-head" },
      element("h4", {}, stream.name),
      element("span", { class: `badge ${stream.up ? "live" : "waiting"}` }, stream.up ? rate(stream.rate) : "down"),
      element("span", { class: "hint" }, stream.up ? format(stream.caps) : ""),
      element("span", { class: "hint" }, note));
    const facts = stream.up ? element("p", { class: "hint" }, factsOf(stream, site)) : null;
    const why = stream.why ? element("p", { class: "problem" }, stream.why) : null;
    const copies = stream.copies.length
      ? element("p", { class: "problem" }, `copied at the exporter: ${copiesOf(stream.copies)}`) : null;
    const incident = stream.incident ? element("p", { class: "problem" }, `last eviction or refusal: ${stream.incident}`) : null;
    return element("section", { class: "panel stream", "aria-label": stream.name }, head, facts, why, copies, incident,
      stream.up ? readersTable(stream, site) : null);
  });
}

function factsOf(stream, site) {
  const parts = [`from ${processOf(site, stream.pid) ?? `process ${stream.pid}`}`];
  if (stream.slots > 0) parts.push(`${stream.memory} memory${stream.memory_why ? ` (${stream.memory_why})` : ""}, ` +
    `${stream.free_slots} of ${stream.slots} slots free, ${bytes(stream.bytes)}`);
  if (stream.gop_units > 0) parts.push(`kept GOP ${stream.gop_units} units, ${bytes(stream.gop_bytes)}`);
  return parts.join(" · ");
}

/** Reasons for copies, in words; others are shown as they are. */
const REASONS = { "foreign-memory": "they come in the source's own memory", credit: "the reader holds as many as it may",
  layout: "a consumer needs another layout", downstream: "a consumer writes into them", "no-free-slot": "no slot was free",
  "padded-rows": "their rows are padded", "several-memories": "each comes in several memories", "other-stream": "they are another stream's",
  "other-context": "they come from another CUDA context", "host-memory": "they come in host memory" };

const copiesOf = (copies) => copies.map(({ reason, count }) => `${count} frames: ${REASONS[reason] ?? reason}`).join(", ");

function readersTable(stream, site) {
  if (stream.readers.length === 0) return element("p", { class: "hint" }, "no reader");
  const names = ["Reader", "Policy", "Rate", "Age", "Lag", "Held", "Lost", "Memory, fence", "Copies"];
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const rows = stream.readers.map((reader) => readerRow(names, reader, stream, site));
  return element("table", { class: "cards figures" }, element("caption", { class: "visually-hidden" }, `Readers of ${stream.name}`),
    element("thead", {}, head), element("tbody", {}, ...rows));
}

/** The process of a reader, and what it reads for: `wall (units)` of "camera-ingest wall units/framesharesrc0". */
function nameOf(reader, site) {
  const [program, ...words] = reader.name.replace(/\/.*/, "").split(" ");
  const process = processOf(site, reader.pid) ?? program;
  // The name of a process begins with its role.
  if (words.length > 0 && process.startsWith(words[0])) words.shift();
  const isNamed = words.length > 0 && !/^pipeline[0-9]*$/.test(words[0]);
  return process + (isNamed ? ` (${words.join(" ")})` : "");
}

function readerRow(names, reader, stream, site) {
  const name = nameOf(reader, site);
  const p99 = reader.age_p99 === null ? "" : ` (99 % ≤ ${milliseconds(reader.age_p99)})`;
  const fence = reader.fence_why ? ` (${reader.fence_why})` : "";
  const why = reader.memory === stream.memory ? "" : ", downloaded";
  const copies = [reader.copies.length ? copiesOf(reader.copies) : "", stream.memory === "host" ? "" : reader.cannot_adopt ?? ""].filter(Boolean);
  const cells = [
    element("th", { scope: "row", title: reader.name }, name, " ", element("small", {}, `${reader.pid}`)),
    reader.policy, rate(reader.rate), milliseconds(reader.age) + p99, `${reader.lag}`,
    `${reader.held} of ${reader.credit}${reader.waiting ? `, ${reader.waiting} wait` : ""}`, `${reader.lost}`,
    `${reader.memory}${why}, ${reader.fence}${fence}`, copies.length ? copies.join("; ") : "none",
  ];
  const made = cells.map((cell, index) => (typeof cell === "string" ? element("td", { "data-label": names[index] }, cell) : cell));
  if (reader.lost_now > 0) made[6].classList.add("warn");
  return element("tr", {}, ...made);
}
