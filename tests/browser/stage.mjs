// What a test of the dashboard stands on: a tidegate with its admin, a redis-server that can be
// stopped, a server behind it, and a Chromium whose complaints fail the test.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { createRequire } from 'node:module';
import { connect, createServer as createSocket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const installed = createRequire(`${process.env.BROWSER_MODULES}/`);
const { chromium } = installed('playwright-core');
/** The script that finds barriers. */
export const AXE = installed('axe-core').source;

/** Long for a machine that does much else; nothing waits so long where all is well. */
export const PATIENCE_MS = 20_000;
const TOKEN = 'a-token-of-the-browser-tests';

const cleanups = [];

/** Ends everything that was started, newest first. */
export async function end() {
  for (const cleanup of cleanups.reverse()) await cleanup();
}

/** Waits until `look` gives something true, and returns it. */
export async function eventually(look, what) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() < deadline, `it did not happen in time: ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 50);
    });
  }
}

/** A port that nobody listens on, below those that connections are given. */
async function freePort() {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 18_000);
    const socket = createSocket();
    const isFree = await new Promise((resolve) => {
      socket.once('error', () => resolve(false));
      socket.listen(port, '127.0.0.1', () => resolve(true));
    });
    if (!isFree) continue;
    socket.close();
    await once(socket, 'close');
    return port;
  }
}

const answers = (port) =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => resolve(true));
    socket.once('error', () => resolve(false));
    socket.once('close', () => socket.destroy());
    setTimeout(() => socket.end(), 100);
  });

async function stopped(child, signal = 'SIGKILL') {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill(signal);
  await exit;
}

/** A redis-server that keeps nothing; `stop` and `start` are an outage. */
class Redis {
  async start() {
    this.port ??= await freePort();
    const options = [
      '--port',
      this.port,
      '--bind',
      '127.0.0.1',
      '--save',
      '',
      '--appendonly',
      'no',
    ];
    this.child = spawn('redis-server', options.map(String), { stdio: 'ignore' });
    await eventually(() => answers(this.port), 'redis-server listens');
  }

  stop() {
    return stopped(this.child);
  }
}

/** Answers everything, and knows nothing of limits; `fails` has it answer 503. */
const upstream = { fails: false };
/** What a model server tells of each call below `/model`. */
const USAGE = { prompt_tokens: 1000, completion_tokens: 1500, total_tokens: 2500 };

async function startUpstream() {
  const server = createServer((request, response) => {
    response.statusCode = upstream.fails ? 503 : 200;
    if (request.url.startsWith('/model')) {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ usage: USAGE }));
      return;
    }
    response.end('fine');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanups.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

/** The proxy, its admin, and what is around them. */
export async function start(config) {
  const redis = new Redis();
  await redis.start();
  cleanups.push(() => redis.stop());
  const folder = mkdtempSync(join(tmpdir(), 'tidegate-browser-'));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, 'token'), TOKEN, { mode: 0o600 });
  const file = join(folder, 'proxy.toml');
  const decide = await freePort();
  const write = (limits) =>
    writeFileSync(
      file,
      `
    listen = "127.0.0.1:0"
    upstream = "${write.upstream}"
    admin = "127.0.0.1:0"
    admin_token_file = "${join(folder, 'token')}"
    [decide]
    listen = "127.0.0.1:${decide}"
    [store]
    url = "redis://127.0.0.1:${redis.port}"
    # A browser that takes all of a machine is no outage.
    timeout = "2s"
    [server]
    workers = 2
    [log]
    access = "off"
    ${limits}
  `,
    );
  write.upstream = await startUpstream();
  write(config);
  const child = spawn(process.env.TIDEGATE, ['run', '-c', file], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  cleanups.push(() => stopped(child));
  const { url, page } = await opened(child);
  const asked = `http://127.0.0.1:${decide}`;
  return { url, page, decide: asked, redis, upstream, configure: write, token: TOKEN };
}

/** Where it listens and where its admin does, as it says them. */
async function opened(child) {
  const said = [];
  const slow = setTimeout(() => child.kill('SIGKILL'), PATIENCE_MS);
  const lines = createInterface({ input: child.stderr });
  const places = {};
  await new Promise((resolve, reject) => {
    lines.on('line', (line) => {
      said.push(line);
      const [, kind, place] =
        /^(listening|dashboard)\s+(http:\/\/127\.0\.0\.1:\d+)/.exec(line) ?? [];
      if (kind) places[kind] = place;
      if (places.listening && places.dashboard) resolve();
    });
    child.once('error', reject);
    lines.once('close', () => reject(new Error(`tidegate did not start:\n${said.join('\n')}`)));
  });
  clearTimeout(slow);
  return { url: places.listening, page: `${places.dashboard}/` };
}

/** Sends a request as it is, however odd, and gives the status. With a body it is a POST. */
export function send(url, path, headers = {}, body = '') {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(url);
    const method = body ? 'POST' : 'GET';
    const asked = request({ hostname, port, path, method, headers, agent: false }, (answer) => {
      answer.resume();
      answer.once('end', () => resolve(answer.statusCode));
    });
    asked.once('error', reject);
    asked.end(body);
  });
}

/** Requests without end, until the returned function is called. */
export function load(url, path) {
  let goes = true;
  const ended = (async () => {
    while (goes) {
      await Promise.all(Array.from({ length: 8 }, () => send(url, path).catch(() => {})));
      await new Promise((resolve) => {
        setTimeout(resolve, 20);
      });
    }
  })();
  return () => {
    goes = false;
    return ended;
  };
}

export async function startBrowser() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    // There is nobody but the tests to be kept apart from, and containers have no sandbox for root.
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
  });
  cleanups.push(() => browser.close());
  return browser;
}

/** Opens the page; `complaints` are those of the browser, of which there must be none. */
export async function look(browser, stage, { signedIn = false, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (line) => {
    // What an outage of Redis costs is an answer like others.
    if (line.text().includes('status of 503')) return;
    if (['error', 'warning'].includes(line.type())) complaints.push(line.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      console.error(`forbidden: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await page.goto(stage.page + (signedIn ? `#token=${stage.token}` : ''));
  await page.locator('#connection[data-state=live]').waitFor();
  return { page, complaints, close: () => context.close() };
}
