// What an editor makes of the schema of proxy.toml.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { MISTAKES, NOT_MARKED } from './mistakes.mjs';
import { Editor } from './server.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DIRECTIVE = '#:schema ./proxy.schema.json\n';
/** A file with names; the schema is made for it. */
const NAMED = `[limit.client]
rate = "10/s"
tiers = { pro = "20/s" }
[limit.login]
rate = "5/min"
[upstream.api]
servers = "http://127.0.0.1:3000"
`;

let folder;
let editor;

function tidegate(...words) {
  return execFileSync(process.env.TIDEGATE, words, { cwd: folder, encoding: 'utf8' });
}

before(async () => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'editor-'));
  fs.writeFileSync(path.join(folder, 'named.toml'), NAMED);
  fs.writeFileSync(path.join(folder, 'proxy.schema.json'), tidegate('schema', 'named.toml'));
  editor = await Editor.open(folder);
});

after(() => {
  editor.close();
  fs.rmSync(folder, { recursive: true });
});

/** Where a text is marked: lines of the text, and messages. A table is marked at each of its keys. */
async function marked(text) {
  const found = await editor.show(DIRECTIVE + text);
  return found.map(({ range, message }) => ({ line: range.start.line, message }));
}

test('each mistake is marked on its line, with what is right', async () => {
  const wrong = [];
  for (const [text, line, message] of MISTAKES) {
    const found = await marked(text);
    const first = found[0];
    const isOnlyOne = found.every((one) => one.message === message);
    if (!isOnlyOne || first?.line !== line) wrong.push({ text, line, message, found });
  }
  assert.deepEqual(wrong, []);
});

test('what only `tidegate check` knows is not marked', async () => {
  for (const text of NOT_MARKED) assert.deepEqual(await marked(text), [], text);
});

async function offered(text) {
  return [...(await editor.completions(DIRECTIVE + text)).keys()];
}

test('names of limits, upstreams and tiers are offered where names go', async () => {
  const limits = ['"client"', '"login"'];
  const route = '[[route]]\npath = "/a"\n[[route]]\npath = "/*"\n';
  assert.deepEqual(await offered(`${route}limits = |\n`), limits);
  assert.deepEqual(await offered(`${route}limits = [|]\n`), limits);
  assert.deepEqual(await offered(`${route}limits = ["client", |]\n`), limits);
  assert.deepEqual(await offered(`${route}upstream = |\n`), ['"api"']);
  assert.deepEqual(await offered('[tier]\ndefault = |\n'), ['"pro"']);
});

test('keys, words and tables are offered', async () => {
  const limit = await editor.completions(`${DIRECTIVE}[limit.a]\n|\n`);
  assert.ok(limit.get('rate').startsWith('COUNT/WINDOW'), limit.get('rate'));
  for (const [key, about] of limit) assert.notEqual(about, '', key);
  assert.deepEqual(await offered('[limit.a]\non_error = |\n'), ['"local"', '"allow"', '"deny"']);
  assert.deepEqual((await offered('[limit.a]\nkey = |\n')).slice(0, 2), ['"ip"', '"api_key"']);
  const lists = ['bypass', 'descriptor', 'route', 'tls.certificates'];
  assert.deepEqual((await offered('[[|]]\n')).sort(), lists);
  const tables = await offered('[|]\n');
  for (const one of ['limit', 'server', 'store.tls', 'upstream']) assert.ok(tables.includes(one), one);
});

test('each key of the reference shows its description', async () => {
  const reference = fs.readFileSync(path.join(ROOT, 'proxy.reference.toml'), 'utf8');
  await editor.show(DIRECTIVE + reference);
  const missing = [];
  let keys = 0;
  for (const [at, line] of reference.split('\n').entries()) {
    // Keys that the reference sets; others are behind a `#`.
    if (!/^[a-z0-9_]+ *=/.test(line)) continue;
    keys += 1;
    const shown = await editor.hover(at + 1, 1);
    const about = line.split('# ').at(-1).trim();
    if (!shown.startsWith(about.slice(0, 30))) missing.push({ line, shown });
  }
  assert.ok(keys > 60, `${keys} keys`);
  assert.deepEqual(missing, []);
});

/** Blocks of TOML in the documentation that are a proxy.toml or a part of one. */
function examples() {
  const names = fs.readdirSync(path.join(ROOT, 'docs'), { recursive: true });
  const pages = names.filter((name) => name.endsWith('.md')).map((name) => `docs/${name}`);
  const found = [];
  // diagnostics.md shows mistakes on purpose.
  for (const page of ['README.md', ...pages].filter((name) => !name.endsWith('diagnostics.md'))) {
    const text = fs.readFileSync(path.join(ROOT, page), 'utf8');
    for (const [, block] of text.matchAll(/```toml\n(.*?)```/gs)) {
      const file = /^# (\S+\.toml)\n/.exec(block)?.[1] ?? 'proxy.toml';
      if (file === 'proxy.toml') found.push([page, block]);
    }
  }
  return found;
}

test('files and examples are not marked', async () => {
  const files = ['proxy.toml', 'proxy.reference.toml'];
  const whole = files.map((name) => [name, fs.readFileSync(path.join(ROOT, name), 'utf8')]);
  const all = [...whole, ...examples()];
  assert.ok(all.length > 40, `${all.length} texts`);
  const wrong = [];
  for (const [name, text] of all) {
    // A part may leave out what its section must have.
    const found = (await marked(text)).filter(
      ({ message }) => files.includes(name) || !message.endsWith('is a required property'),
    );
    if (found.length > 0) wrong.push({ name, text, found });
  }
  assert.deepEqual(wrong, []);
});

test('`taplo lint` passes what `tidegate init` writes, and reports a mistake', () => {
  const taplo = path.join(process.env.EDITOR_MODULES, 'node_modules/.bin/taplo');
  const lint = (name) => {
    const words = ['lint', '--no-auto-config', '--colors=never', name];
    return spawnSync(taplo, words, { cwd: path.join(folder, 'new'), encoding: 'utf8' });
  };
  fs.mkdirSync(path.join(folder, 'new'));
  tidegate('init', '--schema', 'new/proxy.toml');
  const good = lint('proxy.toml');
  assert.equal(good.status, 0, good.stderr);
  const text = fs.readFileSync(path.join(folder, 'new/proxy.toml'), 'utf8');
  fs.writeFileSync(path.join(folder, 'new/bad.toml'), text.replace('rate = "5/min"', 'rat = "5/min"'));
  const bad = lint('bad.toml');
  assert.notEqual(bad.status, 0);
  assert.ok(bad.stderr.includes('"rate" is a required property'), bad.stderr);
});
