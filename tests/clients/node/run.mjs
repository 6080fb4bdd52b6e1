// Runs every node/*.test.mjs under node's own test runner, one file after the other (they measure
// time), and ends with one line like the Python half's.

import { readdirSync } from 'node:fs';
import { run } from 'node:test';
import { fileURLToPath } from 'node:url';

const started = Date.now();
const folder = fileURLToPath(new URL('.', import.meta.url));
const files = readdirSync(folder).filter((name) => name.endsWith('.test.mjs')).sort();
const counts = { passed: 0, failed: 0 };

/** A file is itself reported as a test around its tests; only what fails outside them counts. */
function isFile({ name }) {
  return name.endsWith('.test.mjs');
}

function fail(event) {
  const error = event.details.error;
  if (isFile(event) && error?.failureType === 'subtestsFailed') return;
  counts.failed += 1;
  console.log(`FAIL  ${event.name}`);
  console.log((error?.cause?.stack ?? error?.cause ?? error?.stack ?? String(error)) + '\n');
}

const stream = run({ files: files.map((name) => folder + name), concurrency: 1 });
stream.on('test:fail', fail);
stream.on('test:pass', (event) => {
  if (isFile(event)) return;
  counts.passed += 1;
  console.log(`ok    ${event.name}  (${(event.details.duration_ms / 1000).toFixed(1)} s)`);
});
stream.on('test:stderr', (event) => process.stderr.write(event.message));
stream.on('test:diagnostic', () => {});
stream.resume();
stream.on('end', () => {
  const seconds = ((Date.now() - started) / 1000).toFixed(1);
  console.log(`node: ${counts.passed} passed, ${counts.failed} failed in ${seconds} s`);
  process.exitCode = counts.failed > 0 || counts.passed === 0 ? 1 : 0;
});
