// The language server of the VS Code extension "Even Better TOML", asked as an editor asks it. The
// extension runs the same package, and passes the same messages to it.

import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const modules = createRequire(path.join(process.env.EDITOR_MODULES, 'package.json'));
const { TaploLsp } = modules('@taplo/lsp');

/** Nothing leaves the machine: the server would fetch a catalog of schemas. */
async function offline() {
  throw new Error('offline');
}

function environment(folder) {
  return {
    cwd: () => folder,
    envVar: () => undefined,
    envVars: () => [],
    findConfigFile: () => undefined,
    glob: () => [],
    isAbsolute: (name) => path.isAbsolute(name),
    now: () => new Date(),
    readFile: (name) => fs.promises.readFile(name),
    writeFile: (name, content) => fs.promises.writeFile(name, content),
    stderr: { write: () => true },
    stdErrAtty: () => false,
    stdin: process.stdin,
    stdout: process.stdout,
    urlToFilePath: (url) => decodeURIComponent(url).slice('file://'.length),
    fetch: { fetch: offline, Headers, Request, Response },
  };
}

export class Editor {
  #server;
  #lastId = 0;
  #answers = new Map();
  #published = new Map();

  /** An editor with this folder open. */
  static async open(folder) {
    const editor = new Editor();
    editor.folder = folder;
    const onMessage = (message) => editor.#receive(message);
    editor.#server = await TaploLsp.initialize(environment(folder), { onMessage });
    const workspaceFolders = [{ uri: `file://${folder}`, name: 'folder' }];
    await editor.#ask('initialize', { processId: null, capabilities: {}, workspaceFolders });
    editor.#send({ method: 'initialized', params: {} });
    return editor;
  }

  close() {
    this.#server.dispose();
  }

  #send(message) {
    this.#server.send({ jsonrpc: '2.0', ...message });
  }

  #receive(message) {
    if (message.method === 'textDocument/publishDiagnostics') {
      this.#published.get(message.params.uri)?.(message.params.diagnostics);
    } else if (message.method && message.id !== undefined) {
      // It asks for the settings of the extension: none is changed.
      this.#send({ id: message.id, result: (message.params.items ?? []).map(() => null) });
    } else {
      this.#answers.get(message.id)?.(message);
    }
  }

  async #ask(method, params) {
    const id = ++this.#lastId;
    const answer = new Promise((resolve) => this.#answers.set(id, resolve));
    this.#send({ id, method, params });
    const { error, result } = await answer;
    if (error) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  /** Shows a text as the folder's proxy.toml. Returns the mistakes that it marks. */
  async show(text) {
    const uri = `file://${this.folder}/proxy.toml`;
    // It publishes three times: mistakes of syntax, of the document, of the schema. It stops at the
    // first ones that it finds.
    const mistakes = new Promise((resolve) => {
      let times = 0;
      this.#published.set(uri, (found) => {
        times += 1;
        if (found.length > 0 || times === 3) resolve(found);
      });
    });
    const textDocument = { uri, languageId: 'toml', version: 1, text };
    this.#send({ method: 'textDocument/didOpen', params: { textDocument } });
    return mistakes;
  }

  /** Asks about a place in the text that is shown: lines and characters count from 0. */
  async #askAt(method, line, character) {
    const textDocument = { uri: `file://${this.folder}/proxy.toml` };
    return this.#ask(method, { textDocument, position: { line, character } });
  }

  /** What it offers where `|` is in a text: labels, and the description of each. */
  async completions(marked) {
    const at = marked.indexOf('|');
    await this.show(marked.slice(0, at) + marked.slice(at + 1));
    const before = marked.slice(0, at).split('\n');
    const place = [before.length - 1, before.at(-1).length];
    const offered = await this.#askAt('textDocument/completion', ...place);
    return new Map((offered ?? []).map((one) => [one.label, one.documentation?.value ?? '']));
  }

  /** What it shows while the mouse is there. */
  async hover(line, character) {
    const shown = await this.#askAt('textDocument/hover', line, character);
    return (shown?.contents.value ?? '').trim();
  }
}
