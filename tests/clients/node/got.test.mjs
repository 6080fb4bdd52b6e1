// got: retries by default, and by default waits as long as Retry-After says.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { PassThrough } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { test } from 'node:test';

import { LARGE_BYTES, SOON, flatMemory, load, remaining, retryAfter, start, timed }
  from './stage.mjs';

const { got } = await load('got');
const limited = await start('[limit.default]\nrate = "2/4s"\nkey = "api_key"');
const open = await start('[limit.default]\nrate = "1000/s"');

const as = (key, more = {}) => ({ headers: { 'x-api-key': key }, ...more });

async function spend(key) {
  for (let left = 1; left >= 0; left -= 1) {
    const answer = await got(`${limited.url}/echo`, as(key));
    assert.equal(remaining((name) => answer.headers[name]), left);
  }
}

test('got: one retry, by itself, is enough', SOON, async () => {
  await spend('got-retry');
  const retried = [];
  const [seconds, answer] = await timed(() => got(`${limited.url}/echo`, as('got-retry', {
    retry: { limit: 2 },
    hooks: { beforeRetry: [(error, count) => retried.push([error.response.statusCode, count])] },
  })));
  assert.equal(answer.statusCode, 200);
  assert.deepEqual(retried, [[429, 1]]);
  assert.ok(seconds >= 1 && seconds < 12, `${seconds} s`);
});

test('got: a denial is an HTTPError with problem details', SOON, async () => {
  await spend('got-denied');
  const options = as('got-denied', { retry: { limit: 0 } });
  await assert.rejects(got(`${limited.url}/echo`, options), (error) => {
    assert.equal(error.code, 'ERR_NON_2XX_3XX_RESPONSE');
    const { headers, body } = error.response;
    retryAfter((name) => headers[name], JSON.parse(body));
    return true;
  });
});

test('got: a POST is not repeated, and a later one passes', SOON, async () => {
  await spend('got-post');
  const retried = [];
  const options = as('got-post', {
    json: { a: 1 },
    throwHttpErrors: false,
    hooks: { beforeRetry: [() => retried.push('a POST')] },
  });
  const denied = await got.post(`${limited.url}/echo`, options);
  assert.equal(denied.statusCode, 429);
  assert.deepEqual(retried, []);
  const wait = retryAfter((name) => denied.headers[name], JSON.parse(denied.body));
  await new Promise((resolve) => {
    setTimeout(resolve, wait * 1000);
  });
  assert.equal((await got.post(`${limited.url}/echo`, options)).statusCode, 200);
});

test('got: HEAD, 204, 304 and redirects', SOON, async () => {
  assert.equal((await got.head(`${open.url}/bytes/1234`)).headers['content-length'], '1234');
  assert.equal((await got(`${open.url}/status/204`)).body, '');
  const fresh = { headers: { 'if-none-match': '"v1"' } };
  assert.equal((await got(`${open.url}/etag`, fresh)).statusCode, 304);
  const followed = await got(`${open.url}/redirect`).json();
  assert.equal(followed.target, '/echo?after=redirect');
});

test("got: the upstream's 500 is the upstream's", SOON, async () => {
  const options = { retry: { limit: 0 }, throwHttpErrors: false };
  const answer = await got(`${open.url}/status/500?body=oh`, options);
  assert.deepEqual([answer.statusCode, answer.body], [500, 'oh']);
  assert.equal(answer.headers['x-upstream'], 'as is');
});

test('got: compressed answers are opened by the client', SOON, async () => {
  const answer = await got(`${open.url}/gzip`);
  assert.equal(answer.headers['content-encoding'], 'gzip');
  assert.equal(answer.body, 'squeeze me '.repeat(1000));
});

test('got: a large download and upload in one stream', SOON, async () => {
  const expected = await got(`${open.upstream}/sha256/${LARGE_BYTES}`).text();
  const hash = createHash('sha256');
  const through = new PassThrough();
  through.on('data', (chunk) => hash.update(chunk));
  await flatMemory(open, async () => {
    const upload = got.stream.put(`${open.url}/upload`);
    const answered = new Promise((resolve, reject) => {
      const chunks = [];
      upload.on('data', (chunk) => chunks.push(chunk));
      upload.on('error', reject);
      upload.on('end', () => resolve(JSON.parse(Buffer.concat(chunks))));
    });
    await pipeline(got.stream(`${open.url}/bytes/${LARGE_BYTES}`), through, upload);
    const { bytes, sha256, encoding } = await answered;
    assert.deepEqual([bytes, sha256, encoding], [LARGE_BYTES, expected, 'chunked']);
  });
  assert.equal(hash.digest('hex'), expected);
});
