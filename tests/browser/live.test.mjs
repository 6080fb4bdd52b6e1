// The dashboard shows what happens, and says when something is wrong; everybody can read it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { barriers, exhaust, on, picture, scene, SOON } from './scene.mjs';
import { eventually, load, send } from './stage.mjs';

const number = (text) => Number(text.replace(/[^0-9.]/g, '')) * (text.includes('k') ? 1000 : 1);

test('numbers live under load, and the chart and table follow', SOON, async () => {
  await on({}, async (page) => {
    const stop = load(scene.stage.url, '/some/thing');
    const rate = page.locator('#requests');
    await eventually(async () => number(await rate.textContent()) > 10, 'requests are seen');
    const limit = page.locator('#limits tr', { hasText: 'wide' });
    const allowed = limit.locator('td').nth(1);
    await eventually(async () => number(await allowed.textContent()) > 10, 'a limit is used');
    await page.locator('#requests-spark title', { hasText: 'Requests per second' }).waitFor({
      state: 'attached',
    });
    const bars = page.locator('#traffic .allowed');
    await eventually(async () => (await bars.getAttribute('d'))?.length > 0, 'the chart has bars');
    await stop();
    await eventually(async () => (await rate.textContent()) === '0', 'it is quiet again');
    await page.getByRole('button', { name: 'As a table' }).click();
    await page.getByRole('region', { name: 'Traffic by minute' }).getByRole('table').waitFor();
  });
});

test('routes, statuses and latency have rows', SOON, async () => {
  await on({}, async (page) => {
    await exhaust('rows');
    const stop = load(scene.stage.url, '/some/thing');
    const row = page.locator('#routes tr', { hasText: 'rest' });
    const cell = (column) => row.locator(`[data-column="${column}"]`);
    const seen = async () => number(await cell('2xx').textContent()) > 0;
    await eventually(seen, 'the route has answers');
    assert.match(await cell('p95').textContent(), /\d.*s$/);
    const strict = page.locator('#routes tr', { hasText: 'strict' }).locator('[data-column="429"]');
    await eventually(async () => number(await strict.textContent()) > 0, 'its denials are told');
    await page.locator('#routes tr', { hasText: 'all routes' }).waitFor();
    await page.locator('#statuses .use-row', { hasText: '429' }).waitFor();
    await stop();
  });
});

test('short times are told in their unit, whatever their size', SOON, async () => {
  await on({}, async (page) => {
    const told = await page.evaluate(async () => {
      const { brief } = await import('./dom.js');
      return [0.0004, 0.0042, 0.48, 0.9994, 0.9996, 12].map((seconds) => brief(seconds));
    });
    const plain = told.map((text) => text.replace('\u202f', ' '));
    assert.deepEqual(plain, ['400 µs', '4.2 ms', '480 ms', '999 ms', '1.0 s', '12.0 s']);
  });
});

test('a server whose requests fail is not up', SOON, async () => {
  await on({}, async (page) => {
    const server = page.locator('#upstreams tbody tr').first();
    await server.getByText('up', { exact: true }).waitFor();
    assert.match(await server.locator('[data-column="Latency"]').textContent(), /\d.*s$/);
    scene.stage.upstream.fails = true;
    for (let asked = 0; asked < 3; asked += 1) await send(scene.stage.url, '/fails');
    await server.getByText('failing').waitFor();
    scene.stage.upstream.fails = false;
    await send(scene.stage.url, '/fine');
    await server.getByText('up', { exact: true }).waitFor();
  });
});

test('a stopped Redis is said in amber, until it is back', SOON, async () => {
  await on({}, async (page) => {
    const bar = page.getByRole('status').locator('.degraded', { hasText: 'Redis is away' });
    assert.equal(await bar.count(), 0);
    await scene.stage.redis.stop();
    const stop = load(scene.stage.url, '/some/thing');
    await bar.waitFor();
    await page.locator('#health', { hasText: 'Redis away' }).waitFor();
    await page.getByRole('img', { name: /Store away/ }).waitFor();
    await scene.stage.redis.start();
    await bar.waitFor({ state: 'detached' });
    await stop();
  });
});

test('the theme can be chosen and is kept', SOON, async () => {
  await on({ colorScheme: 'light' }, async (page) => {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    const theme = page.getByRole('button', { name: 'theme' });
    await theme.click();
    await theme.click();
    assert.notEqual(await ground(), light);
    await page.reload();
    await page.locator('#connection[data-state=live]').waitFor();
    assert.notEqual(await ground(), light);
  });
});

for (const scheme of ['dark', 'light']) {
  test(`${scheme}: no serious barrier, and 360 pixels are enough`, SOON, async () => {
    await exhaust(`seen in ${scheme}`, `/strict/${scheme}`);
    await on({ colorScheme: scheme, reducedMotion: 'reduce' }, async (page) => {
      await page.locator('.denial').first().waitFor();
      await page.locator('#clients tbody tr').first().waitFor();
      await picture(page, scheme);
      assert.deepEqual(await barriers(page), []);
      await page.locator('.denial').first().click();
      await page.getByRole('dialog').getByText('The same key now').waitFor();
      await picture(page, `${scheme}-why`, false);
      assert.deepEqual(await barriers(page), []);
      await page.keyboard.press('Escape');
      await page.setViewportSize({ width: 360, height: 780 });
      const wide = () => page.evaluate(() => document.documentElement.scrollWidth);
      assert.equal(await wide(), 360);
      await picture(page, `${scheme}-360`);
      await page.locator('.denial').first().click();
      await page.getByRole('dialog').locator('.verdict').waitFor();
      assert.equal(await wide(), 360);
      assert.deepEqual(await barriers(page), []);
    });
  });
}
