// The patch of proxy.toml that enforces a limit in shadow mode, or a candidate rate.

import { get, offers } from './api.js';
import { open, reload, showMessage, signIn, errorText } from './actions.js';
import { copyButton } from './commands.js';
import { actButton, byId, clock, exact, h, percent, plain } from './dom.js';

const TITLES = { shadow: 'Enforce the limit', candidate: 'Enforce the candidate rate' };

/** A button for a limit that can be promoted; null for others. */
export function promoteButton(limit) {
  const isTried = limit.mode === 'shadow' || limit.candidate;
  if (!isTried || !offers('limits/{name}/promotions')) return null;
  const label = `Promote ${plain(limit.name, 60)}`;
  return actButton('Promote', () => promote(limit.name), label);
}

async function promote(name) {
  try {
    const answer = await get(`limits/${encodeURIComponent(name)}/promotions`);
    const parts = answer.promotions.flatMap((one) => promotion(one));
    if (parts.length === 0)
      parts.push(h('p', { text: 'The limit is enforced, and has no candidate.' }));
    const loaded = clock(answer.loaded_at);
    const where = `${plain(answer.file, 300)}, as the proxy loaded it at ${loaded}`;
    const apply = 'Apply it with `git apply` or `patch` in the folder of the file, then reload.';
    const note = `The patch is for ${where}. ${apply}`;
    const go = h('button', { type: 'button', class: 'primary', text: 'Reload' });
    go.addEventListener('click', reload);
    const buttons = h('div', { class: 'buttons' }, offers('reload') && go);
    open(`Promote ${plain(name, 60)}`, ...parts, h('p', { class: 'faint', text: note }), buttons);
    byId('dialog').classList.add('wide');
  } catch (error) {
    if (error.status === 401) signIn(() => promote(name), error.message);
    else showMessage(`${plain(name, 60)}: ${errorText(error)}.`);
  }
}

function promotion(one) {
  const all = one.allowed + one.denied;
  const share = all ? `, ${percent(one.denied / all)}` : '';
  const effect = `It would have denied ${exact(one.denied)} of ${exact(all)} requests${share}.`;
  const title = h('h3', { text: TITLES[one.what] ?? plain(one.what, 40) });
  const about = h('p', { text: effect });
  if (one.patch === null) {
    const text =
      'The file has this limit in a form that the proxy cannot patch: change it by hand.';
    return [title, about, h('p', { class: 'failed', text })];
  }
  const lines = one.patch
    .split('\n')
    .map((line) => h('span', { class: kind(line), text: `${line}\n` }));
  lines.pop();
  const patch = h('pre', { class: 'code patch', tabindex: 0 }, lines);
  return [title, about, patch, h('div', { class: 'buttons' }, copyButton(patch, 'the patch'))];
}

const kind = (line) => ({ '+': 'added', '-': 'removed' })[line[0]] ?? null;
