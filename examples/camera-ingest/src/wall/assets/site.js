// SPDX-License-Identifier: MIT OR Apache-2.0

// Processes and events of the site.

import { byId, duration, element, setText } from "./dom.js";

const SHOWN_EVENTS = 60;

/** The processes, and the events, as the supervisor tells them. */
export class Site {
  supervised = false;
  connected = false;
  processes = [];
  #token = null;
  #say;
  #rows = new Map();
  #events = [];

  /** `say` speaks to screen readers. */
  constructor(say) {
    this.#say = say;
    setInterval(() => this.#updateTimes(), 1000);
  }

  set({ supervised, connected, token, processes, events }) {
    [this.supervised, this.connected, this.processes, this.#token] = [supervised, connected, processes, token ?? null];
    const alone = supervised ? "The supervisor does not answer: figures of streams go on." :
      "This page runs alone, without a supervisor: it observes the streams, and knows nothing of processes.";
    setText(byId("processes-text"), connected ? this.#hint() : alone);
    byId("processes").hidden = processes.length === 0;
    byId("processes").classList.toggle("demo", this.#token !== null);
    this.#updateProcesses();
    this.#updateEvents(events);
    setText(byId("events-text"), connected ? "" : "Events come from the supervisor.");
    byId("events-link").hidden = !supervised;
  }

  #hint() {
    return this.#token === null ? "" : "Demo: kill any process, and see that nothing happens to the others.";
  }

  #updateProcesses() {
    const body = byId("processes").tBodies[0];
    const names = new Set(this.processes.map(({ name }) => name));
    for (const [name, row] of this.#rows) {
      if (names.has(name)) continue;
      row.line.remove();
      this.#rows.delete(name);
    }
    for (const process of this.processes) {
      const row = this.#rows.get(process.name) ?? this.#addRow(body, process.name);
      row.process = process;
      const [condition, text] = stateOfProcess(process);
      row.line.dataset.state = condition;
      setText(row.state, text);
      row.state.title = process.last_exit ? `last exit: ${process.last_exit}` : "";
      setText(row.pid, process.pid === null ? "–" : `${process.pid}`);
      setText(row.restarts, `${process.restarts}`);
      row.kill.hidden = this.#token === null;
      row.kill.disabled = process.pid === null;
    }
    this.#updateTimes();
  }

  #addRow(body, name) {
    const cell = (label) => element("td", { "data-label": label });
    const row = { state: cell("State"), pid: cell("PID"), up: cell("Up"), restarts: cell("Restarts") };
    row.kill = element("button", { type: "button", class: "kill", "aria-label": `Kill ${name}`, onclick: () => this.#kill(name) }, "Kill");
    row.line = element("tr", { "data-process": name },
      element("th", { scope: "row" }, element("span", { class: "dot" }), name), row.state, row.pid, row.up, row.restarts,
      element("td", { class: "kill-column" }, row.kill));
    body.append(row.line);
    this.#rows.set(name, row);
    return row;
  }

  #updateTimes() {
    for (const { process, up } of this.#rows.values()) {
      setText(up, process.pid === null ? "–" : duration(Date.now() / 1000 - process.started));
    }
  }

  async #kill(process) {
    const headers = { "x-page-token": this.#token };
    const answer = await fetch("/kill", { method: "POST", headers, body: JSON.stringify({ process }) }).catch((error) => error);
    if (answer.ok) this.#say(`${process} was killed`);
    else this.#say(`${process} was not killed: ${answer.text ? (await answer.text()).trim() : answer}`, true);
  }

  #updateEvents(events) {
    const shown = events.slice(-SHOWN_EVENTS);
    const texts = shown.map((event) => JSON.stringify(event));
    const last = this.#events.at(-1);
    const known = last === undefined ? -1 : texts.lastIndexOf(last);
    const list = byId("events");
    for (const event of shown.slice(known + 1)) list.prepend(eventItem(event));
    while (list.children.length > SHOWN_EVENTS) list.lastChild.remove();
    this.#events = texts;
  }
}

/** The condition of a process, and why it is so. */
function stateOfProcess({ pid, reports, last_exit, cameras }) {
  if (pid === null) return ["failed", last_exit ? `restarts: ${last_exit}` : "starting"];
  const all = Object.values(reports);
  const worst = ["failed", "waiting", "off", "running"].find((condition) => all.some((report) => report.condition === condition));
  const of = all.filter(({ condition }) => condition === worst);
  const texts = [...new Set(of.map(({ text }) => text).filter(Boolean))];
  const names = of.map(({ camera }) => camera).filter((camera) => camera !== "");
  const which = names.length > 0 && names.length < cameras.length ? `${names.join(", ")} ` : "";
  return [worst ?? "waiting", worst ? `${which}${worst}${texts.length ? `: ${texts.slice(0, 2).join("; ")}` : ""}` : "no report yet"];
}

function eventItem({ time, process, camera, text }) {
  const date = new Date(time * 1000);
  const clock = date.toLocaleTimeString([], { hour12: false });
  const who = camera === null || process.includes(camera) ? process : `${process}, ${camera}`;
  return element("li", {}, element("time", { datetime: date.toISOString() }, clock), element("b", {}, who), element("span", {}, text));
}
