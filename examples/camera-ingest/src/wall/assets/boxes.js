// SPDX-License-Identifier: MIT OR Apache-2.0

// Results by the key of their frame, and pictures with their boxes.

const KEPT = 240;
/** Results of a role are expected if there was one within this time. */
const EXPECTED = 2000;

/** The results of one camera. */
export class Results {
  #byKey = new Map();
  #newest = new Map();

  add(role, key, result) {
    const roles = this.#byKey.get(key) ?? new Map();
    roles.set(role, result);
    this.#byKey.set(key, roles);
    if (this.#byKey.size > KEPT) this.#byKey.delete(this.#byKey.keys().next().value);
    this.#newest.set(role, { key, time: performance.now(), score: result.score });
  }

  /**
   * The results of exactly this frame: a map from role to result. With a tolerance in ns, those of
   * the frame nearest in time, for streams whose frames are not the ones that were judged.
   */
  of(key, tolerance = 0n) {
    const exact = key === 0n ? undefined : this.#byKey.get(key);
    if (exact || tolerance === 0n) return exact;
    const distance = (other) => (other < key ? key - other : other - key);
    let nearest = null;
    for (const other of this.#byKey.keys()) {
      if (distance(other) <= tolerance && (nearest === null || distance(other) < distance(nearest))) nearest = other;
    }
    return nearest === null ? undefined : this.#byKey.get(nearest);
  }

  /** Whether each role that publishes results has judged this frame, or a later one. */
  areComplete(key) {
    if (key === 0n) return true;
    const active = [...this.#newest.values()].filter(({ time }) => performance.now() - time < EXPECTED);
    return active.every((newest) => newest.key >= key);
  }

  /** The newest score of motion. */
  get motion() {
    const newest = this.#newest.get("motion");
    return newest && performance.now() - newest.time < EXPECTED ? newest.score : null;
  }
}

/** Boxes of motion that get labels: more would hide the picture. */
const LABELED = 4;

/** A canvas that shows the picture of a frame, and the boxes of that frame. */
export class Surface {
  #canvas;
  #context;
  #picture = null;
  #key = 0n;
  #results;
  #zones;
  #tolerance;

  /** `tolerance` is that of `Results.of`. */
  constructor(canvas, results, zones = [], tolerance = 0n) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
    this.#results = results;
    [this.#zones, this.#tolerance] = [zones, tolerance];
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(canvas);
  }

  get key() {
    return this.#key;
  }

  /** Shows a picture, which is closed later: an ImageBitmap or a VideoFrame. */
  show(picture, key) {
    this.#picture?.close();
    [this.#picture, this.#key] = [picture, key];
    this.draw();
  }

  /** Draws the picture again: with results that have come since, or in another size. */
  draw() {
    if (!this.#picture) return;
    const { clientWidth, clientHeight } = this.#canvas;
    const density = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [Math.round(clientWidth * density), Math.round(clientHeight * density)];
    if (width === 0 || height === 0) return;
    if (this.#canvas.width !== width) this.#canvas.width = width;
    if (this.#canvas.height !== height) this.#canvas.height = height;
    const own = [this.#picture.displayWidth ?? this.#picture.width, this.#picture.displayHeight ?? this.#picture.height];
    const scale = Math.min(width / own[0], height / own[1]);
    const area = { width: own[0] * scale, height: own[1] * scale };
    [area.x, area.y] = [(width - area.width) / 2, (height - area.height) / 2];
    this.#context.fillStyle = "#000";
    this.#context.fillRect(0, 0, width, height);
    this.#context.drawImage(this.#picture, area.x, area.y, area.width, area.height);
    this.#drawZones(area, density);
    const shown = this.#drawResults(area, density);
    Object.assign(this.#canvas.dataset, { key: this.#key, boxes: shown });
  }

  close() {
    this.observer.disconnect();
    this.#picture?.close();
    this.#picture = null;
    this.#context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    delete this.#canvas.dataset.key;
    delete this.#canvas.dataset.boxes;
  }

  #drawZones(area, density) {
    const context = this.#context;
    context.strokeStyle = "rgb(255 255 255 / 35%)";
    context.lineWidth = density;
    context.setLineDash([4 * density, 4 * density]);
    for (const { points } of this.#zones) {
      context.beginPath();
      for (const [x, y] of points) context.lineTo(area.x + x * area.width, area.y + y * area.height);
      context.closePath();
      context.stroke();
    }
    context.setLineDash([]);
  }

  #drawResults(area, density) {
    let shown = 0;
    for (const [role, { boxes }] of this.#results.of(this.#key, this.#tolerance) ?? []) {
      for (const box of boxes) {
        this.#drawBox(area, density, role, box, role !== "motion" || boxes.length <= LABELED);
        shown += 1;
      }
    }
    return shown;
  }

  #drawBox(area, density, role, { x, y, width, height, label, score }, isLabeled) {
    const context = this.#context;
    const color = role === "motion" ? "#ffb020" : "#2fd4c7";
    const [left, top] = [area.x + x * area.width, area.y + y * area.height];
    context.strokeStyle = color;
    context.lineWidth = (isLabeled ? 2 : 1) * density;
    context.strokeRect(left, top, width * area.width, height * area.height);
    if (!isLabeled || area.width < 480 * density) return;
    const text = `${label} ${Math.round(score * 100)} %`;
    context.font = `600 ${12 * density}px system-ui, sans-serif`;
    const [wide, high] = [context.measureText(text).width + 10 * density, 18 * density];
    const above = top >= high ? top - high : top + height * area.height;
    context.fillStyle = color;
    context.fillRect(left - density, above, wide, high);
    context.fillStyle = "#10151c";
    context.fillText(text, left + 4 * density, above + 13 * density);
  }
}
