// SPDX-License-Identifier: MIT OR Apache-2.0

// Makes the pictures of the documents: docs/ingest-*.png, of the default configuration.

import { readFile, stat } from "node:fs/promises";
import { resolve } from "node:path";
import { Demo } from "./demo.mjs";
import { browser, open, until } from "./site.mjs";

const [RTSP, PORT] = [8654, 8192];
const ADDRESS = `http://127.0.0.1:${PORT}/`;
const root = resolve("../..");

const demo = await Demo.create();
const chromium = await browser();
try {
  demo.start("rtsp-cameras", ["--port", `${RTSP}`, "--audio", "--clip", `${root}/.demo/bigbuckbunny.mp4`,
    "cam0/main=1280x720@25", "cam0/sub=640x360@10", "cam1/main=1280x720@25"]);
  const configuration = await readFile(`${root}/examples/camera-ingest/demo.toml`, "utf8");
  await demo.site(configuration.replaceAll("8554", `${RTSP}`).replace(/^folder = .*$/m, `folder = "${demo.folder}/recordings"`)
    .replaceAll("../../.demo", `${root}/.demo`) + `\n[wall]\nlisten = "127.0.0.1:${PORT}"\n`);
  await until("a page", () => fetch(ADDRESS).then(({ ok }) => ok, () => false));
  await wall();
  await focus();
} catch (error) {
  console.error(demo.text());
  throw error;
} finally {
  await chromium.close();
  await demo.stop();
}

async function wall() {
  const page = await open(chromium, ADDRESS, { colorScheme: "dark", viewport: { width: 1160, height: 680 } });
  await allLive(page);
  // The plots show some of the last minutes, and one event of each kind.
  await page.click("[data-process='decode-cam1'] .kill");
  await page.waitForTimeout(Number(process.env.PLOT_SECONDS ?? 90) * 1000);
  await allLive(page);
  await page.mouse.move(0, 0);
  await page.evaluate(() => scrollTo(0, 0));
  await save(page, "ingest-wall.png");
}

async function focus() {
  const page = await open(chromium, `${ADDRESS}#cam1`, { colorScheme: "dark", viewport: { width: 1110, height: 660 } });
  await until("some boxes", () => page.$eval("#screen", ({ dataset }) => dataset.boxes >= 2 && dataset.boxes <= 8));
  await save(page, "ingest-focus.png");
}

function allLive(page) {
  const isLive = () => page.$eval("#summary", (list) => list.textContent.includes("4 of 4"));
  return until("all cameras live", isLive, 180_000);
}

async function save(page, name) {
  const path = `${root}/docs/${name}`;
  await page.screenshot({ path });
  console.log(`${path}: ${Math.round((await stat(path)).size / 1024)} KiB`);
  await page.context().close();
}
