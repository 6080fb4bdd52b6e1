// undici: fetch, its own request API, pipelining and EventSource; and node's own HTTP client, for
// trailers in both directions.

import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { LARGE_BYTES, SOON, eventually, flatMemory, load, remaining, retryAfter, start, timed }
  from './stage.mjs';

const undici = await load('undici');
const limited = await start('[limit.default]\nrate = "3/4s"\nkey = "api_key"');
const open = await start('[limit.default]\nrate = "1000/s"');

const reader = (answer) => (name) => answer.headers.get(name);

for (const [name, fetch] of [['undici', undici.fetch], ["node's", globalThis.fetch]]) {
  test(`${name} fetch: limits, a denial, and the wait that it asks for`, SOON, async () => {
    const options = { headers: { 'x-api-key': name } };
    for (const left of [2, 1, 0]) {
      const answer = await fetch(`${limited.url}/echo`, options);
      assert.equal(remaining(reader(answer)), left);
      await answer.arrayBuffer();
    }
    const denied = await fetch(`${limited.url}/echo`, options);
    assert.equal(denied.status, 429);
    const wait = retryAfter(reader(denied), await denied.json());
    await sleep(wait * 1000);
    const again = await fetch(`${limited.url}/echo`, options);
    assert.equal(again.status, 200);
    await again.arrayBuffer();
  });
}

async function hashOf(stream, pauseMs = 0) {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of stream) {
    if (bytes === 0) await sleep(pauseMs);
    bytes += chunk.length;
    hash.update(chunk);
  }
  return [bytes, hash.digest('hex')];
}

test('fetch: a large download to a slow reader takes no memory', SOON, async () => {
  const expected = await (await undici.fetch(`${open.upstream}/sha256/${LARGE_BYTES}`)).text();
  await flatMemory(open, async () => {
    const answer = await undici.fetch(`${open.url}/bytes/${LARGE_BYTES}?chunked`);
    assert.deepEqual(await hashOf(answer.body, 700), [LARGE_BYTES, expected]);
  });
});

test('fetch: a large streamed upload to a slow upstream takes no memory', SOON, async () => {
  const hash = createHash('sha256');
  const block = randomBytes(1 << 20);
  async function* pieces() {
    for (let number = 0; number < LARGE_BYTES >> 20; number += 1) {
      const piece = Buffer.from(block);
      piece.writeUInt32BE(number);
      hash.update(piece);
      yield piece;
    }
  }
  await flatMemory(open, async () => {
    const answer = await undici.fetch(`${open.url}/upload?pause=700`, {
      method: 'PUT', body: pieces(), duplex: 'half',
    });
    const got = await answer.json();
    assert.deepEqual([got.bytes, got.sha256], [LARGE_BYTES, hash.digest('hex')]);
  });
});

test('undici: a denied upload that trickles in gets its denial', SOON, async () => {
  const headers = { 'x-api-key': 'trickle' };
  for (let sent = 0; sent < 3; sent += 1) {
    await (await undici.request(`${limited.url}/echo`, { headers })).body.dump();
  }
  async function* trickle() {
    for (let number = 0; number < 8; number += 1) {
      yield Buffer.alloc(60_000);
      await sleep(20);
    }
  }
  const answer = await undici.request(`${limited.url}/upload`, {
    method: 'POST', headers, body: trickle(),
  });
  assert.equal(answer.statusCode, 429);
  retryAfter((name) => answer.headers[name], await answer.body.json());
});

test("undici's RetryAgent waits as told and gets through", SOON, async () => {
  const agent = new undici.RetryAgent(new undici.Agent(), { maxRetries: 2, statusCodes: [429] });
  const ask = () => undici.request(`${limited.url}/echo`, {
    dispatcher: agent, headers: { 'x-api-key': 'retry-agent' },
  });
  for (let sent = 0; sent < 3; sent += 1) await (await ask()).body.dump();
  const [seconds, answer] = await timed(ask);
  assert.equal(answer.statusCode, 200);
  assert.ok(seconds >= 1 && seconds < 12, `${seconds} s`);
  await answer.body.dump();
  await agent.close();
});

test('undici: pipelined requests are answered in order and counted each', SOON, async () => {
  const client = new undici.Client(limited.url, { pipelining: 10 });
  const asked = Array.from({ length: 6 }, (_, number) => client.request({
    method: 'GET', path: `/echo?${number}`, headers: { 'x-api-key': 'pipelined' },
  }));
  const answers = await Promise.all(asked);
  assert.deepEqual(answers.map(({ statusCode }) => statusCode), [200, 200, 200, 429, 429, 429]);
  for (const [number, { body, statusCode }] of answers.entries()) {
    const value = await body.json();
    if (statusCode === 200) assert.equal(value.target, `/echo?${number}`);
  }
  await client.close();
});

test('undici: trailers of a response arrive', SOON, async () => {
  const answer = await undici.request(`${open.url}/trailers`, { headers: { te: 'trailers' } });
  const body = await answer.body.text();
  const sum = createHash('sha256').update(body).digest('hex');
  assert.deepEqual(answer.trailers, { 'x-sum': sum });
});

test('node:http: trailers of a request arrive', SOON, async () => {
  const request = httpRequest(`${open.url}/echo`, {
    method: 'POST', headers: { trailer: 'x-late', 'transfer-encoding': 'chunked' },
  });
  request.write('body first');
  request.addTrailers({ 'x-late': 'then this' });
  request.end();
  const [response] = await once(request, 'response');
  const echoed = JSON.parse(Buffer.concat(await response.toArray()));
  assert.equal(echoed.body.bytes, 10);
  assert.deepEqual(echoed.trailers.map((text) => text.toLowerCase()), ['x-late', 'then this']);
});

test('undici: an aborted request ends the work upstream', SOON, async () => {
  const abort = new AbortController();
  const asked = undici.fetch(`${open.url}/slow/9000?id=aborted`, { signal: abort.signal });
  const seen = async () => (await undici.fetch(`${open.upstream}/seen/aborted`)).json();
  await eventually(async () => (await seen()).requests === 1);
  abort.abort();
  await assert.rejects(asked, { name: 'AbortError' });
  await eventually(async () => (await seen()).aborted === 1);
});

test('EventSource: events come as they are sent', SOON, async () => {
  const source = new undici.EventSource(`${open.url}/events/4?every=1000`);
  const lags = [];
  await new Promise((resolve, reject) => {
    source.onmessage = (event) => {
      lags.push(Date.now() / 1000 - Number(event.data));
      if (lags.length === 4) resolve();
    };
    source.onerror = () => reject(new Error('the stream broke'));
  });
  source.close();
  assert.ok(Math.max(...lags) < 1, `after their successors were sent: ${lags}`);
});

test('fetch: cookies, queries and credentials pass untouched', SOON, async () => {
  const answer = await undici.fetch(`${open.url}/cookies`);
  assert.deepEqual(answer.headers.getSetCookie(), [
    'a=1; Path=/; HttpOnly',
    'b="two, three"; Path=/; Expires=Wed, 21 Oct 2099 07:28:00 GMT',
    'c=; Path=/',
  ]);
  await answer.text();
  const target = '/echo?a=1&a=2&plus=+&hash=%23&euro=%E2%82%AC';
  const headers = { cookie: 'a=1; b="two, three"', authorization: 'Basic YTpi' };
  const echoed = await (await undici.fetch(open.url + target, { headers })).json();
  assert.equal(echoed.target, target);
  for (const [name, value] of Object.entries(headers)) {
    assert.equal(echoed.headers[echoed.headers.indexOf(name) + 1], value);
  }
});
