// SPDX-License-Identifier: MIT OR Apache-2.0

// A page without a browser: it watches tiles and acknowledges each at once.

import { randomBytes } from "node:crypto";
import { connect } from "node:net";

/** Watches the tiles of cameras. */
export class Client {
  tiles = 0;
  bytes = 0;
  #socket;
  #rest = Buffer.alloc(0);
  #isOpen = false;

  constructor(address, cameras) {
    const { host, hostname, port, origin } = new URL(address);
    this.#socket = connect(Number(port), hostname);
    this.#socket.write(`GET /socket HTTP/1.1\r\nHost: ${host}\r\nOrigin: ${origin}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
      `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${randomBytes(16).toString("base64")}\r\n\r\n`);
    this.#socket.on("data", (data) => this.#receive(data, cameras));
  }

  close() {
    this.#socket.destroy();
  }

  /** Sends a text in a masked frame (RFC 6455, 5.2), whose mask of zeros changes nothing. */
  #send(request) {
    const text = Buffer.from(JSON.stringify(request));
    if (text.length > 125) throw new Error("this client sends short requests only");
    this.#socket.write(Buffer.concat([Buffer.from([0x81, 0x80 | text.length, 0, 0, 0, 0]), text]));
  }

  #receive(data, cameras) {
    this.#rest = Buffer.concat([this.#rest, data]);
    if (!this.#isOpen) {
      const end = this.#rest.indexOf("\r\n\r\n");
      if (end < 0) return;
      this.#isOpen = true;
      this.#rest = this.#rest.subarray(end + 4);
      this.#send({ type: "watch", cameras });
    }
    for (let frame = this.#take(); frame !== null; frame = this.#take()) {
      if (frame.code !== 2) continue;
      this.tiles += 1;
      this.bytes += frame.content.length;
      this.#send({ type: "drawn", camera: frame.content.readUInt16LE(2) });
    }
  }

  #take() {
    const rest = this.#rest;
    if (rest.length < 10) return null;
    const short = rest[1] & 0x7f;
    const [head, length] = short < 126 ? [2, short] : short === 126 ? [4, rest.readUInt16BE(2)] : [10, Number(rest.readBigUInt64BE(2))];
    if (rest.length < head + length) return null;
    this.#rest = rest.subarray(head + length);
    return { code: rest[0] & 0x0f, content: rest.subarray(head, head + length) };
  }
}
