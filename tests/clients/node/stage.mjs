// What a test in node stands on: the pinned clients, a running tidegate, and the upstream behind it
// in this same process. Parsing a client's limits is the Python half's work; here it is enough that
// the numbers are numbers.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after } from 'node:test';
import { pathToFileURL } from 'node:url';

import { startUpstream } from '../upstream.mjs';

const installed = createRequire(`${process.env.CLIENT_MODULES}/`);

/** A pinned client, which is not installed beside its tests. */
export function load(name) {
  return import(pathToFileURL(installed.resolve(name)));
}

export const LARGE_BYTES = 64 << 20;
/** How much more memory the proxy may take while LARGE_BYTES go through it. */
const FLAT_KIB = 8 << 10;
const START_MS = 30_000;

/** A tidegate before a new upstream, both ended with the file that starts them. */
export async function start(config) {
  const upstream = await startUpstream();
  const folder = mkdtempSync(join(tmpdir(), 'tidegate-clients-'));
  const path = join(folder, 'proxy.toml');
  writeFileSync(path, `
    listen = "127.0.0.1:0"
    upstream = "${upstream.url}"
    ${config}
    [api_key]
    unknown = "trust"
    [server]
    workers = 2
    [log]
    access = "off"
  `);
  const child = spawn(process.env.TIDEGATE, ['run', '-c', path], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  after(() => {
    child.kill('SIGKILL');
    upstream.stop();
    rmSync(folder, { recursive: true });
  });
  const url = await listening(child);
  return { url, upstream: upstream.url, websocket: url.replace('http', 'ws'), pid: child.pid };
}

async function listening(child) {
  const said = [];
  const slow = setTimeout(() => child.kill('SIGKILL'), START_MS);
  const lines = createInterface({ input: child.stderr });
  const url = await new Promise((resolve, reject) => {
    lines.on('line', (line) => {
      said.push(line);
      const found = /^listening\s+(http:\/\/127\.0\.0\.1:\d+)/.exec(line);
      if (found) resolve(found[1]);
    });
    child.once('error', reject);
    lines.once('close', () => reject(new Error(`tidegate did not start:\n${said.join('\n')}`)));
  });
  clearTimeout(slow);
  return url;
}

function memoryKib(pid, field) {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(status)[1]);
}

/** Fails if the proxy's peak memory during `work` leaves its level before. */
export async function flatMemory({ pid }, work) {
  const before = memoryKib(pid, 'VmRSS');
  // Resets the peak, so that an earlier one does not hide a new one (proc(5)).
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
  await work();
  const peak = memoryKib(pid, 'VmHWM');
  assert.ok(peak - before <= FLAT_KIB, `grown from ${before} to ${peak} KiB`);
}

/** How long `work` took, seconds, and what it gave. */
export async function timed(work) {
  const started = performance.now();
  const value = await work();
  return [(performance.now() - started) / 1000, value];
}

/** Waits until `isTrue` is; nothing takes so long where all is well. */
export async function eventually(isTrue) {
  const deadline = Date.now() + 20_000;
  while (!(await isTrue())) {
    assert.ok(Date.now() < deadline, 'it did not become true in time');
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
  }
}

/** What remains, from a function that reads a header. */
export function remaining(get) {
  for (const name of ['x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset']) {
    assert.match(String(get(name)), /^\d+$/, name);
  }
  const reset = Number(get('x-ratelimit-reset'));
  assert.ok(reset >= Math.floor(Date.now() / 1000) - 1, `reset ${reset} is past`);
  return Number(get('x-ratelimit-remaining'));
}

/** A denial's wait, seconds, as the header and the problem details agree on it. */
export function retryAfter(get, problem) {
  assert.match(String(get('retry-after')), /^[1-9]\d*$/);
  assert.equal(get('content-type'), 'application/problem+json');
  assert.equal(problem.status, 429);
  assert.match(problem.type, /#quota-exceeded$/);
  assert.ok(problem['violated-policies'].length > 0 && problem.request_id);
  assert.equal(problem.retry_after, Number(get('retry-after')));
  return problem.retry_after;
}

/** Every test's deadline. */
export const SOON = { timeout: 60_000 };
