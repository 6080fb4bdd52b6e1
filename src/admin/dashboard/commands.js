// The command lines that do what the buttons do, and the buttons that copy them.

import { h, setText } from './dom.js';

let file = null;
let admin = null;
let onCopied = () => {};

/** The proxy's `config`. Commands name its file, so that they work in any folder. If the file does
 * not name the admin, commands do. */
export function setConfig(config) {
  file = config.file;
  admin = config.names_admin === false ? location.host : null;
}

/** Called with a message about each copy. */
export function whenCopied(listener) {
  onCopied = listener;
}

const isSafe = (word) => /^[\w.,:/=@%+-]+$/.test(word);
const quoted = (word) => (isSafe(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);

/** `tidegate limits`, for an action on a client. `terms`: `rate`, `lasts`, `note`, `remove`. */
export function commandLine(action, subject, terms = {}) {
  const words = ['tidegate', 'limits', action];
  if (action !== 'block') words.push(subject.limit);
  words.push(subject.id ? `tag=${subject.id}` : subject.key);
  if (action === 'override' && !terms.remove) words.push(terms.rate || 'RATE');
  if (terms.remove) words.push('--remove');
  if (terms.lasts) words.push('--for', terms.lasts);
  if (terms.note) words.push('--note', terms.note);
  return quotedWords([...words, ...placeWords()]);
}

/** The options that name this proxy. */
export function placeWords() {
  return [...(file ? ['-c', file] : []), ...(admin ? ['--admin', admin] : [])];
}

export function quotedWords(words) {
  return words.map(quoted).join(' ');
}

/** A button that copies the text of `source`. `about` names the text for screen readers. */
export function copyButton(source, about, text = 'Copy') {
  const label = { 'aria-label': `Copy ${about}`, text };
  const button = h('button', { type: 'button', class: 'quiet copy', ...label });
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      onCopied(`Copied ${about}.`);
    } catch {
      // Browsers allow copies only on secure addresses.
      getSelection().selectAllChildren(source);
      onCopied('This browser does not allow a copy here. The text is selected: copy it by hand.');
    }
  });
  return button;
}

/** A line of code with its button. `set` changes its text. */
export function codeLine(text, about) {
  const code = h('code', { text });
  const element = h('div', { class: 'command' }, code, copyButton(code, about));
  return { element, set: (next) => setText(code, next) };
}
