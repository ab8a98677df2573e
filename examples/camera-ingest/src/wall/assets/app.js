// SPDX-License-Identifier: MIT OR Apache-2.0

// The page: which parts are shown, and the messages between them.

import { Results } from "./boxes.js";
import { Connection } from "./connection.js";
import { byId, bytes, element, number, setText } from "./dom.js";
import { diskOf, lostOf } from "./figures.js";
import { Focus } from "./focus.js";
import { History } from "./plots.js";
import { Site } from "./site.js";
import { Wall } from "./wall.js";

const THEMES = ["auto", "dark", "light"];

let cameras = [];
let figures = [];
let results = [];
let histories = [];
const send = (request) => connection.send(request);
const wall = new Wall(byId("tiles"), send);
const focus = new Focus(send);
const site = new Site(say);

const connection = new Connection({
  hello: (message) => hello(message),
  history: ({ cameras: all }) => all.forEach((entries, index) => histories[index]?.set(entries)),
  figures: ({ cameras: all }) => {
    figures = all;
    all.forEach(({ sample }, index) => histories[index]?.add(sample));
    update();
  },
  site: (message) => {
    site.set(message);
    update();
  },
  result: (message) => {
    const key = BigInt(message.key);
    results[message.camera]?.add(message.role, key, message);
    const tile = wall.tiles[message.camera];
    if (tile?.surface.key === key) tile.surface.draw();
    focus.result(message.camera, key);
  },
  tile: (message) => wall.tile(message),
  unit: (message) => focus.unit(message),
  picture: (message) => focus.picture(message),
  format: (message) => focus.format(message),
  failed: (message) => focus.failed(message),
  disconnected: () => notice("The connection to the wall is lost. Trying again …"),
});

/** The server tells its cameras: at the beginning, and after it has restarted. */
function hello({ version, cameras: all }) {
  notice("");
  setText(byId("version"), `frameshare ${version}`);
  if (JSON.stringify(all) === JSON.stringify(cameras)) {
    wall.watch();
    focus.restart();
    return;
  }
  cameras = all;
  results = cameras.map(() => new Results());
  histories = cameras.map(() => new History());
  wall.set(cameras, results, (index) => (location.hash = encodeURIComponent(cameras[index].name)));
  route();
}

/** Shows what the address names: a camera, or the wall. */
function route() {
  const name = decodeURIComponent(location.hash.slice(1));
  const index = cameras.findIndex((camera) => camera.name === name);
  const before = focus.index;
  byId("wall").hidden = index >= 0;
  if (index >= 0) {
    focus.open(index, cameras[index], results[index]);
    byId("focus-title").focus();
  } else {
    focus.close();
    if (before !== null) wall.tiles[before]?.button.focus();
  }
  wall.show(index < 0);
  update();
}

function update() {
  wall.tiles.forEach((tile, index) => tile.update(figures[index], site, histories[index]));
  if (focus.index !== null) focus.update(figures[focus.index], site, histories[focus.index]);
  const live = wall.tiles.filter(({ state }) => state === "live").length;
  const rate = figures.reduce((sum, { sample }) => sum + (sample[1] ?? sample[0] ?? 0), 0);
  const lost = figures.reduce((sum, camera) => sum + lostOf(camera), 0);
  const running = site.processes.filter(({ pid }) => pid !== null).length;
  const restarts = site.processes.reduce((sum, process) => sum + process.restarts, 0);
  const facts = [[`${live} of ${cameras.length}`, "cameras live"], [number(rate, 0), "frames/s"], [`${lost}`, "lost by readers"]];
  if (site.connected) facts.push([`${running} of ${site.processes.length}`, "processes"], [`${restarts}`, restarts === 1 ? "restart" : "restarts"]);
  const disk = diskOf(site);
  if (disk?.free_bytes !== undefined) facts.push([bytes(disk.free_bytes), "free"]);
  if (disk?.days_left !== undefined) facts.push([number(disk.days_left, 1), "days until old recordings go"]);
  const list = byId("summary");
  while (list.children.length > facts.length) list.lastChild.remove();
  facts.forEach(([value, name], index) => {
    const item = list.children[index] ?? list.appendChild(element("li", {}, element("b", {}), element("span", {})));
    setText(item.firstChild, value);
    setText(item.lastChild, name);
  });
}

function notice(text) {
  const target = byId("notice");
  setText(target, text);
  target.hidden = text === "";
  document.body.classList.toggle("lost", text !== "");
}

/** Tells screen readers; problems are shown, too. */
function say(text, isProblem = false) {
  setText(byId("status"), text);
  if (isProblem) notice(text);
}

function step(by) {
  if (focus.index === null) return;
  const next = (focus.index + by + cameras.length) % cameras.length;
  location.hash = encodeURIComponent(cameras[next].name);
}

const back = () => (location.hash = "");

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setText(byId("theme"), `Theme: ${name}`);
  localStorage.setItem("theme", name);
}

byId("back").addEventListener("click", back);
byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("theme").addEventListener("click", () => {
  const now = localStorage.getItem("theme") ?? "auto";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
document.addEventListener("keydown", (event) => {
  if (focus.index === null || event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = { Escape: back, ArrowLeft: () => step(-1), ArrowRight: () => step(1), f: () => focus.fullScreen() };
  if (!actions[event.key] || (event.key === "Escape" && document.fullscreenElement)) return;
  event.preventDefault();
  actions[event.key]();
});
window.addEventListener("hashchange", route);
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
