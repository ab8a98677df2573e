// SPDX-License-Identifier: MIT OR Apache-2.0

// The whole demo, for the pictures and the measurement: its supervisor, and all its processes.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { openSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const built = resolve(process.env.CARGO_TARGET_DIR ?? "../../target", process.env.PROFILE ?? "debug");

export class Demo {
  #started = [];

  static async create() {
    const demo = new Demo();
    demo.folder = await mkdtemp(join(tmpdir(), "frameshare-demo-"));
    demo.log = join(demo.folder, "log");
    demo.output = openSync(demo.log, "a");
    return demo;
  }

  /** Starts a program that is built here. */
  start(program, parameters) {
    return this.#start(join(built, program), parameters);
  }

  /** Runs another program to its end. */
  async run(program, parameters) {
    const child = this.#start(program, parameters);
    const [code] = await once(child, "exit");
    if (code !== 0) throw new Error(`${program} ${parameters.join(" ")} has failed`);
  }

  /** Starts the supervisor with a configuration. */
  async site(configuration) {
    const file = join(this.folder, "site.toml");
    await writeFile(file, configuration);
    this.supervisor = this.start("camera-ingest", ["run", "--demo", "--config", file]);
    return this.supervisor;
  }

  /** The end of what all programs have written. */
  text() {
    return readFileSync(this.log, "utf8").slice(-4000);
  }

  async stop() {
    for (const child of this.#started.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill("SIGTERM");
      await once(child, "exit");
    }
    await rm(this.folder, { recursive: true, force: true });
  }

  #start(program, parameters) {
    const env = { ...process.env, XDG_RUNTIME_DIR: this.folder };
    const child = spawn(program, parameters, { env, stdio: ["ignore", this.output, this.output] });
    this.#started.push(child);
    return child;
  }
}
