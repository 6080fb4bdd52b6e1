// Usage for billing: the clients and days of the ledger, read when an operator asks.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

import { asks, barriers, on, picture, scene, SOON, tabTo } from './scene.mjs';
import { eventually } from './stage.mjs';

async function billed() {
  const answer = await fetch(`${scene.stage.page}api/v1/usage?by=client`);
  return (await answer.json()).total.requests;
}

test('usage is shown by client and by day, and downloaded', SOON, async () => {
  assert.equal(await asks('bill'), 200);
  await eventually(async () => (await billed()) > 0, 'the request is in the ledger');
  await on({}, async (page) => {
    const card = page.locator('section', { has: page.locator('#usage-title') });
    await card.getByText('Without days it is this month.').waitFor();
    await tabTo(page, '#usage-by');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    const row = card.locator('tbody tr', { hasText: 'unknown' });
    await row.getByText('requests without a known identity').waitFor();
    const requests = row.locator('[data-column="Requests"]');
    assert.ok(Number((await requests.textContent()).replaceAll('\u202f', '')) > 0);
    assert.match(await card.locator('#usage-note').textContent(), /^one client|^1 client/);
    assert.deepEqual(await barriers(page), []);
    await picture(page, 'usage');

    const [file] = await Promise.all([
      page.waitForEvent('download'),
      card.getByRole('button', { name: 'Download CSV' }).click(),
    ]);
    const text = await readFile(await file.path(), 'utf8');
    assert.match(text, /^client,kind,requests,tokens,money\r\nunknown,unknown,\d+,\d+,\d+\.\d{6}\r\n$/);

    await card.getByLabel('by').selectOption('day');
    await card.getByRole('button', { name: 'Show' }).click();
    const today = await card.locator('#usage-to').inputValue();
    await card.locator('tbody tr', { hasText: today }).waitFor();
  });
});
