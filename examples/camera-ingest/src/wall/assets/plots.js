// SPDX-License-Identifier: MIT OR Apache-2.0

// Small plots of the last minutes.

const SVG = "http://www.w3.org/2000/svg";
export const ENTRIES = 300;

/** Index of each series in an entry of the history. */
export const SERIES = { units: 0, frames: 1, age: 2, lost: 3 };

/** A line over the last minutes. */
export class Plot {
  #line = document.createElementNS(SVG, "path");
  #fill = document.createElementNS(SVG, "path");
  #name;
  #text;

  /** `text` turns a value into a text for people. */
  constructor(name, text) {
    [this.#name, this.#text] = [name, text];
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${ENTRIES} 40`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.svg.classList.add("plot");
    this.#fill.classList.add("plot-fill");
    this.#line.classList.add("plot-line");
    this.svg.append(this.#fill, this.#line);
  }

  /** Draws values, newest last; null is a gap. */
  draw(values) {
    const known = values.filter((value) => value !== null);
    const most = Math.max(...known, 0);
    const y = (value) => (38 - (value / (most || 1)) * 35).toFixed(1);
    let [line, fill, start, last] = ["", "", null, null];
    values.forEach((value, index) => {
      const x = ENTRIES - values.length + index;
      if (value === null) {
        if (start !== null) fill += `L${last} 40L${start} 40Z`;
        start = null;
        return;
      }
      line += `${start === null ? "M" : "L"}${x} ${y(value)}`;
      fill += `${start === null ? "M" : "L"}${x} ${y(value)}`;
      start ??= x;
      last = x;
    });
    if (start !== null) fill += `L${last} 40L${start} 40Z`;
    this.#line.setAttribute("d", line);
    this.#fill.setAttribute("d", fill);
    const now = values.at(-1) ?? null;
    const range = known.length ? `, ${this.#text(Math.min(...known))} to ${this.#text(most)} in the last 5 minutes` : "";
    this.svg.setAttribute("aria-label", `${this.#name}: ${this.#text(now)}${range}`);
  }
}

/** The history of one camera. */
export class History {
  #entries = [];

  set(entries) {
    this.#entries = entries.slice(-ENTRIES);
  }

  add(entry) {
    this.#entries.push(entry);
    if (this.#entries.length > ENTRIES) this.#entries.shift();
  }

  series(name) {
    return this.#entries.map((entry) => entry[SERIES[name]]);
  }
}
