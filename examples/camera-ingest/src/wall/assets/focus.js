// SPDX-License-Identifier: MIT OR Apache-2.0

// One camera in full, with its figures.

import { Surface } from "./boxes.js";
import { byId, element, format, milliseconds, number, rate, setText } from "./dom.js";
import { lostOf, reportsOf, stateOf, streamPanels } from "./figures.js";
import { Decoder, Screen, whyNoUnits } from "./player.js";
import { Plot } from "./plots.js";

/** Half the time between two frames of a sub-stream of 8 frames a second, in ns. */
const NEAR = 62_500_000n;
/** Messages that are acknowledged together. */
const TOGETHER = 8;
const PLOTS = [["frames", "Frames a second", rate], ["age", "Oldest age at a reader", milliseconds],
  ["lost", "Frames lost in a second", (value) => `${value ?? "–"}`]];

/** The view of one camera. */
export class Focus {
  #send;
  #number = 0;
  #camera = null;
  #index = null;
  #surface = null;
  #screen = null;
  #decoder = null;
  #taken = 0;
  #age = null;
  #shown = 0;
  #results;
  #facts = new Map();
  #plots = new Map();

  constructor(send) {
    this.#send = send;
    for (const [name, label, text] of PLOTS) {
      const plot = new Plot(label, text);
      const now = element("span", { class: "plot-now" });
      byId("plots").append(element("figure", {}, element("figcaption", {}, label, now), plot.svg));
      this.#plots.set(name, { plot, now, text });
    }
    byId("full").addEventListener("click", () => this.fullScreen());
  }

  get index() {
    return this.#index;
  }

  /** Shows a camera. */
  open(index, camera, results) {
    this.close();
    [this.#index, this.#camera, this.#results] = [index, camera, results];
    byId("focus").hidden = false;
    setText(byId("focus-title"), camera.name);
    byId("screen").setAttribute("aria-label", `Live picture of ${camera.name}`);
    byId("streams").replaceChildren();
    this.#start(whyNoUnits());
  }

  /** Asks for the camera anew: the server has restarted. */
  restart() {
    if (this.#camera) this.#start(whyNoUnits());
  }

  close() {
    if (this.#camera === null) return;
    this.#stop();
    byId("focus").hidden = true;
    [this.#camera, this.#index] = [null, null];
    this.#send({ type: "focus", focus: this.#next(), camera: null, mode: "units" });
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else byId("stage").requestFullscreen?.();
  }

  format(message) {
    if (message.focus !== this.#number || this.#decoder === null) return;
    const size = message.width ? ` ${message.width}×${message.height}` : "";
    const boxes = this.#isNear ? "boxes of the frame of the sub-stream that is nearest in time" : "boxes on exactly their frame";
    const origin = this.#camera.raw ? "encoded by the capture process" : "from the camera";
    if (message.codec) setText(byId("mode"), `H.264${size} (${message.codec}) ${origin}, decoded by this browser; ${boxes}`);
    this.#decoder.format(message);
  }

  failed({ focus, why }) {
    if (focus === this.#number) this.#say(why);
  }

  unit(message) {
    if (message.channel !== this.#number) return;
    this.#decoder?.unit(message);
    this.#take(TOGETHER);
  }

  async picture({ channel, key, age, content }) {
    if (channel !== this.#number) return;
    const screen = this.#screen;
    const bitmap = await createImageBitmap(new Blob([content], { type: "image/jpeg" })).catch(() => null);
    if (bitmap !== null && screen === this.#screen) screen?.add(bitmap, key, age);
    else bitmap?.close();
    if (channel === this.#number) this.#take(1);
  }

  /** Draws boxes that have come after their frame. */
  result(index, key) {
    if (index === this.#index && this.#surface?.key === key) this.#surface.draw();
  }

  update(figures, site, history) {
    if (this.#camera === null) return;
    const { state, text } = stateOf(this.#camera, figures, site);
    const badge = byId("focus-state");
    badge.className = `badge ${state}`;
    setText(badge, state);
    byId("stage").dataset.state = state;
    if (figures) {
      this.#updateNow(figures);
      const panels = streamPanels(this.#camera, figures, site);
      // Selected text and the keyboard's focus stay where nothing has changed.
      if (!byId("streams").contains(document.activeElement)) byId("streams").replaceChildren(...panels);
    }
    this.#updateRoles(site);
    for (const [name, { plot, now, text: inWords }] of this.#plots) {
      const series = history.series(name);
      plot.draw(series);
      setText(now, inWords(series.at(-1) ?? null));
    }
    if (this.#shown === 0) this.#say(state === "live" ? "waiting for the first key unit" : text);
  }

  /** Whether the frames that are judged are those of the sub-stream, not of the stream that is played. */
  get #isNear() {
    return this.#camera.decode === "sub" && this.#camera.sub !== null;
  }

  #next() {
    this.#number = (this.#number + 1) % 65536;
    return this.#number;
  }

  /** Starts with units, or with pictures for a reason. */
  #start(whyPictures) {
    this.#stop();
    const tolerance = whyPictures === null && this.#isNear ? NEAR : 0n;
    this.#surface = new Surface(byId("screen"), this.#results, this.#camera.zones, tolerance);
    this.#screen = new Screen(this.#surface, this.#results, (age) => {
      this.#age = age;
      this.#shown += 1;
      this.#say("");
    });
    const mode = whyPictures === null ? "units" : "pictures";
    byId("stage").dataset.mode = mode;
    if (mode === "pictures") {
      setText(byId("mode"), `JPEG, up to 10 a second, made of the decoded frames: ${whyPictures}`);
    } else {
      setText(byId("mode"), "connecting to the camera's stream");
      this.#decoder = new Decoder(this.#screen, (why) => this.#camera && this.#start(why));
    }
    this.#send({ type: "focus", focus: this.#next(), camera: this.#index, mode });
  }

  #stop() {
    this.#decoder?.close();
    this.#screen?.close();
    this.#surface?.close();
    [this.#decoder, this.#screen, this.#surface] = [null, null, null];
    [this.#taken, this.#age, this.#shown] = [0, null, 0];
  }

  #take(together) {
    this.#taken += 1;
    if (this.#taken < together) return;
    this.#send({ type: "taken", focus: this.#number, count: this.#taken });
    this.#taken = 0;
  }

  #say(text) {
    const target = byId("stage-text");
    setText(target, text);
    target.hidden = text === "";
  }

  #updateNow(figures) {
    const frames = figures.streams.find(({ kind }) => kind === "frames");
    const video = figures.streams.find(({ kind }) => kind === "video");
    const motion = this.#results.motion;
    this.#fact("Camera", this.#camera.source);
    this.#fact("Units", video?.up ? `${rate(video.rate)}, ${format(video.caps)}` : video?.why ?? "–");
    this.#fact("Frames", frames?.up ? `${rate(frames.rate)}, ${format(frames.caps)}` : frames?.why ?? "–");
    this.#fact("Lost by readers", `${lostOf(figures)}`);
    this.#fact("Camera to screen", milliseconds(this.#age));
    if (this.#camera.motion) this.#fact("Motion", motion === null ? "–" : `${number(motion * 100)} %`);
  }

  #fact(name, text) {
    if (!this.#facts.has(name)) {
      const value = element("dd", {});
      byId("now").append(element("dt", {}, name), value);
      this.#facts.set(name, value);
    }
    setText(this.#facts.get(name), text);
  }

  #updateRoles(site) {
    const reports = reportsOf(site, this.#camera.name);
    const items = reports.map(({ role, condition, text, values, process }) => {
      const figures = Object.entries(values).map(([name, value]) => `${name.replaceAll("_", " ")} ${+value.toFixed(2)}`).join(", ");
      const restarts = process.restarts ? `, restarts: ${process.restarts}` : "";
      return element("li", { class: condition, title: process.name }, element("span", { class: "dot" }), element("b", {}, role),
        element("span", {}, `${condition}${text ? `: ${text}` : ""}${figures ? ` (${figures})` : ""}${restarts}`));
    });
    const none = element("li", { class: "off" }, element("span", {}, "not known without a supervisor"));
    byId("roles").replaceChildren(...(items.length ? items : [none]));
  }
}
