// The dashboard as a workplace: it finds a client, shows its last minutes and changes its limits; it
// shows patches and moments, prints, and needs no pointer.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  asks,
  barriers,
  dialog,
  exhaust,
  LIMITS,
  on,
  picture,
  said,
  scene,
  SOON,
  tabTo,
} from './scene.mjs';
import { eventually, look } from './stage.mjs';

const COPIES = { permissions: ['clipboard-read', 'clipboard-write'] };

const client = (page) => page.locator('#client');
const title = (page, id) => page.locator('#client-title', { hasText: `Client ${id}` }).waitFor();
const copied = (page) => page.evaluate(() => navigator.clipboard.readText());

async function search(page, word) {
  const box = page.getByRole('searchbox', { name: 'Find a client' });
  await box.fill(word);
  await box.press('Enter');
}

async function denialOf(path) {
  const answer = await fetch(`${scene.stage.page}api/v1/denials`);
  const { denials } = await answer.json();
  return denials.find((one) => one.path === path);
}

/** Opens the page of a client that was denied. */
async function openClient(page, id) {
  await page.locator(`.of-client[aria-label^="Client ${id}"]`).first().click();
  await title(page, id);
  await client(page).locator('.of-limit', { hasText: 'strict: 3/h' }).waitFor();
}

test('the search finds a client by key, hash, address and request id', SOON, async () => {
  const id = await exhaust('kim', '/strict/search');
  const denial = await denialOf('/strict/search');
  await on({}, async (page) => {
    for (const word of ['kim', id, denial.id, 'header:x-client=kim', denial.request_id]) {
      await search(page, word);
      await title(page, id);
      await client(page).getByText('3/h: 3 used, 0 left').waitFor();
      assert.match(page.url(), new RegExp(`#client=${denial.id}`));
      await client(page).getByRole('button', { name: 'Close' }).click();
      await client(page).waitFor({ state: 'hidden' });
    }
    assert.equal(await asks('kim', '/any/thing'), 200);
    await search(page, '127.0.0.1');
    await client(page).locator('.of-limit', { hasText: 'wide: 1000000/h' }).waitFor();
  });
  const { page, close } = await look(scene.browser, scene.stage);
  await search(page, 'tag=nobody-has-this');
  await said(page, 'no client is known');
  await close();
});

test('a client without requests has the limits that its key fits', SOON, async () => {
  await on({}, async (page) => {
    await search(page, 'header:x-client=nobody-came-yet');
    await client(page).locator('.of-limit', { hasText: 'strict: 3/h' }).waitFor();
    await client(page).locator('.of-limit', { hasText: 'tried: 100/h, in shadow mode' }).waitFor();
    await client(page).getByText('This proxy has no request of it').first().waitFor({
      state: 'attached',
    });
  });
});

test('one click leads from a denial to the timeline of its client', SOON, async () => {
  const id = await exhaust('leo', '/strict/timeline');
  await on({}, async (page) => {
    await openClient(page, id);
    const part = client(page).locator('.of-limit', { hasText: 'strict: 3/h' });
    const words = part.locator('svg title', { hasText: '4 requests, 1 denied' });
    await words.waitFor({ state: 'attached' });
    assert.match(await words.textContent(), /At most 100\u202f% of the limit was used/);
    await part.getByText('As a table').click();
    await part.getByRole('cell', { name: '100\u202f%' }).first().waitFor();
    await client(page).locator('#client-denials', { hasText: '/strict/timeline' }).waitFor();
    // The link to the client opens it again.
    const url = page.url();
    await page.goto('about:blank');
    await page.goto(url);
    await title(page, id);
  });
});

test('from there it is reset, overridden and blocked, each with its command', SOON, async () => {
  const id = await exhaust('mia', '/strict/mia');
  const { id: hash } = await denialOf('/strict/mia');
  await on({ signedIn: true, ...COPIES }, async (page) => {
    await openClient(page, id);
    const command = (action) =>
      client(page).locator('.action', { hasText: action }).locator('code');
    const reset = await command('limits reset').first().textContent();
    assert.match(reset, new RegExp(`^tidegate limits reset strict tag=${hash} -c /.*proxy.toml$`));
    const copy = `Copy the command line: reset ${id}`;
    await client(page).getByRole('button', { name: copy }).first().click();
    assert.equal(await copied(page), reset);
    await client(page)
      .getByRole('button', { name: `Reset ${id} on strict` })
      .click();
    await dialog(page).getByRole('button', { name: 'Reset this client' }).click();
    await said(page, `${id} starts at zero on strict`);
    await client(page).getByText('3/h: 0 used, 3 left').waitFor();

    await client(page)
      .getByRole('button', { name: `Override ${id} on strict` })
      .click();
    await dialog(page).getByLabel('Rate').fill('50/h');
    await dialog(page).getByLabel('Why').fill("it's an office");
    const typed = await dialog(page).locator('.command code').textContent();
    const words = `override strict tag=${hash} 50/h --for 24h --note 'it'\\''s an office' -c `;
    assert.ok(typed.startsWith(`tidegate limits ${words}`), typed);
    await dialog(page).getByRole('button', { name: 'Set this rate' }).click();
    await client(page).locator('#client-terms', { hasText: 'Override: 50/h on strict' }).waitFor();

    await client(page)
      .getByRole('button', { name: `Block ${id} on` })
      .click();
    await dialog(page).getByLabel('Why').fill('ticket 4711');
    await dialog(page).getByRole('button', { name: 'Block this client' }).click();
    const block = client(page).locator('#client-terms li', { hasText: 'Blocked' });
    await block.filter({ hasText: 'ticket 4711' }).waitFor();
    await eventually(async () => (await asks('mia')) === 429, 'mia is blocked');
    await block.getByRole('button', { name: `Remove: block of ${id}` }).click();
    await dialog(page).getByRole('button', { name: 'Unblock' }).click();
    await block.waitFor({ state: 'detached' });
  });
});

test('a shadow limit and a candidate are promoted by a patch', SOON, async () => {
  // Shadow decisions are made beside the request, and only with a store that is connected.
  await eventually(async () => {
    assert.equal(await asks('ned', '/tried/one'), 200);
    const answer = await fetch(`${scene.stage.page}api/v1/limits/tried/promotions`);
    const { promotions } = await answer.json();
    return promotions[1].denied >= 2;
  }, 'the candidate has decided');
  await on({ signedIn: true, ...COPIES }, async (page) => {
    await page.getByRole('button', { name: 'Promote tried' }).click();
    const box = dialog(page);
    await box.getByRole('heading', { name: 'Enforce the limit' }).waitFor();
    await box.getByText(/It would have denied [1-9]\d* of \d+ requests/).waitFor();
    const [shadow, candidate] = await box.locator('.patch').allTextContents();
    assert.match(shadow, /^--- a\/proxy.toml\n\+\+\+ b\/proxy.toml\n@@ -\d+,\d+ \+\d+,\d+ @@\n/);
    assert.match(shadow, /\n- {2}shadow = true\n/);
    const lines = ['-  rate = "100/h"', '-  candidate = "1/h"', '+  rate = "1/h"'];
    assert.ok(candidate.includes(`\n${lines.join('\n')}\n`), candidate);
    await box.getByRole('button', { name: 'Copy the patch' }).first().click();
    assert.equal(await copied(page), shadow);
    assert.deepEqual(await barriers(page), []);
    // The file is changed by hand; the button reloads it.
    scene.stage.configure(LIMITS.replace('shadow = true\n', ''));
    await box.getByRole('button', { name: 'Reload' }).click();
    await dialog(page).getByRole('button', { name: 'Reload' }).click();
    await said(page, 'Reloaded');
    const row = page.locator('#limits tr', { hasText: 'candidate 1/h' });
    await row.locator('.tag', { hasText: 'shadow' }).waitFor({ state: 'detached' });
  });
});

test('a link leads to a moment, and the page opens at it', SOON, async () => {
  await exhaust('ole', '/strict/moment');
  const { at } = await denialOf('/strict/moment');
  const moment = Math.floor(at);
  await exhaust('pam', '/strict/after-it');
  await on(COPIES, async (page) => {
    await page.locator('.denial', { hasText: '/strict/after-it' }).first().waitFor();
    await page.locator('.denial', { hasText: '/strict/moment' }).first().click();
    await dialog(page).getByRole('link', { name: 'This moment' }).click();
    const bar = page.getByRole('region', { name: 'A moment of the past' });
    await bar.getByText('Traffic and denials are of that moment').waitFor();
    await bar.getByRole('button', { name: 'Copy the link to this moment' }).click();
    const address = await copied(page);
    assert.equal(address, `${scene.stage.page}#at=${moment}`);
    await page.goto('about:blank');
    await page.goto(address);
    await bar.getByText('Traffic and denials are of that moment').waitFor();
    await page.locator('#denials-note', { hasText: 'up to' }).waitFor();
    await page.locator('.denial', { hasText: '/strict/moment' }).first().waitFor();
    const line = page.locator('#traffic .moment');
    await eventually(async () => (await line.getAttribute('d')) !== '', 'the chart marks it');
    await bar.getByRole('button', { name: 'Back to now' }).click();
    await bar.waitFor({ state: 'hidden' });
    assert.doesNotMatch(page.url(), /at=/);
    await page.goto(`${scene.stage.page}#at=1000000000`);
    await bar.getByText('The proxy keeps 15 minutes').waitFor();
  });
});

test('a click in the chart and the keyboard in its table choose a moment', SOON, async () => {
  await on({}, async (page) => {
    const bar = page.getByRole('region', { name: 'A moment of the past' });
    await page.locator('#traffic svg').click({ position: { x: 400, y: 100 } });
    await bar.getByText('The page shows').waitFor();
    await bar.getByRole('button', { name: 'Back to now' }).click();
    await page.getByRole('button', { name: 'As a table' }).focus();
    await page.keyboard.press('Enter');
    await tabTo(page, '#minutes button');
    await page.keyboard.press('Enter');
    await bar.getByText('The page shows').waitFor();
    // The table is drawn each second, and does not take the focus away.
    const isThere = () => page.evaluate(() => document.activeElement.matches('#minutes button'));
    await page.waitForTimeout(1500);
    assert.ok(await isThere());
  });
});

test('on paper there is all data, in dark ink, and nothing to click', SOON, async () => {
  const id = await exhaust('quin', '/strict/print');
  await on({ colorScheme: 'dark' }, async (page) => {
    await openClient(page, id);
    await page.emulateMedia({ media: 'print' });
    for (const hidden of ['#search', '#reload', '#client .copy', '#limits .act', '.of-client']) {
      const all = await page
        .locator(hidden)
        .evaluateAll((list) => list.map((one) => one.checkVisibility()));
      assert.ok(!all.includes(true), `${hidden} is printed`);
    }
    for (const shown of ['#client-title', '.timeline', '.action code', '#limits tr', '.denial']) {
      assert.ok(await page.locator(shown).first().isVisible(), `${shown} is not printed`);
    }
    const [ink, ground] = await page.evaluate(() => {
      const style = getComputedStyle(document.body);
      return [style.color, style.backgroundColor];
    });
    assert.deepEqual([ink, ground], ['rgb(0, 0, 0)', 'rgb(255, 255, 255)']);
    const feed = page.locator('#denied');
    assert.ok(
      await feed.evaluate((box) => box.scrollHeight <= box.clientHeight + 1),
      'a list is cut',
    );
    await picture(page, 'print');
  });
});

test('the keyboard finds a client, changes it and comes back', SOON, async () => {
  const id = await exhaust('rosa', '/strict/keyboard');
  await on({ signedIn: true }, async (page) => {
    await tabTo(page, '#search-word');
    await page.keyboard.type('rosa');
    await page.keyboard.press('Enter');
    await title(page, id);
    await eventually(
      () => page.evaluate(() => document.activeElement.id === 'client-title'),
      'the focus is at the client',
    );
    await client(page).locator('.of-limit', { hasText: 'strict: 3/h' }).waitFor();
    await tabTo(page, '.of-limit summary');
    await page.keyboard.press('Enter');
    await client(page).locator('.of-limit details[open]').waitFor();
    await tabTo(page, '#client [aria-label^="Block"]');
    await page.keyboard.press('Enter');
    await dialog(page).getByRole('button', { name: 'Block this client' }).waitFor();
    await tabTo(page, '[name=reason]');
    await page.keyboard.type('by keyboard');
    await page.keyboard.press('Enter');
    await client(page).locator('#client-terms', { hasText: 'by keyboard' }).waitFor();
    const label = await page.evaluate(() => document.activeElement.getAttribute('aria-label'));
    assert.match(label, /^Block/, 'the focus is back where it was');
    await tabTo(page, '#client [aria-label^="Remove: block"]');
    await page.keyboard.press('Enter');
    await dialog(page).getByRole('button', { name: 'Unblock' }).waitFor();
    await page.keyboard.press('Enter');
    await said(page, `${id} is not blocked`);
    await tabTo(page, '#limits [aria-label="Promote tried"]');
    await page.keyboard.press('Enter');
    await dialog(page).locator('.patch').first().waitFor();
    await page.keyboard.press('Escape');
    await tabTo(page, '.of-client');
    await page.keyboard.press('Enter');
    await eventually(
      () => page.evaluate(() => document.activeElement.id === 'client-title'),
      'a denial leads to its client',
    );
  });
});

for (const scheme of ['dark', 'light']) {
  test(`${scheme}: no serious barrier at a client and a moment`, SOON, async () => {
    const id = await exhaust(`work in ${scheme}`, `/strict/work-${scheme}`);
    await on({ colorScheme: scheme, reducedMotion: 'reduce', signedIn: true }, async (page) => {
      await openClient(page, id);
      await picture(page, `${scheme}-client`);
      assert.deepEqual(await barriers(page), []);
      await client(page)
        .getByRole('button', { name: `Override ${id} on strict` })
        .click();
      await dialog(page).locator('.command').waitFor();
      assert.deepEqual(await barriers(page), []);
      await page.keyboard.press('Escape');
      const { at } = await denialOf(`/strict/work-${scheme}`);
      await page.goto(`${scene.stage.page}#client=${id}&at=${Math.floor(at)}`);
      await page.getByRole('region', { name: 'A moment of the past' }).waitFor();
      assert.deepEqual(await barriers(page), []);
      await page.setViewportSize({ width: 360, height: 780 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
    });
  });
}
