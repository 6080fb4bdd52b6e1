// Tokens and money: of the clients of a limit, of one client, of a denial and of a route. And denials
// that another proxy asked for.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { barriers, dialog, on, picture, scene, SOON, tabTo } from './scene.mjs';
import { eventually, send } from './stage.mjs';

const client = (page) => page.locator('#client');
const plain = (text) => text.replaceAll('\u202f', ' ');

/** A call of the model server; `most` is the most output that it asks for. */
const calls = (name, most) =>
  send(scene.stage.url, '/model/chat', { 'x-client': name }, JSON.stringify({ max_tokens: most }));

async function api(path) {
  const answer = await fetch(`${scene.stage.page}api/v1/${path}`);
  return answer.json();
}

const usedTokens = async (name) => (await api(`limits/tokens/keys/${name}`)).windows[0].used;

/** How many calls the page knows of, of all clients. */
async function seenCalls() {
  const { clients } = await api('limits/spend/clients');
  return clients.reduce((sum, client) => sum + client.requests, 0);
}

const deniedClients = async () => (await api('denials?limit=tokens')).denials.map((one) => one.id);

/**
 * Uses 5000 of the 10 000 tokens of a client, and is denied once; gives what operators call the
 * client. Each call is settled before the next one.
 */
async function useTokens(name) {
  const before = await seenCalls();
  for (const [made, used] of [[1, 2500], [2, 5000]]) {
    assert.equal(await calls(name, 4993), 200);
    // The store may hear of a settlement later than of the next call, which another worker has.
    await eventually(async () => (await usedTokens(name)) === used, 'the call is settled');
    // Of calls that two workers have at the same time, the page may show either one as the last.
    await eventually(async () => (await seenCalls()) === before + made, 'the call is seen');
  }
  const known = (await deniedClients()).length;
  assert.equal(await calls(name, 8993), 429);
  return eventually(async () => {
    const ids = await deniedClients();
    return ids.length > known && ids[0];
  }, 'the denial is told');
}

test('clients of a limit by tokens and by money show units by name', SOON, async () => {
  const id = await useTokens('uma');
  await on({}, async (page) => {
    const limit = (name) => page.locator('#limits tr', { has: page.locator(`text="${name}"`) });
    await limit('tokens').getByText('10\u202f000 tokens/h').waitFor();
    await limit('tokens').getByText('counts tokens').waitFor();
    await limit('spend').getByText('5.00 money/d').waitFor();
    await page.getByRole('button', { name: 'tokens', exact: true }).click();
    const row = page.locator('#clients tr', { hasText: id.slice(0, 8) });
    const used = row.locator('[data-column="Used"]');
    await used.getByText('5\u202f000 of 10\u202f000 tokens').waitFor();
    await page.getByRole('button', { name: 'spend', exact: true }).click();
    // Its last call that was not denied: 0.40 for the call before, and a reserve of 1.00.
    await used.getByText('1.39 of 5.00 money').waitFor();
  });
});

test('the timeline of a client shows tokens and money against the limit', SOON, async () => {
  const id = await useTokens('vera');
  await on({ signedIn: true }, async (page) => {
    await page.goto(`${scene.stage.page}#client=${id}`);
    const tokens = client(page).locator('.of-limit', { hasText: 'tokens: 10\u202f000 tokens/h' });
    await tokens.getByText('5\u202f000 used, 5\u202f000 left').waitFor();
    // The second call was admitted beside the tokens of the first one.
    const title = tokens.locator('svg title', { hasText: '3 requests, 1 denied' });
    await title.waitFor({ state: 'attached' });
    assert.match(plain(await title.textContent()), /At most 75 % .*: 7 500 of 10 000 tokens$/);
    await tokens.locator('svg text', { hasText: '10\u202f000 tokens' }).waitFor();
    const money = client(page).locator('.of-limit', { hasText: 'spend: 5.00 money/d' });
    await money.getByText('0.80 used, 4.20 left').waitFor();
    // The keyboard opens the table.
    await client(page).locator('#client-title').focus();
    await tabTo(page, '.of-limit summary');
    await page.keyboard.press('Enter');
    await tokens.getByRole('cell', { name: '7\u202f500 of 10\u202f000 tokens' }).waitFor();
    await money.getByRole('button', { name: /^Override/ }).click();
    await dialog(page).getByText('In millionths: 5000000/d is 5 a day').waitFor();
    await page.keyboard.press('Escape');
  });
});

test('a denial by tokens says what was used and asked for', SOON, async () => {
  await useTokens('wim');
  await on({}, async (page) => {
    await page.locator('.denial', { hasText: '/model/chat' }).first().click();
    const words = plain(await dialog(page).locator('.verdict').first().textContent());
    assert.match(words, /^tokens allows 10 000 tokens\/h for each key \(header:x-client\)\./);
    assert.match(words, /had used 5 000 of 10 000 tokens when the request came/);
    assert.match(words, /the request asked for 9 000 more\./);
  });
});

test('routes show tokens by class, the ends of calls and the estimate', SOON, async () => {
  await useTokens('xena');
  await on({}, async (page) => {
    const row = page.locator('#tokens tr', { hasText: 'model' });
    const cell = (column) => row.locator(`[data-column="${column}"]`);
    await row.getByText(/\d+ exact/).waitFor();
    assert.equal(await cell('Cached').textContent(), '0');
    assert.match(plain(await cell('Input').textContent()), /^[1-9][\d.]* ?k?$/);
    assert.match(plain(await cell('Output').textContent()), /^[1-9][\d.]* ?k?$/);
    assert.equal(plain(await cell('Actual / estimate').textContent()), '50 %');
    assert.equal(await cell('Calls').getAttribute('title'), 'exact: the answer said its usage');
    // No other route has usage.
    assert.equal(await page.locator('#tokens tbody tr').count(), 1);
  });
});

test('a denial for another proxy names the door, and the rule or the route', SOON, async () => {
  const { decide } = scene.stage;
  const call = { domain: 'shop', descriptors: [{ entries: [{ key: 'user', value: 'yan' }] }] };
  const asks = () =>
    send(decide, '/json', { 'content-type': 'application/json' }, JSON.stringify(call));
  assert.equal(await asks(), 200);
  assert.equal(await asks(), 429);
  const auth = () =>
    send(decide, '/auth', {
      'x-client': 'zoe',
      'x-forwarded-method': 'GET',
      'x-forwarded-uri': '/strict/behind',
      'x-forwarded-host': 'localhost',
      'x-forwarded-for': '192.0.2.9',
      'x-forwarded-proto': 'http',
    });
  for (const status of [200, 200, 200, 429]) assert.equal(await auth(), status);
  await on({}, async (page) => {
    const fact = (name) =>
      dialog(page)
        .locator('dl.facts > div', { has: page.locator(`dt:text-is("${name}")`) })
        .locator('dd');
    const rows = page.locator('.denial');
    await rows.filter({ hasText: '/json' }).first().click();
    await fact('Asked by').getByText('the JSON form of the rate limit service (json)').waitFor();
    assert.equal(await fact('Rule').textContent(), 'by user');
    const explain = dialog(page).getByRole('button', { name: 'Explain a request like it' });
    assert.equal(await explain.count(), 0, 'a call is no request');
    await picture(page, 'door', false);
    assert.deepEqual(await barriers(page), []);
    await page.keyboard.press('Escape');
    // The keyboard leads to the other one.
    await page.locator('.denial', { hasText: '/strict/behind' }).first().focus();
    await page.keyboard.press('Enter');
    await fact('Asked by').getByText('forward auth (auth)').waitFor();
    assert.equal(await fact('Route').textContent(), 'strict');
  });
});

for (const scheme of ['dark', 'light']) {
  test(`${scheme}: no serious barrier where tokens are shown`, SOON, async () => {
    const id = await useTokens(`tokens in ${scheme}`);
    await on({ colorScheme: scheme, reducedMotion: 'reduce' }, async (page) => {
      await page.goto(`${scene.stage.page}#client=${id}&limit=tokens`);
      await client(page).locator('.of-limit', { hasText: '10\u202f000 tokens/h' }).waitFor();
      await page.locator('#tokens tbody tr').first().waitFor();
      await picture(page, `${scheme}-tokens`);
      assert.deepEqual(await barriers(page), []);
      await page.setViewportSize({ width: 360, height: 780 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360);
      await picture(page, `${scheme}-tokens-360`);
      assert.deepEqual(await barriers(page), []);
    });
  });
}
