// The dashboard acts, explains, and keeps what clients send as text; the keyboard is enough for it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { asks, dialog, exhaust, LIMITS, on, said, scene, SOON, tabTo } from './scene.mjs';
import { eventually, load, look } from './stage.mjs';

/** What a client may send in a header and a path, and would be glad to see as markup. */
const HOSTILE = '<img src=x onerror="window.hostile=1">';
const HOSTILE_PATH = '/strict/%3Cimg%20src=x%20onerror=window.hostile=1%3E';

/** A client asks more often than all others: the page lists the busiest clients alone. */
async function becomeBusiest(client, path) {
  for (let asked = 0; asked < 20; asked += 1) assert.equal(await asks(client, path), 429);
}

/** Chooses a limit, and waits for the row of one of its clients. */
async function clientOf(page, limit, client) {
  await page.getByRole('button', { name: limit, exact: true }).click();
  const row = page.locator('#clients tr', { hasText: client });
  await row.waitFor();
  return row;
}

async function isBlocked(client) {
  const answer = await fetch(`${scene.stage.url}/strict/b`, { headers: { 'x-client': client } });
  const problem = await answer.json();
  return problem.title === 'Blocked';
}

test('a button resets a client, which passes again', SOON, async () => {
  const id = await exhaust('ann');
  await on({ signedIn: true }, async (page) => {
    assert.doesNotMatch(page.url(), /token/);
    await clientOf(page, 'strict', id);
    await page.getByRole('button', { name: `Reset ${id} on strict` }).click();
    await dialog(page).getByText('sets the counts').waitFor();
    await dialog(page).getByRole('button', { name: 'Reset this client' }).click();
    await said(page, `${id} starts at zero on strict`);
    await eventually(async () => (await asks('ann')) === 200, 'ann passes again');
  });
});

test('a client gets another rate, and it is taken back', SOON, async () => {
  const id = await exhaust('ben');
  await on({ signedIn: true }, async (page) => {
    const row = await clientOf(page, 'strict', id);
    await page.getByRole('button', { name: `Override ${id} on strict` }).click();
    await dialog(page).getByLabel('Rate').fill('50/h');
    await dialog(page).getByLabel('Why').fill('a test');
    await dialog(page).getByRole('button', { name: 'Set this rate' }).click();
    await said(page, `${id} has 50/h on strict`);
    await eventually(async () => (await asks('ben')) === 200, 'ben passes again');
    await row.locator('.tag', { hasText: '50/h' }).waitFor();
    const own = page.locator('#overrides tr', { hasText: '50/h on strict' });
    await own.getByText('a test').waitFor();
    await own.getByRole('button').click();
    await dialog(page).getByRole('button', { name: 'Remove the override' }).click();
    await eventually(async () => (await asks('ben')) === 429, 'ben is held again');
    await own.waitFor({ state: 'detached' });
  });
});

test('a client is blocked and let in again; a wrong token does nothing', SOON, async () => {
  const id = await exhaust('cara');
  const { page, close } = await look(scene.browser, scene.stage);
  await clientOf(page, 'strict', id);
  await page.getByRole('button', { name: `Block ${id} on strict` }).click();
  const token = dialog(page).getByLabel('Token');
  await token.fill('not-the-token-of-these-tests');
  await dialog(page).getByRole('button', { name: 'Sign in' }).click();
  await dialog(page).getByText('That is not the token').waitFor();
  await token.fill(scene.stage.token);
  await dialog(page).getByRole('button', { name: 'Sign in' }).click();
  await dialog(page).getByRole('button', { name: 'Block this client' }).click();
  await said(page, `${id} is blocked`);
  await eventually(() => isBlocked('cara'), 'cara is kept out');
  await page.getByRole('button', { name: `Remove: block of ${id}` }).click();
  await dialog(page).getByRole('button', { name: 'Unblock' }).click();
  await eventually(async () => !(await isBlocked('cara')), 'cara is let in');
  await close();
});

test('a denial is seen at once, and tells what was counted of it', SOON, async () => {
  await on({}, async (page) => {
    const id = await exhaust('dora', '/strict/why');
    await page.locator('.denial', { hasText: '/strict/why' }).first().click();
    const verdict = dialog(page).locator('.verdict');
    const words = await verdict.textContent();
    assert.match(words, /^strict allows 3\/h for each key \(header:x-client\)\./);
    assert.match(words, /This key had used 3 of 3 when the request came/);
    assert.match(words, /the request asked for one more\. The same request could pass .+ later/);
    await dialog(page).getByText(`${id}`).first().waitFor();
    await dialog(page).getByText('3 used, 0 left').waitFor();
    // A request like it is asked about without an address that nobody sent.
    await dialog(page).getByRole('button', { name: 'Explain a request like it' }).click();
    assert.equal(await dialog(page).getByLabel('From address').inputValue(), '');
    await dialog(page).getByLabel('Headers').fill('x-client: dora');
    await dialog(page).getByRole('button', { name: 'Explain', exact: true }).click();
    await dialog(page).locator('.verdict.bad', { hasText: 'Denied' }).waitFor();
    await page.keyboard.press('Escape');
    await dialog(page).waitFor({ state: 'hidden' });
  });
});

test('the id of a request leads to why it was denied', SOON, async () => {
  await exhaust('fay', '/strict/by-id');
  const answer = await fetch(`${scene.stage.page}api/v1/denials`);
  const { denials } = await answer.json();
  const { request_id: id } = denials.find((one) => one.path === '/strict/by-id');
  await on({}, async (page) => {
    await page.goto(`${scene.stage.page}#request=${id}`);
    await dialog(page).getByText('Why it was denied').waitFor();
    await dialog(page).getByText(id).waitFor();
    await page.keyboard.press('Escape');
    await page.goto(`${scene.stage.page}#request=unknown`);
    await said(page, 'The request unknown is not among the last 200 denials');
  });
});

test('a click on a limit shows its clients where one looks', SOON, async () => {
  const id = await exhaust('gil');
  await on({}, async (page) => {
    const wide = page.getByRole('button', { name: 'wide', exact: true });
    await wide.click();
    const shown = () =>
      page.evaluate(() => {
        const box = document.getElementById('clients-title').getBoundingClientRect();
        return box.top >= 0 && box.bottom < innerHeight / 2;
      });
    await eventually(shown, 'the clients are in view');
    await page.evaluate(() => scrollTo(0, 0));
    await page.getByRole('button', { name: 'strict', exact: true }).press('Enter');
    await eventually(shown, 'the clients are in view again');
    const focused = await page.evaluate(() => document.activeElement.id);
    assert.equal(focused, 'clients-title', 'the keyboard goes on there');
    await page.locator('#clients tr', { hasText: id }).waitFor();
  });
});

test('room left is what the fullest client has left', SOON, async () => {
  assert.equal(await asks('hal'), 200);
  await on({}, async (page) => {
    const room = page.locator('#limits tr', { hasText: 'strict' }).locator('td').last();
    const width = () =>
      room.locator('.meter span').evaluate((bar) => parseFloat(bar.style.width));
    await exhaust('ida');
    await eventually(async () => (await room.textContent()).includes('0\u202f% left'), 'none left');
    assert.equal(await width(), 0, 'nothing left is an empty bar');
    const wide = page.locator('#limits tr', { hasText: 'wide' }).locator('td').last();
    await asks('hal', '/any/thing');
    await eventually(
      async () => (await wide.locator('.meter span').evaluate((bar) => bar.style.width)) !== '0%',
      'a wide limit has much left',
    );
  });
});

test('what clients and operators write stays text', SOON, async () => {
  const id = await exhaust(HOSTILE, HOSTILE_PATH);
  await becomeBusiest(HOSTILE, HOSTILE_PATH);
  await on({ signedIn: true }, async (page) => {
    await clientOf(page, 'strict', id);
    await page.locator('.denial', { hasText: 'onerror' }).first().click();
    await dialog(page).locator('.verdict').waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: `Override ${id}` }).click();
    await dialog(page).getByLabel('Why').fill(HOSTILE);
    await dialog(page).getByLabel('Rate').fill('9/h');
    await dialog(page).getByRole('button', { name: 'Set this rate' }).click();
    await page.locator('#overrides tr', { hasText: HOSTILE }).waitFor();
    const found = await page.evaluate(() => [window.hostile, document.images.length]);
    assert.deepEqual(found, [undefined, 0]);
  });
});

test('a reload is marked with what changed', SOON, async () => {
  await on({ signedIn: true }, async (page) => {
    scene.stage.configure(LIMITS.replace('1000000/h', '2000000/h'));
    await page.getByRole('button', { name: 'Reload' }).click();
    await dialog(page).getByRole('button', { name: 'Reload' }).click();
    await said(page, 'Reloaded');
    const mark = page.getByRole('img', { name: /Reload: .*wide/ });
    await mark.focus();
    await page.locator('.tip', { hasText: 'wide' }).waitFor();
    await page.locator('#limits tr', { hasText: '2000000/h' }).waitFor();
  });
});

test('few presses of Tab lead to the first limit, however much has happened', SOON, async () => {
  const { redis } = scene.stage;
  await on({ signedIn: true }, async (page) => {
    // Each outage leaves two marks in the chart.
    await redis.stop();
    const stop = load(scene.stage.url, '/some/thing');
    await page.getByRole('img', { name: /Store away/ }).first().waitFor();
    await redis.start();
    await page.getByRole('img', { name: /Store back/ }).first().waitFor();
    await stop();
    assert.ok((await page.locator('.mark').count()) >= 3);
    await page.reload();
    await page.locator('#limits button.name').first().waitFor();
    const presses = await tabTo(page, '#limits button.name');
    assert.ok(presses <= 8, `${presses} presses`);
    await page.keyboard.press('Shift+Tab');
    const marks = page.locator('.mark');
    const last = await marks.last().getAttribute('aria-label');
    const tip = page.locator('.tip');
    await tip.waitFor();
    await page.keyboard.press('Home');
    await tip.filter({ hasText: 'Start' }).waitFor();
    await page.keyboard.press('End');
    await page.keyboard.press('ArrowLeft');
    const focused = await page.evaluate(() => document.activeElement.getAttribute('aria-label'));
    assert.notEqual(focused, last, 'an arrow goes to the mark before');
  });
});

test('the keyboard is enough', SOON, async () => {
  const id = await exhaust('eve');
  await becomeBusiest('eve');
  await on({ signedIn: true }, async (page) => {
    await clientOf(page, 'strict', id);
    await page.locator('.denial').first().waitFor();
    await page.evaluate(() => document.activeElement.blur());
    await page.evaluate(() => window.scrollTo(0, 0));
    await page.reload();
    await page.locator('#clients tr', { hasText: id }).waitFor();
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
    await page.keyboard.press('Enter');
    await eventually(() => page.evaluate(() => document.activeElement.id === 'main'), 'skipped');
    await tabTo(page, '#limits button.name');
    await page.keyboard.press('Enter');
    await page.locator('#limits button.name[aria-pressed=true]').waitFor();
    await tabTo(page, '[aria-label^="Reset"]');
    await page.keyboard.press('Enter');
    await dialog(page).getByRole('button', { name: 'Reset this client' }).waitFor();
    await page.keyboard.press('Escape');
    await dialog(page).waitFor({ state: 'hidden' });
    const label = await page.evaluate(() => document.activeElement.getAttribute('aria-label'));
    assert.match(label, /^Reset/, 'the focus is back where it was');
    await tabTo(page, '.denial');
    await page.keyboard.press('Enter');
    await dialog(page).getByText('Why it was denied').waitFor();
  });
});
