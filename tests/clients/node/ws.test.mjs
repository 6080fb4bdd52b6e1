// ws on both sides of the proxy.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { SOON, eventually, load, remaining, retryAfter, start } from './stage.mjs';

const { default: WebSocket } = await load('ws');
const limited = await start('[limit.default]\nrate = "2/6s"\nkey = "api_key"');
const open = await start('[limit.default]\nrate = "1000/s"');

async function connect(at, key, target = '/ws', protocols = []) {
  const socket = new WebSocket(at.websocket + target, protocols, {
    headers: { 'x-api-key': key },
    handshakeTimeout: 20_000,
  });
  let answer;
  socket.once('upgrade', (response) => {
    answer = response;
  });
  await once(socket, 'open');
  return { socket, answer };
}

async function echo(socket, message) {
  const received = once(socket, 'message');
  socket.send(message);
  const [data, isBinary] = await received;
  return isBinary ? data : data.toString();
}

async function seen(id) {
  return (await fetch(`${open.upstream}/seen/${id}`)).json();
}

test('ws: text and binary come back, a mebibyte too', SOON, async () => {
  const { socket } = await connect(open, 'ws');
  for (const text of ['hello', '', 'grüß dich, 世界 🌊', 'x'.repeat(1 << 20)]) {
    assert.equal(await echo(socket, text), text);
  }
  for (const bytes of [Buffer.alloc(0), Buffer.from([0, 255]), randomBytes(1 << 20)]) {
    assert.deepEqual(await echo(socket, bytes), bytes);
  }
  const pong = once(socket, 'pong');
  socket.ping('are you there');
  assert.equal((await pong)[0].toString(), 'are you there');
  socket.terminate();
});

test('ws: extensions and subprotocol are agreed on end to end', SOON, async () => {
  const { socket } = await connect(open, 'ws', '/ws', ['other', 'tide.v1']);
  assert.equal(socket.protocol, 'tide.v1');
  assert.match(socket.extensions, /permessage-deflate/);
  socket.terminate();
});

test('ws: close codes and reasons pass both ways', SOON, async () => {
  for (const [code, reason] of [[1000, 'done'], [4001, 'go away'], [1011, 'mine']]) {
    const { socket } = await connect(open, 'ws');
    const closed = once(socket, 'close');
    socket.send(`close ${code} ${reason}`);
    const [gotCode, gotReason] = await closed;
    assert.deepEqual([gotCode, gotReason.toString()], [code, reason]);
  }
  const { socket } = await connect(open, 'ws', '/ws?id=ws-close');
  socket.close(4321, 'tired');
  await once(socket, 'close');
  await eventually(async () => (await seen('ws-close')).closes.length === 1);
  assert.deepEqual((await seen('ws-close')).closes, [[4321, 'tired']]);
});

test('ws: a client that vanishes is gone upstream too', SOON, async () => {
  const { socket } = await connect(open, 'ws', '/ws?id=ws-gone');
  socket.terminate();
  await eventually(async () => (await seen('ws-gone')).closes.length === 1);
  assert.equal((await seen('ws-gone')).closes[0][0], 1006);
});

test('ws: an upgrade the upstream refuses is its own answer', SOON, async () => {
  const socket = new WebSocket(`${open.websocket}/elsewhere`);
  socket.once('error', () => {});
  const [request, response] = await once(socket, 'unexpected-response');
  assert.equal(response.statusCode, 400);
  assert.notEqual(response.headers['content-type'], 'application/problem+json');
  request.destroy();
});

test('ws: upgrades are counted, messages are not, and over the limit it is 429', SOON, async () => {
  const first = await connect(limited, 'ws-limit');
  assert.equal(remaining((name) => first.answer.headers[name]), 1);
  for (let sent = 0; sent < 20; sent += 1) await echo(first.socket, 'not counted');
  const second = await connect(limited, 'ws-limit');
  assert.equal(remaining((name) => second.answer.headers[name]), 0);

  const headers = { 'x-api-key': 'ws-limit' };
  const refused = new WebSocket(`${limited.websocket}/ws`, { headers });
  refused.once('error', () => {});
  const [request, response] = await once(refused, 'unexpected-response');
  assert.equal(response.statusCode, 429);
  const body = Buffer.concat(await response.toArray());
  const wait = retryAfter((name) => response.headers[name], JSON.parse(body));
  request.destroy();
  await sleep(wait * 1000);
  const third = await connect(limited, 'ws-limit');
  assert.equal(await echo(third.socket, 'again'), 'again');
  for (const { socket } of [first, second, third]) socket.terminate();
});
