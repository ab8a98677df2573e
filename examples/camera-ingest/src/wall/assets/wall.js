// SPDX-License-Identifier: MIT OR Apache-2.0

// The wall: a tile for each camera, of which the visible ones are asked for.

import { Surface } from "./boxes.js";
import { element, milliseconds, rate, setText } from "./dom.js";
import { lostOf, stateOf } from "./figures.js";
import { Plot } from "./plots.js";

/** A tile. */
class Tile {
  #state = element("span", { class: "dot" });
  #text = element("p", { class: "tile-text" });
  #rate = element("span", {});
  #age = element("span", {});
  #lost = element("span", {});
  #motion = element("meter", { min: 0, max: 1, value: 0, title: "Motion" });
  #plot = new Plot("Frames a second", rate);
  #bitmap = null;
  #age_ms = null;

  constructor(camera, results, open) {
    this.camera = camera;
    this.canvas = element("canvas", { role: "img", "aria-label": `Live picture of ${camera.name}` });
    const name = element("span", { class: "tile-name" }, this.#state, camera.name);
    this.button = element("button", { type: "button", class: "tile", onclick: open },
      element("span", { class: "tile-picture" }, this.canvas, this.#text, name,
        camera.motion ? this.#motion : null));
    const figures = element("p", { class: "tile-figures" }, this.#rate, this.#age, this.#lost);
    this.item = element("li", {}, this.button, element("div", { class: "tile-foot" }, figures, this.#plot.svg));
    this.#plot.svg.classList.add("tile-plot");
    this.surface = new Surface(this.canvas, results, camera.zones);
    this.results = results;
  }

  async show({ content, key, age }) {
    const bitmap = await createImageBitmap(new Blob([content], { type: "image/jpeg" })).catch(() => null);
    if (bitmap === null) return;
    this.surface.show(bitmap, key);
    this.#age_ms = age;
    this.canvas.dataset.count = Number(this.canvas.dataset.count ?? 0) + 1;
  }

  update(figures, site, history) {
    const { state, text } = stateOf(this.camera, figures, site);
    this.state = state;
    this.item.dataset.state = state;
    setText(this.#text, state === "live" ? "" : text);
    const [units, frames] = figures?.sample ?? [null, null];
    setText(this.#rate, frames === null ? rate(units) : rate(frames));
    setText(this.#age, this.#age_ms === null ? "" : `${milliseconds(this.#age_ms)} old`);
    const lost = figures ? lostOf(figures) : 0;
    setText(this.#lost, `${lost} lost`);
    this.#plot.draw(history.series(frames === null ? "units" : "frames"));
    const motion = this.results.motion;
    this.#motion.value = motion ?? 0;
    this.#motion.hidden = motion === null;
    this.button.setAttribute("aria-label", `${this.camera.name}: ${state === "live" ? `live, ${rate(frames)}` : text || state}`);
  }
}

/** Least width of a tile, in pixels. */
const NARROW = 270;

/** All tiles. */
export class Wall {
  #list;
  #tiles = [];
  #visible = new Set();
  #send;
  #isShown = true;
  #observer;

  constructor(list, send) {
    [this.#list, this.#send] = [list, send];
    this.#observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const index = this.#tiles.findIndex(({ item }) => item === target);
        if (isIntersecting) this.#visible.add(index);
        else this.#visible.delete(index);
      }
      this.watch();
    }, { rootMargin: "80px" });
    document.addEventListener("visibilitychange", () => this.watch());
    list.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#arrange()).observe(list);
  }

  get tiles() {
    return this.#tiles;
  }

  /** Makes the tiles of these cameras. */
  set(cameras, results, open) {
    for (const { item, surface } of this.#tiles) {
      this.#observer.unobserve(item);
      surface.close();
    }
    this.#visible.clear();
    this.#tiles = cameras.map((camera, index) => new Tile(camera, results[index], () => open(index)));
    this.#list.replaceChildren(...this.#tiles.map(({ item }) => item));
    this.#arrange();
    for (const { item } of this.#tiles) this.#observer.observe(item);
  }

  /** Shows the wall, or asks for no tiles while it is hidden. */
  show(isShown) {
    this.#isShown = isShown;
    this.watch();
  }

  /** Asks for the tiles that can be seen. */
  watch() {
    const isSeen = this.#isShown && document.visibilityState === "visible";
    this.#send({ type: "watch", cameras: isSeen ? [...this.#visible].sort((one, other) => one - other) : [] });
  }

  async tile({ channel, ...picture }) {
    await this.#tiles[channel]?.show(picture);
    this.#send({ type: "drawn", camera: channel });
  }

  /** Chooses the columns: as many as fit, or fewer where the last row is full then. */
  #arrange() {
    const most = Math.max(1, Math.floor(this.#list.clientWidth / NARROW));
    const count = this.#tiles.length;
    let columns = Math.min(most, Math.max(count, 1));
    for (let fewer = columns; fewer > columns / 2; fewer -= 1) {
      if (count % fewer === 0) {
        columns = fewer;
        break;
      }
    }
    this.#list.style.setProperty("--columns", columns);
  }

  /** Moves the keyboard's focus between tiles. */
  #move(event) {
    const index = this.#tiles.findIndex(({ button }) => button === document.activeElement);
    if (index < 0) return;
    const top = this.#tiles[index].item.offsetTop;
    const columns = this.#tiles.filter(({ item }) => item.offsetTop === top).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const target = event.key === "Home" ? 0 : event.key === "End" ? this.#tiles.length - 1 : index + (steps[event.key] ?? NaN);
    if (!this.#tiles[target]) return;
    event.preventDefault();
    this.#tiles[target].button.focus();
  }
}
