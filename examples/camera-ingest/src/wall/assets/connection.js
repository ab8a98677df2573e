// SPDX-License-Identifier: MIT OR Apache-2.0

// The WebSocket to the server, through its restarts.

const HEADER = 16;
const KINDS = { 1: "tile", 2: "unit", 3: "picture" };
const MAX_PAUSE = 4000;

/** Receives messages and sends requests. `on` has a function for each type of message. */
export class Connection {
  #on;
  #socket = null;
  #pause = 250;

  constructor(on) {
    this.#on = on;
    this.#open();
  }

  /** Sends a request. Requests without a connection are dropped: `connected` sends the state anew. */
  send(request) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(request));
  }

  #open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.#text(data) : this.#binary(data));
    socket.onclose = () => {
      this.#on.disconnected();
      setTimeout(() => this.#open(), this.#pause);
      this.#pause = Math.min(this.#pause * 2, MAX_PAUSE);
    };
    this.#socket = socket;
  }

  #text(data) {
    const message = JSON.parse(data);
    if (message.type === "hello") this.#pause = 250;
    this.#on[message.type]?.(message);
  }

  #binary(data) {
    const view = new DataView(data, 0, HEADER);
    const age = view.getUint32(4, true);
    this.#on[KINDS[view.getUint8(0)]]?.({
      isKey: (view.getUint8(1) & 1) !== 0,
      channel: view.getUint16(2, true),
      age: age === 0xffffffff ? null : age,
      key: view.getBigUint64(8, true),
      content: new Uint8Array(data, HEADER),
    });
  }
}
