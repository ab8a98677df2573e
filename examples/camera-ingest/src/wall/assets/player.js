// SPDX-License-Identifier: MIT OR Apache-2.0

// The camera in focus: its units through WebCodecs, or pictures, each shown with its own results.

/** Maximum time in ms that a picture waits for its results. */
const WAIT = 500;
const MAX_WAITING = 12;
/** Units that wait for the decoder; beyond them the player skips to the next key unit. */
const MAX_DECODING = 60;

/** Why this browser cannot decode units; null if it can. */
export function whyNoUnits() {
  if (!window.isSecureContext) {
    return "this address is no secure context, and browsers offer WebCodecs in one only: open the page as localhost or through HTTPS";
  }
  return "VideoDecoder" in window ? null : "this browser has no WebCodecs";
}

/** Shows pictures in order, each once its results are there. */
export class Screen {
  #surface;
  #results;
  #waiting = [];
  #shown;
  #frame = 0;

  /** `shown` is called with the age of each picture that is shown. */
  constructor(surface, results, shown) {
    [this.#surface, this.#results, this.#shown] = [surface, results, shown];
    const loop = () => {
      this.#show();
      this.#frame = requestAnimationFrame(loop);
    };
    this.#frame = requestAnimationFrame(loop);
  }

  add(picture, key, age) {
    this.#waiting.push({ picture, key, age, time: performance.now() });
    while (this.#waiting.length > MAX_WAITING) this.#waiting.shift().picture.close();
  }

  close() {
    cancelAnimationFrame(this.#frame);
    for (const { picture } of this.#waiting.splice(0)) picture.close();
  }

  #show() {
    const now = performance.now();
    const isReady = ({ key, time }) => this.#results.areComplete(key) || now - time > WAIT;
    const ready = this.#waiting.findLastIndex(isReady);
    if (ready < 0) return;
    const shown = this.#waiting.splice(0, ready + 1);
    const { picture, key, age, time } = shown.pop();
    for (const earlier of shown) earlier.picture.close();
    this.#surface.show(picture, key);
    this.#shown(age === null ? null : age + now - time);
  }
}

/** Decodes units. */
export class Decoder {
  #screen;
  #failed;
  #decoder = null;
  #config = null;
  #needsKey = true;
  #count = 0;
  #under = new Map();

  /** `failed` is called with the reason if this browser does not decode the units. */
  constructor(screen, failed) {
    [this.#screen, this.#failed] = [screen, failed];
  }

  async format({ codec, media }) {
    const name = { "video/x-h265": "H.265", "video/x-h264": "H.264" }[media] ?? media;
    if (!codec) return this.#failed(`the camera sends ${name}, and this page decodes H.264 only`);
    const config = { codec, optimizeForLatency: true };
    const answer = await VideoDecoder.isConfigSupported(config).catch(() => ({ supported: false }));
    if (!answer.supported) return this.#failed(`this browser does not decode ${name} (${codec})`);
    this.#config = config;
    this.#open();
    return undefined;
  }

  unit({ isKey, key, age, content }) {
    if (this.#decoder === null) return;
    if (this.#decoder.decodeQueueSize > MAX_DECODING) this.#needsKey = true;
    if (this.#needsKey && !isKey) return;
    this.#needsKey = false;
    // Decoders hand timestamps through: this one is a number that finds the frame's key again.
    const timestamp = (this.#count += 1);
    this.#under.set(timestamp, { key, age, time: performance.now() });
    if (this.#under.size > 2 * MAX_DECODING) this.#under.delete(this.#under.keys().next().value);
    this.#decoder.decode(new EncodedVideoChunk({ type: isKey ? "key" : "delta", timestamp, data: content }));
  }

  close() {
    if (this.#decoder !== null && this.#decoder.state !== "closed") this.#decoder.close();
    this.#decoder = null;
  }

  #open() {
    this.close();
    this.#needsKey = true;
    const decoder = new VideoDecoder({
      output: (frame) => {
        const { key, age, time } = this.#under.get(frame.timestamp) ?? { key: 0n, age: null, time: 0 };
        this.#under.delete(frame.timestamp);
        if (decoder === this.#decoder) this.#screen.add(frame, key, age === null ? null : age + performance.now() - time);
        else frame.close();
      },
      // Damaged units end a decoder: a new one starts at the next key unit.
      error: () => decoder === this.#decoder && this.#open(),
    });
    decoder.configure(this.#config);
    this.#decoder = decoder;
  }
}
