// The server behind the proxy: node's own HTTP/1.1 server and ws, one small answer per path.
//
// Nothing here knows of limits. It tells what reached it (/echo, /seen) and sends what is hard to
// forward: long bodies, late events, trailers, 1xx, cut connections. Run alone it prints its port
// and lives as long as its standard input; a test in node starts it in its own process.

import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';

const { WebSocketServer } = createRequire(`${process.env.CLIENT_MODULES}/`)('ws');

const BLOCK_BYTES = 1 << 16;
const BLOCK = createHash('shake256', { outputLength: BLOCK_BYTES }).update('tidegate').digest();

/** Pseudo-random bytes that never repeat a block, so that one lost or swapped shows in the hash. */
function* blocks(bytes) {
  for (let at = 0; at < bytes; at += BLOCK_BYTES) {
    const block = Buffer.from(BLOCK.subarray(0, Math.min(BLOCK_BYTES, bytes - at)));
    if (block.length >= 4) block.writeUInt32BE(at / BLOCK_BYTES);
    yield block;
  }
}

/** By the id that a test gives its requests: how many came, and how many were given up. */
const seen = new Map();

function note(id) {
  if (!seen.has(id)) seen.set(id, { requests: 0, aborted: 0, closes: [] });
  return seen.get(id);
}

async function write(response, chunk) {
  if (!response.write(chunk)) {
    await new Promise((resolve) => {
      const go = () => {
        response.off('drain', go).off('close', go);
        resolve();
      };
      response.on('drain', go).on('close', go);
    });
  }
}

async function digest(request, pauseMs = 0) {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of request) {
    if (bytes === 0 && pauseMs > 0) await sleep(pauseMs);
    hash.update(chunk);
    bytes += chunk.length;
  }
  return { bytes, sha256: hash.digest('hex') };
}

function json(response, value, status = 200) {
  const body = JSON.stringify(value);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  });
  response.end(body);
}

/** Each answers one path: `/name/argument?query`. */
const answers = {
  async echo(request, response) {
    const body = await digest(request);
    json(response, {
      method: request.method,
      target: request.url,
      version: request.httpVersion,
      headers: request.rawHeaders,
      trailers: request.rawTrailers,
      body,
    });
  },

  async bytes(request, response, { argument, query }) {
    const head = { 'content-type': 'application/octet-stream' };
    if (!query.has('chunked')) head['content-length'] = argument;
    response.writeHead(200, head);
    if (request.method === 'HEAD') return response.end();
    for (const block of blocks(Number(argument))) {
      if (response.destroyed) return undefined;
      await write(response, block);
    }
    return response.end();
  },

  sha256(request, response, { argument }) {
    const hash = createHash('sha256');
    for (const block of blocks(Number(argument))) hash.update(block);
    response.end(hash.digest('hex'));
  },

  /** Takes its time after the first bytes, so that a proxy that buffers has to show it. */
  async upload(request, response, { query }) {
    const body = await digest(request, Number(query.get('pause') ?? 0));
    json(response, { ...body, encoding: request.headers['transfer-encoding'] ?? null });
  },

  async events(request, response, { argument, query }) {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
    for (let sent = 0; sent < Number(argument) && !response.destroyed; sent += 1) {
      if (sent > 0) await sleep(Number(query.get('every')));
      response.write(`id: ${sent}\ndata: ${Date.now() / 1000}\n\n`);
    }
    response.end();
  },

  async trailers(request, response) {
    const body = 'the sum comes after it\n';
    response.writeHead(200, { 'content-type': 'text/plain', trailer: 'x-sum' });
    response.write(body);
    response.addTrailers({ 'x-sum': createHash('sha256').update(body).digest('hex') });
    response.end();
  },

  status(request, response, { argument, query }) {
    response.writeHead(Number(argument), { 'x-upstream': 'as is', etag: '"v1"' });
    response.end([204, 304].includes(Number(argument)) ? undefined : query.get('body'));
  },

  etag(request, response) {
    const fresh = request.headers['if-none-match'] === '"v1"';
    response.writeHead(fresh ? 304 : 200, { etag: '"v1"', 'cache-control': 'max-age=60' });
    response.end(fresh ? undefined : 'version one');
  },

  async slow(request, response, { argument, query }) {
    await sleep(Number(argument));
    if (!query.has('never')) response.end('at last');
  },

  gzip(request, response) {
    const accepts = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '');
    const text = 'squeeze me '.repeat(1000);
    response.setHeader('vary', 'accept-encoding');
    if (accepts) response.setHeader('content-encoding', 'gzip');
    response.end(accepts ? gzipSync(text) : text);
  },

  cookies(request, response) {
    response.setHeader('set-cookie', [
      'a=1; Path=/; HttpOnly',
      'b="two, three"; Path=/; Expires=Wed, 21 Oct 2099 07:28:00 GMT',
      'c=; Path=/',
    ]);
    response.end('take these');
  },

  redirect(request, response) {
    response.writeHead(302, { location: '/echo?after=redirect' });
    response.end();
  },

  /** The upstream's own opinion of limits, which the proxy replaces. */
  limits(request, response) {
    response.setHeader('x-ratelimit-limit', '999999');
    response.setHeader('ratelimit', '"theirs";r=7');
    response.setHeader('ratelimit-policy', '"theirs";q=8;w=9');
    response.end('mine are wider');
  },

  cors(request, response) {
    response.setHeader('access-control-allow-origin', request.headers.origin ?? '*');
    response.setHeader('access-control-allow-credentials', 'true');
    response.setHeader('vary', 'origin');
    if (request.method === 'OPTIONS') {
      response.setHeader('access-control-allow-methods', 'GET, PUT');
      response.setHeader('access-control-allow-headers', 'x-api-key');
      response.writeHead(204);
      return response.end();
    }
    response.setHeader('access-control-expose-headers', 'x-total-count');
    response.setHeader('x-total-count', '42');
    return response.end('for scripts');
  },

  hints(request, response) {
    response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' });
    response.end('after a 103');
  },

  /** Says that it will send more than it does, then is gone. */
  cut(request, response, { query }) {
    response.writeHead(200, query.has('chunked') ? {} : { 'content-length': 100000 });
    response.write('only the beginning', () => response.socket.destroy());
  },

  gone(request) {
    request.socket.destroy();
  },

  seen(request, response, { argument }) {
    json(response, note(argument));
  },
};

function serve(request, response) {
  const { pathname, searchParams: query } = new URL(request.url, 'http://upstream');
  const [, name, argument] = pathname.split('/');
  const id = query.get('id');
  if (id !== null) {
    note(id).requests += 1;
    response.once('close', () => {
      if (!response.writableFinished) note(id).aborted += 1;
    });
  }
  const answer = answers[name];
  if (answer === undefined) return json(response, { missing: pathname }, 404);
  const answered = Promise.resolve(answer(request, response, { argument, query }));
  // A client or proxy that went away ends only its own answer.
  return answered.catch(() => response.destroy());
}

/** Echoes; closes itself as a message tells it to; remembers how it was closed. */
function attend(socket, request) {
  const id = new URL(request.url, 'http://upstream').searchParams.get('id');
  socket.on('message', (data, isBinary) => {
    const wish = isBinary ? null : /^close (\d+) (.*)$/.exec(data.toString());
    if (wish) socket.close(Number(wish[1]), wish[2]);
    else socket.send(data, { binary: isBinary });
  });
  socket.on('close', (code, reason) => {
    if (id !== null) note(id).closes.push([code, reason.toString()]);
  });
  socket.on('error', () => socket.terminate());
}

/** Listens on a free loopback port. */
export async function startUpstream() {
  const server = createServer(serve);
  const sockets = new WebSocketServer({
    server,
    path: '/ws',
    perMessageDeflate: true,
    handleProtocols: (offered) => (offered.has('tide.v1') ? 'tide.v1' : false),
  });
  sockets.on('connection', attend);
  await new Promise((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const stop = () => {
    for (const socket of sockets.clients) socket.terminate();
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, stop };
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const { url } = await startUpstream();
  console.log(url);
  process.stdin.resume().once('end', () => process.exit(0));
}
