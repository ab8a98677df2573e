// SPDX-License-Identifier: MIT OR Apache-2.0

// The page in headless Chromium.

import assert from "node:assert/strict";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { Site, browser, open, until } from "./site.mjs";

let site;
let chromium;

before(async () => {
  chromium = await browser();
  site = await Site.start({ count: 4, h265: 3 });
});
after(async () => {
  await chromium?.close();
  await site?.stop();
});

/** Opens a page for one test, and checks at its end that the console is empty. */
async function withPage(options, use, { at = site, hash = "" } = {}) {
  const page = await open(chromium, at.address + hash, options);
  try {
    await use(page);
    assert.deepEqual(page.problems, []);
  } finally {
    await page.context().close();
  }
}

const tilesOf = (page) => page.$$eval(".tile canvas", (all) => all.map(({ dataset }) => Number(dataset.count ?? 0)));
const keyOf = (page) => page.$eval("#screen", ({ dataset }) => dataset.key);

/** Waits until the focus shows frames, one after the other. */
async function untilPlaying(page) {
  const seen = new Set();
  await until("several frames in the focus", async () => {
    const key = await keyOf(page);
    return key && seen.add(key).size > 5;
  });
}

/** Compares square and box in the pixels of a canvas that has one box; null where there is none. */
const measure = (page, selector) => page.$eval(selector, (canvas) => {
  if (canvas.dataset.boxes !== "1") return null;
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  const boundsOf = (matches) => {
    const bounds = { left: width, right: -1, top: height, bottom: -1 };
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const at = 4 * (y * width + x);
        if (!matches(data[at], data[at + 1], data[at + 2])) continue;
        bounds.left = Math.min(bounds.left, x);
        bounds.right = Math.max(bounds.right, x);
        bounds.top = Math.min(bounds.top, y);
        bounds.bottom = Math.max(bounds.bottom, y);
      }
    }
    return bounds;
  };
  const square = boundsOf((red, green, blue) => red > 200 && green > 200 && blue > 200);
  // The label is above or below: left and right are the box's and the label's common left edge.
  const box = boundsOf((red, green, blue) => red > 200 && Math.abs(green - 176) < 25 && blue < 90);
  return { square, box, pixel: width / 640, key: canvas.dataset.key };
});

function assertFits({ square, box, pixel, key }) {
  const why = `frame ${key}: ${JSON.stringify({ square, box, pixel })}`;
  // A box of the frame before would be 16 pixels of the picture away; lines and edges are blurred.
  const near = 3 + 3 * pixel;
  assert.ok(near < 16 * pixel, why);
  assert.ok(Math.abs(box.left - square.left) <= near, why);
  assert.ok(Math.abs(box.bottom - square.bottom) <= near || box.top < square.top, why);
  assert.ok(box.right >= square.right - near, why);
}

test("browser decodes H.264", () => withPage({}, async (page) => {
  const answer = await page.evaluate(() => VideoDecoder.isConfigSupported({ codec: "avc1.42c01f" }));
  assert.ok(answer.supported, "Chromium without H.264 cannot test the page: install Debian's package chromium");
}));

test("tiles of all cameras move", () => withPage({}, async (page) => {
  await until("five tiles of each camera", async () => (await tilesOf(page)).every((count) => count >= 5));
  assert.equal((await tilesOf(page)).length, 4);
  await until("all cameras live", () => page.$eval("#summary", (list) => list.textContent.includes("4 of 4")));
}));

test("only visible tiles are made, and none without a page", async () => {
  const made = async () => Number((await get("/metrics")).body.match(/ingest_tiles_total\{camera="cam0"\} (\d+)/)[1]);
  const still = () => until("no more tiles", async () => {
    const count = await made();
    await new Promise((done) => setTimeout(done, 600));
    return count === (await made());
  });
  await still();
  await withPage({}, async (page) => {
    const count = await made();
    await until("tiles", async () => (await made()) > count + 2);
    await page.evaluate(() => (location.hash = "cam1"));
    await still();
  });
  assert.match((await get("/metrics")).body, /^ingest_pages \d+$/m);
});

test("several pages see the same tiles", () => withPage({}, (one) => withPage({}, async (other) => {
  for (const page of [one, other]) await until("tiles", async () => (await tilesOf(page)).every((count) => count >= 3));
})));

test("focus plays units, and boxes fit the frame they name", () => withPage({}, async (page) => {
  await untilPlaying(page);
  assert.equal(await page.$eval("#stage", ({ dataset }) => dataset.mode), "units");
  assert.match(await page.textContent("#mode"), /H\.264 640×360 \(avc1\.[0-9a-f]{6}\)/);
  const seen = new Set();
  await until("boxes on ten frames", async () => {
    const measured = await measure(page, "#screen");
    if (measured === null) return false;
    assertFits(measured);
    // Negative control: the box of the next frame does not fit.
    const { box, pixel } = measured;
    const moved = { ...box, left: box.left + 16 * pixel, right: box.right + 16 * pixel };
    assert.throws(() => assertFits({ ...measured, box: moved }));
    return seen.add(measured.key).size >= 10;
  });
}, { hash: "#cam0" }));

test("boxes on tiles fit their frame", () => withPage({}, async (page) => {
  const seen = new Set();
  await until("boxes on five tiles", async () => {
    const measured = await measure(page, ".tile canvas");
    if (measured === null) return false;
    assertFits(measured);
    return seen.add(measured.key).size >= 5;
  });
}));

test("H.265 is shown as JPEG, and the page says why", () => withPage({}, async (page) => {
  await untilPlaying(page);
  assert.equal(await page.$eval("#stage", ({ dataset }) => dataset.mode), "pictures");
  assert.match(await page.textContent("#mode"), /^JPEG.*H\.265/);
  await until("a box", async () => {
    const measured = await measure(page, "#screen");
    if (measured) assertFits(measured);
    return measured;
  });
}, { hash: "#cam3" }));

test("browser without WebCodecs gets JPEG", async () => {
  const page = await open(chromium, "about:blank");
  await page.addInitScript(() => delete window.VideoDecoder);
  await page.goto(`${site.address}#cam0`);
  await untilPlaying(page);
  assert.match(await page.textContent("#mode"), /^JPEG.*no WebCodecs/);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("figures of streams and readers change", () => withPage({}, async (page) => {
  const rows = () => page.$$eval("#streams tbody tr", (all) => all.map((row) => row.textContent));
  await until("a reader of units", async () => (await rows()).some((row) => row.startsWith("camera-ingest (wall units)")));
  const before = await page.textContent("#now");
  await until("other figures", async () => (await page.textContent("#now")) !== before);
  await until("plots", () => page.$$eval("#plots path.plot-line", (all) => all.some((path) => path.getAttribute("d").length > 20)));
  assert.match(await page.getAttribute("#plots svg", "aria-label"), /^Frames a second: /);
}, { hash: "#cam1" }));

test("kill button kills, and its process comes back", () => withPage({}, async (page) => {
  await page.click("#processes [data-process='decode-cam1'] .kill");
  await until("a command", () => site.supervisor.commands.some(({ process }) => process === "decode-cam1"));
  await until("a restart", () => page.$eval("#processes [data-process='decode-cam1'] [data-label='Restarts']", (cell) => cell.textContent === "1"));
  await until("an event", () => page.$eval("#events", (list) => list.textContent.includes("killed by SIGKILL")));
  assert.equal(await page.textContent("#status"), "decode-cam1 was killed");
}));

test("page finds the wall after its restart", async () => {
  const page = await open(chromium, site.address);
  await until("tiles", async () => (await tilesOf(page)).every((count) => count >= 2));
  await site.restartWall();
  const [count] = await tilesOf(page);
  await until("tiles after the restart", async () => (await tilesOf(page))[0] > count + 2);
  await until("no notice", () => page.isHidden("#notice"));
  // The token of the new process.
  await page.click("#processes [data-process='motion-1'] .kill");
  await until("a command", () => site.supervisor.commands.some(({ process }) => process === "motion-1"));
  await page.context().close();
});

test("keyboard reaches cameras and returns", () => withPage({}, async (page) => {
  await until("tiles", async () => (await tilesOf(page)).length === 4);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.focus(".tile");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await until("cam1", () => page.$eval("#focus-title", (title) => title === document.activeElement && title.textContent === "cam1"));
  await page.keyboard.press("ArrowRight");
  await until("cam2", async () => (await page.textContent("#focus-title")) === "cam2");
  await page.keyboard.press("Escape");
  await until("the wall", () => page.evaluate(() => document.activeElement.getAttribute("aria-label")?.startsWith("cam2")));
}));

test("page has landmarks, names and live regions", () => withPage({}, async (page) => {
  await until("processes", () => page.isVisible("#processes"));
  const missing = await page.evaluate(() => {
    const name = (one) => one.getAttribute("aria-label") || one.textContent.trim() || one.getAttribute("alt");
    const unnamed = [...document.querySelectorAll("button, a, [role=img]")].filter((one) => !one.closest("[hidden]") && !name(one));
    return unnamed.map((one) => one.outerHTML);
  });
  assert.deepEqual(missing, []);
  const count = (selector) => page.$$eval(selector, ({ length }) => length);
  for (const selector of ["header", "main", "footer", "h1", "[role=alert]", "[role=log]"]) assert.equal(await count(selector), 1, selector);
  assert.ok((await count("[role=status]")) >= 1 && (await count("section[aria-labelledby]")) >= 2);
  assert.equal(await page.getAttribute("html", "lang"), "en");
}));

test("phone width shows everything without sideways scrolling", () => withPage({ viewport: { width: 375, height: 740 }, isMobile: true },
  async (page) => {
    await until("tiles", async () => (await tilesOf(page))[0] >= 2);
    for (const hash of ["", "cam0"]) {
      await page.evaluate((name) => (location.hash = name), hash);
      await until("figures", () => page.isVisible(hash ? "#streams table" : "#processes"));
      const [wide, width] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide <= width, `${wide} pixels in a width of ${width}`);
    }
  }));

test("dark and light follow the system and the button", async () => {
  const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await withPage({ colorScheme: "dark" }, async (page) => {
    assert.equal(await ground(page), "rgb(12, 17, 23)");
    await page.click("#theme");
    await page.click("#theme");
    assert.equal(await page.textContent("#theme"), "Theme: light");
    assert.equal(await ground(page), "rgb(244, 246, 248)");
  });
  await withPage({ colorScheme: "light" }, async (page) => assert.equal(await ground(page), "rgb(244, 246, 248)"));
});

/** A request with any headers, as a browser of another site would never be allowed to send. */
function get(path, { headers = {}, method = "GET", body = "" } = {}, at = site) {
  return new Promise((done, failed) => {
    const asked = request(new URL(path, at.address), { method, headers }, (answer) => {
      let text = "";
      answer.on("data", (part) => (text += part)).on("end", () => done({ status: answer.statusCode, headers: answer.headers, body: text }));
    });
    asked.on("upgrade", (answer, socket) => {
      socket.destroy();
      done({ status: 101, headers: answer.headers, body: "" });
    });
    asked.on("error", failed);
    asked.end(body);
  });
}

const UPGRADE = { connection: "upgrade", upgrade: "websocket", "sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==" };

test("foreign Host is refused for every path", async () => {
  for (const path of ["/", "/app.js", "/metrics", "/events", "/socket", "/kill"]) {
    const { status, body } = await get(path, { headers: { host: "evil.example" } });
    assert.equal(status, 403, path);
    assert.match(body, /foreign Host 'evil\.example'/);
  }
});

test("WebSocket admits its own page only", async () => {
  const { origin, host } = new URL(site.address);
  assert.equal((await get("/socket", { headers: { ...UPGRADE, origin } })).status, 101);
  for (const headers of [{}, { origin: "http://evil.example" }, { origin: "null" }, { origin, host: "evil.example" },
    { origin: "http://evil.example", host: "evil.example" }]) {
    assert.equal((await get("/socket", { headers: { host, ...UPGRADE, ...headers } })).status, 403, JSON.stringify(headers));
  }
});

test("kill wants POST, Origin and token, and a known process", async () => {
  const { origin } = new URL(site.address);
  const token = await tokenOf(site);
  const body = JSON.stringify({ process: "wall-1" });
  const kill = async (headers, text = body, method = "POST") => (await get("/kill", { method, headers, body: text })).status;
  const count = site.supervisor.commands.length;
  // Without a body: Node.js sends that of a GET unframed, as if it were the next request of the connection.
  assert.equal(await kill({ origin, "x-page-token": token }, "", "GET"), 405);
  assert.equal(await kill({ "x-page-token": token }), 403);
  assert.equal(await kill({ origin }), 403);
  assert.equal(await kill({ origin, "x-page-token": "0".repeat(32) }), 403);
  assert.equal(await kill({ origin: "http://evil.example", "x-page-token": token }), 403);
  assert.equal(await kill({ origin, "x-page-token": token }, JSON.stringify({ process: "init" })), 404);
  assert.equal(await kill({ origin, "x-page-token": token }, "{"), 400);
  assert.equal(site.supervisor.commands.length, count);
  assert.equal(await kill({ origin, "x-page-token": token }), 204);
  await until("a command", () => site.supervisor.commands.length === count + 1);
});

/** The token, as the page gets it. */
async function tokenOf(at) {
  const page = await open(chromium, at.address);
  const token = await page.evaluate(() => new Promise((done) => {
    const socket = new WebSocket(`ws://${location.host}/socket`);
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "site") done(message.token);
    };
  }));
  await page.context().close();
  return token;
}

test("policy allows nothing from elsewhere", async () => {
  for (const path of ["/", "/style.css", "/metrics", "/missing"]) {
    const { headers } = await get(path);
    assert.match(headers["content-security-policy"], /^default-src 'none'/, path);
    assert.equal(headers["x-content-type-options"], "nosniff");
  }
});

test("events are JSON lines, and new ones follow", async () => {
  const lines = [];
  const asked = request(new URL("/events", site.address), (answer) => answer.on("data", (part) =>
    lines.push(...`${part}`.trim().split("\n").map((line) => JSON.parse(line)))));
  asked.on("error", () => {}).end();
  await until("known events", () => lines.length >= 10);
  site.supervisor.change((state) => state.events.push({ time: 1, process: "x", camera: "cam0", text: "new" }));
  await until("the new event", () => lines.some(({ text }) => text === "new"));
  asked.destroy();
});

test("slow page gets fewer tiles and the newest", () => withPage({}, async (page) => {
  // A page that never acknowledges gets one tile of the camera; each acknowledgement brings one.
  const counts = await page.evaluate(() => new Promise((done) => {
    const socket = new WebSocket(`ws://${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    const counts = [];
    let tiles = 0;
    socket.onopen = () => socket.send(JSON.stringify({ type: "watch", cameras: [0] }));
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") tiles += 1;
      // Figures come once a second, whatever becomes of the tiles.
      else if (JSON.parse(data).type === "figures" && tiles > 0) {
        counts.push(tiles);
        if (counts.length === 4) done(counts);
        if (counts.length === 2) socket.send(JSON.stringify({ type: "drawn", camera: 0 }));
      }
    };
  }));
  assert.deepEqual(counts, [1, 1, 2, 2]);
}));

test("outside demo mode there is no kill button and no such path", async () => {
  const other = await Site.start({ count: 1, demo: false });
  try {
    await withPage({}, async (page) => {
      await until("processes", () => page.isVisible("#processes"));
      assert.equal(await page.isVisible(".kill"), false);
    }, { at: other });
    assert.equal(await tokenOf(other), null);
    const { origin } = new URL(other.address);
    const answer = await get("/kill", { method: "POST", headers: { origin }, body: "{\"process\":\"wall-1\"}" }, other);
    assert.equal(answer.status, 404);
    assert.deepEqual(other.supervisor.commands, []);
  } finally {
    await other.stop();
  }
});

test("wall alone shows streams, and says that it is alone", async () => {
  const alone = await Site.start({ count: 1, alone: true });
  try {
    await withPage({}, async (page) => {
      await until("tiles", async () => (await tilesOf(page))[0] >= 2);
      assert.match(await page.textContent("#processes-text"), /alone, without a supervisor/);
      assert.equal(await page.isVisible("#processes"), false);
    }, { at: alone });
    assert.equal((await get("/events", {}, alone)).status, 503);
  } finally {
    await alone.stop();
  }
});
