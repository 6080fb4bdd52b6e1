// The proxy that the tests of the dashboard look at, and what they do to it.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before } from 'node:test';

import { AXE, end, eventually, look, send, start, startBrowser } from './stage.mjs';

export const LIMITS = `
  [ledger]
  [limit.strict]
  rate = "3/h"
  key = "header:x-client"
  [limit.wide]
  rate = "1000000/h"
  key = "ip"
  [[route]]
  name = "strict"
  path = "/strict/*"
  limits = ["strict"]
  [limit.tried]
  rate = "100/h"
  candidate = "1/h"
  shadow = true
  key = "header:x-client"
  [[route]]
  name = "tried"
  path = "/tried/*"
  limits = ["tried"]
  [limit.tokens]
  rate = "10000/h"
  key = "header:x-client"
  counts = "tokens"
  [limit.spend]
  rate = "5000000/d"
  key = "header:x-client"
  counts = "money"
  [prices]
  "*" = { input = 100, output = 200 }
  [usage.chat]
  format = "openai"
  [[route]]
  name = "model"
  path = "/model/*"
  limits = ["tokens", "spend"]
  usage = "chat"
  [[descriptor]]
  name = "by user"
  domain = "shop"
  entries = ["user"]
  limits = ["1/h"]
  [[route]]
  name = "rest"
  path = "/*"
  limits = ["wide"]
`;
const ALLOWED = 3;

/** Every test's deadline. */
export const SOON = { timeout: 60_000 };

/** One proxy and one browser for all tests of a file. */
export const scene = {};

before(async () => {
  scene.stage = await start(LIMITS);
  scene.browser = await startBrowser();
}, SOON);
after(end);

/** A client asks once. */
export const asks = (client, path = `/strict/${client}`) =>
  send(scene.stage.url, path, { 'x-client': client });

/** A client asks until it is denied; gives what operators call it. */
export async function exhaust(client, path = `/strict/${client}`) {
  for (let asked = 0; asked < ALLOWED; asked += 1) assert.equal(await asks(client, path), 200);
  assert.equal(await asks(client, path), 429);
  return eventually(async () => {
    const answer = await fetch(`${scene.stage.page}api/v1/denials`);
    const { denials } = await answer.json();
    // The page shows as much of it as `tidegate limits` does.
    return denials.find((one) => one.path === path)?.id.slice(0, 8);
  }, 'the denial is told');
}

/** Runs `work` on a page of its own, and fails if the browser complained of anything. */
export async function on(options, work) {
  const { page, complaints, close } = await look(scene.browser, scene.stage, options);
  await work(page);
  assert.deepEqual(complaints, []);
  await close();
}

export const dialog = (page) => page.getByRole('dialog');

/** Waits for a message about a result. */
export const said = (page, text) => page.locator('#message', { hasText: text }).waitFor();

/** Presses Tab until the focus is where `selector` says. */
export async function tabTo(page, selector) {
  for (let pressed = 1; pressed <= 200; pressed += 1) {
    await page.keyboard.press('Tab');
    const isThere = (what) => document.activeElement?.matches(what);
    if (await page.evaluate(isThere, selector)) return pressed;
  }
  assert.fail(`the keyboard does not reach ${selector}`);
}

/** What axe finds that keeps somebody from using the page. */
export async function barriers(page) {
  // The policy keeps scripts out of the page; the debugger's way in is not bound by it.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document));
  const grave = found.violations.filter((one) => ['serious', 'critical'].includes(one.impact));
  return grave.map((one) => `${one.id}: ${one.nodes[0].target}: ${one.nodes[0].failureSummary}`);
}

export async function picture(page, name, fullPage = true) {
  const folder = process.env.DASHBOARD_SHOTS;
  if (folder) await page.screenshot({ path: join(folder, `${name}.png`), fullPage });
}
