// SPDX-License-Identifier: MIT OR Apache-2.0

// CPU of a site with many sub-stream cameras: each is decoded once for motion detection and wall,
// and its main stream is recorded. The cameras are files that are encoded beforehand; the processes
// that play them are the sources, and are reported apart.
//
//   node bench.mjs [CAMERAS] [SECONDS]

import { readFileSync, readdirSync } from "node:fs";
import { cpus } from "node:os";
import { join, resolve } from "node:path";
import { Client } from "./client.mjs";
import { Demo } from "./demo.mjs";
import { until } from "./site.mjs";

const [count, seconds] = [Number(process.argv[2] ?? 16), Number(process.argv[3] ?? 30)];
const PORT = 8191;
const CLIP = resolve("../../.demo/bigbuckbunny.mp4");
const TICKS = 100; // CLK_TCK of Linux

const demo = await Demo.create();
process.on("SIGINT", () => demo.stop().then(() => process.exit(130)));
try {
  await measure();
} catch (error) {
  console.error(demo.text());
  throw error;
} finally {
  await demo.stop();
}

async function measure() {
  const main = await encode("main.mp4", 1280, 720, 25);
  const sub = await encode("sub.mp4", 640, 360, 10);
  const names = Array.from({ length: count }, (_, index) => `cam${index}`);
  await demo.site([
    "[cameras]", ...names.map((name) => `${name} = { main = "${main}", sub = "${sub}" }`),
    "[groups]", "capture = 4", "decode = 4", "record = 4", "motion = 4",
    "[recording]", `folder = "${join(demo.folder, "recordings")}"`, "segment = \"10s\"",
    "[wall]", `listen = "127.0.0.1:${PORT}"`,
  ].join("\n"));
  const address = `http://127.0.0.1:${PORT}/`;
  await until("a page", () => fetch(address).then(({ ok }) => ok, () => false));
  const client = new Client(address, names.map((_, index) => index));
  await until("tiles of all cameras", async () => {
    const rates = valuesOf(await metrics(address), "ingest_tiles_total");
    return rates.length === count && rates.every(({ value }) => value > 5);
  }, 120_000);

  const before = { cpu: cpuOf(), text: await metrics(address), tiles: client.tiles, bytes: client.bytes, time: performance.now() };
  await new Promise((done) => setTimeout(done, seconds * 1000));
  const after = { cpu: cpuOf(), text: await metrics(address), tiles: client.tiles, bytes: client.bytes, time: performance.now() };
  client.close();
  print(before, after);
}

async function encode(name, width, height, rate) {
  const file = join(demo.folder, name);
  await demo.run("gst-launch-1.0", ["-q", "filesrc", `location=${CLIP}`, "!", "qtdemux", "!", "h264parse", "!", "avdec_h264", "!",
    "videoconvertscale", "!", "videorate", "!", `video/x-raw,width=${width},height=${height},framerate=${rate}/1`, "!",
    "x264enc", "speed-preset=veryfast", "tune=zerolatency", `key-int-max=${rate}`, `bitrate=${width > 1000 ? 3000 : 600}`, "!",
    "h264parse", "!", "mp4mux", "!", "filesink", `location=${file}`]);
  return file;
}

async function metrics(address) {
  return (await fetch(new URL("/metrics", address))).text();
}

function valuesOf(text, name) {
  const lines = text.split("\n").filter((line) => line.startsWith(`${name}{`));
  return lines.map((line) => ({ labels: line.slice(0, line.lastIndexOf(" ")), value: Number(line.slice(line.lastIndexOf(" ") + 1)) }));
}

/** CPU seconds of the supervisor's processes: a map from number of process to role and seconds. */
function cpuOf() {
  const found = new Map();
  for (const entry of readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, "utf8");
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      const isOwn = Number(entry) === demo.supervisor.pid;
      if (!isOwn && Number(fields[1]) !== demo.supervisor.pid) continue;
      const parameters = readFileSync(`/proc/${entry}/cmdline`, "utf8").split("\0");
      const roles = ["capture", "decode", "record", "motion", "model", "wall"];
      // By the command, or by the process's name in the plan.
      const role = isOwn ? "supervisor" : roles.find((name) => parameters.some((one) => one === name || one.startsWith(`${name}-`)));
      found.set(entry, { role: role ?? "other", seconds: (Number(fields[11]) + Number(fields[12])) / TICKS });
    } catch (error) {
      if (error.code !== "ENOENT" && error.code !== "ESRCH") throw error; // the process has ended
    }
  }
  return found;
}

function print(before, after) {
  const time = (after.time - before.time) / 1000;
  const roles = new Map();
  for (const [pid, { role, seconds: now }] of after.cpu) {
    const row = roles.get(role) ?? { processes: 0, used: 0 };
    roles.set(role, { processes: row.processes + 1, used: row.used + now - (before.cpu.get(pid)?.seconds ?? 0) });
  }
  const percent = (used) => `${((100 * used) / time).toFixed(1)} %`;
  const machine = `${cpus().length} cores (${cpus()[0].model})`;
  const what = "main 1280x720, 25/s, recorded; sub 640x360, 10/s, decoded for motion and wall";
  console.log(`${count} cameras: ${what}; ${time.toFixed(0)} s on ${machine}\n`);
  console.log("| role | processes | CPU, of a core | a camera |\n| --- | --- | --- | --- |");
  const line = (name, { processes, used }) => console.log(`| ${name} | ${processes} | ${percent(used)} | ${percent(used / count)} |`);
  const total = { processes: 0, used: 0 };
  for (const role of ["decode", "motion", "record", "wall", "model", "supervisor", "other"]) {
    if (!roles.has(role)) continue;
    line(role, roles.get(role));
    total.processes += roles.get(role).processes;
    total.used += roles.get(role).used;
  }
  line("all of these", total);
  line("sources (capture)", roles.get("capture") ?? { processes: 0, used: 0 });
  const change = (name, filter = () => true) => {
    const sum = (text) => valuesOf(text, name).filter(filter).reduce((all, { value }) => all + value, 0);
    return sum(after.text) - sum(before.text);
  };
  const frames = change("ingest_stream_published_total", ({ labels }) => /stream="cam[0-9]+"/.test(labels));
  const judged = change("ingest_stream_published_total", ({ labels }) => labels.includes(".motion\""));
  const rate = (value) => (value / time).toFixed(0);
  console.log(`\nframes ${rate(frames)}/s, motion results ${rate(judged)}/s, tiles ${rate(after.tiles - before.tiles)}/s ` +
    `(${rate((after.bytes - before.bytes) / 1024)} KiB/s), lost by readers ${change("ingest_reader_lost_total")}`);
}
