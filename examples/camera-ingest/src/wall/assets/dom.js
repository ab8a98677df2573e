// SPDX-License-Identifier: MIT OR Apache-2.0

// Elements, and texts for figures.

export const byId = (id) => document.getElementById(id);

/** Makes an element. Texts are text nodes: nothing that a stream says is parsed as HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets the text of an element; an equal text is left alone, for screen readers and layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export const number = (value, digits = 1) => (value ?? 0).toFixed(digits);

export function rate(value) {
  return value === null || value === undefined ? "–" : `${number(value)}/s`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${number(value / 1000)} s`;
  return `${number(value, value < 10 ? 1 : 0)} ms`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value, unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Short form of caps: media, size and rate. */
export function format(caps) {
  if (!caps) return "no format yet";
  const [media] = caps.split(/[,(]/);
  const field = (name) => caps.match(new RegExp(`[ ,]${name}=(?:\\([^)]*\\))?"?([^,;"]+)`))?.[1];
  const names = { "video/x-raw": field("format"), "video/x-h264": "H.264", "video/x-h265": "H.265", "audio/mpeg": "AAC",
    "application/x-frameshare-results": "results" };
  const parts = [names[media] ?? media.replace(/^(video|audio|application)\//, "")];
  if (field("width")) parts.push(`${field("width")}×${field("height")}`);
  const [numerator, denominator] = (field("framerate") ?? "0/1").split("/").map(Number);
  if (numerator > 0) parts.push(`${+(numerator / denominator).toFixed(2)} fps`);
  return parts.join(" ");
}
