// The dashboard acts, explains, and keeps what clients send as text; the keyboard is enough for it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { asks, dialog, exhaust, LIMITS, on, scene, SOON } from './scene.mjs';
import { eventually, look } from './stage.mjs';

/** What a client may send in a header and a path, and would be glad to see as markup. */
const HOSTILE = '<img src=x onerror="window.hostile=1">';
const HOSTILE_PATH = '/strict/%3Cimg%20src=x%20onerror=window.hostile=1%3E';

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

const said = (page, text) => page.locator('#said', { hasText: text }).waitFor();

test('a button resets a client, which passes again', SOON, async () => {
  const id = await exhaust('ann');
  await on({ signedIn: true }, async (page) => {
    assert.doesNotMatch(page.url(), /token/);
    await clientOf(page, 'strict', id);
    await page.getByRole('button', { name: `Reset ${id} on strict` }).click();
    await dialog(page).getByText('is forgotten').waitFor();
    await dialog(page).getByRole('button', { name: 'Reset this client' }).click();
    await said(page, `${id} begins anew on strict`);
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
    await dialog(page).getByRole('button', { name: 'Take it back' }).click();
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
  await page.getByRole('button', { name: `Take back: block of ${id}` }).click();
  await dialog(page).getByRole('button', { name: 'Unblock' }).click();
  await eventually(async () => !(await isBlocked('cara')), 'cara is let in');
  await close();
});

test('a denial is seen at once, and opens its explanation', SOON, async () => {
  await on({}, async (page) => {
    await exhaust('dora', '/strict/why');
    await page.locator('.denial', { hasText: '/strict/why' }).first().click();
    await dialog(page).getByText('It was denied by strict').waitFor();
    const verdict = dialog(page).locator('.verdict');
    await verdict.waitFor();
    // The client's key is no part of what was kept of it; with it the same request is denied.
    await dialog(page).getByLabel('Headers').fill('x-client: dora');
    await dialog(page).getByRole('button', { name: 'Explain', exact: true }).click();
    await dialog(page).locator('.verdict.bad', { hasText: 'Denied' }).waitFor();
    await page.keyboard.press('Escape');
    await dialog(page).waitFor({ state: 'hidden' });
  });
});

test('what clients and operators write stays text', SOON, async () => {
  const id = await exhaust(HOSTILE, HOSTILE_PATH);
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

/** Presses Tab until the focus is where `selector` says. */
async function tabTo(page, selector) {
  for (let pressed = 0; pressed < 200; pressed += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate((what) => document.activeElement?.matches(what), selector)) return;
  }
  assert.fail(`the keyboard does not reach ${selector}`);
}

test('the keyboard is enough', SOON, async () => {
  const id = await exhaust('eve');
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
