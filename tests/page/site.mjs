// SPDX-License-Identifier: MIT OR Apache-2.0

// A site for the page: streams, the wall's process, and a supervisor that only tells its state.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const built = resolve(process.env.CARGO_TARGET_DIR ?? "../../target", "debug");
const LIMIT = 60_000;

/** Waits until `condition` returns something true, and returns it. */
export async function until(what, condition, limit = LIMIT) {
  const end = Date.now() + limit;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > end) throw new Error(`after ${limit} ms: not ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** Starts a program; its output is kept for errors. */
function start(program, parameters, env) {
  const child = spawn(program, parameters, { env: { ...process.env, ...env }, stdio: ["pipe", "pipe", "pipe"] });
  child.text = "";
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on("line", (line) => (child.text += `${line}\n`));
  }
  return child;
}

async function stop(child, signal = "SIGTERM") {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signal);
  await once(child, "exit");
}

/** The supervisor's side of the control socket: states go out, commands come in. */
class Supervisor {
  commands = [];
  #clients = new Set();
  #server;

  constructor(state) {
    this.state = state;
    this.#server = createServer((client) => {
      this.#clients.add(client);
      client.on("error", () => {}).on("close", () => this.#clients.delete(client));
      client.write(`${JSON.stringify(this.state)}\n`);
      createInterface({ input: client }).on("line", (line) => this.#command(JSON.parse(line)));
    });
  }

  listen(path) {
    return new Promise((done) => this.#server.listen(path, done));
  }

  /** Tells a changed state. */
  change(change) {
    change(this.state);
    for (const client of this.#clients) client.write(`${JSON.stringify(this.state)}\n`);
  }

  close() {
    for (const client of this.#clients) client.destroy();
    this.#server.close();
  }

  #command(command) {
    this.commands.push(command);
    const event = (process, text) => ({ time: Date.now() / 1000, process, camera: null, text });
    this.change((state) => {
      const process = state.processes.find(({ name }) => name === command.process);
      Object.assign(process, { restarts: process.restarts + 1, pid: process.pid + 1000, last_exit: "killed by SIGKILL" });
      state.events.push(event(process.name, "killed by SIGKILL"), event(process.name, "started again"));
    });
  }
}

/** The state of a site in which all processes run. */
export function stateOf(count, demo) {
  const cameras = Array.from({ length: count }, (_, index) => `cam${index}`);
  const report = (camera, text) => [camera, { camera, condition: "running", text, values: {} }];
  const started = Date.now() / 1000 - 95;
  const of = (role, names, pid, text) => ({ name: `${role}-${names.length === 1 ? names[0] : 1}`, role, cameras: names, pid, restarts: 0,
    started, last_exit: null, reports: Object.fromEntries(names.map((name) => report(name, text))) });
  const processes = [
    ...cameras.map((camera, index) => of("capture", [camera], 4001 + index, "receiving")),
    ...cameras.map((camera, index) => of("decode", [camera], 4101 + index, "decoding")),
    of("motion", cameras, 4201, ""), of("wall", cameras, 4301, ""),
  ];
  const events = processes.map(({ name }) => ({ time: started, process: name, camera: null, text: "started" }));
  return { demo, processes, events };
}

/** A running site. `supervisor` is null for a wall that runs alone. */
export class Site {
  static async start({ count = 4, h265 = null, demo = true, alone = false } = {}) {
    const site = new Site();
    site.folder = await mkdtemp(join(tmpdir(), "frameshare-page-"));
    site.environment = { XDG_RUNTIME_DIR: site.folder, RUST_LOG: "warn" };
    site.streams = start(join(built, "examples/page-site"), [`${count}`, ...(h265 === null ? [] : [`${h265}`])], site.environment);
    await until("ready: streams", () => site.streams.text.includes("ready") || (site.streams.exitCode !== null && fail(site.streams)));
    site.supervisor = alone ? null : new Supervisor(stateOf(count, demo));
    if (site.supervisor) {
      site.environment.CAMERA_INGEST_CONTROL = join(site.folder, "control.sock");
      await site.supervisor.listen(site.environment.CAMERA_INGEST_CONTROL);
    }
    const cameras = Array.from({ length: count }, (_, index) => `cam${index} = "pattern:ball?width=640&height=360&rate=20"`);
    await site.#startWall("127.0.0.1:0", cameras);
    site.cameras = cameras;
    return site;
  }

  /** Kills the wall's process, and starts another at the same address. */
  async restartWall() {
    await stop(this.wall, "SIGKILL");
    await this.#startWall(new URL(this.address).host, this.cameras);
  }

  async #startWall(listen, cameras) {
    const config = join(this.folder, "site.toml");
    await writeFile(config, `[cameras]\n${cameras.join("\n")}\n[wall]\nlisten = "${listen}"\n`);
    const wall = start(join(built, "camera-ingest"), ["wall", "--config", config], this.environment);
    const found = await until("an address of the page", () =>
      wall.text.match(/(http:\S+)/) ?? (wall.exitCode !== null && fail(wall)));
    [this.wall, this.address] = [wall, found[1]];
  }

  async stop() {
    if (this.wall) await stop(this.wall);
    this.supervisor?.close();
    if (this.streams) await stop(this.streams);
    await rm(this.folder, { recursive: true, force: true });
  }
}

function fail(child) {
  throw new Error(`${child.spawnfile} has ended: ${child.text}`);
}

/** Starts the browser. */
export function browser(options = {}) {
  const args = ["--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"];
  if (process.getuid() === 0) args.push("--no-sandbox");
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args, ...options });
}

/** Opens a page, and collects what its console says. */
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(`${error.stack}`));
  await page.goto(address);
  return page;
}
