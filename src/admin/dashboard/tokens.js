// Tokens of model servers, by route: what answers reported in the last minute, how calls ended, and
// how good the estimates are.

import { byId, exact, h, percent, plain, setAttr, setText, si, span } from './dom.js';
import { cells, tableOf } from './table.js';

const CLASSES = ['input', 'cached', 'cache_write', 'output'];
/** What each outcome of a call means, in the order of the API. */
const OUTCOMES = {
  exact: 'the answer said its usage',
  missing: 'the answer said none',
  aborted: 'the client left before the end',
  drained: 'the client left, and the proxy read the rest',
  refunded: 'the status gave all units back',
  encoded: 'the proxy cannot read the compression',
};
/** An estimate below the actual usage lets clients overdraw a budget. */
const ABOVE = 1;

const table = tableOf('tokens', 'Tokens by route, in the last minute', [
  'Route',
  '#Input',
  '#Cached',
  '#Cache writes',
  '#Output',
  '#Actual / estimate',
  'Calls',
]);

/** Shows the usage of the routes that have it. Without such a route the part is hidden. */
export function showTokens({ routes, seconds }) {
  const counted = routes.filter((one) => one.usage);
  byId('tokens').closest('.card').hidden = counted.length === 0;
  if (counted.length === 0) return;
  table.show(counted, {
    empty: '',
    key: (one) => one.name,
    create: tokenRow,
    update: updateTokens,
    calm: true,
  });
  const ratio = 'Actual / estimate is the mean share of its reserve that an answer used';
  setText(byId('tokens-note'), `in the last ${span(seconds)}. ${ratio}.`);
}

function tokenRow(one) {
  const [name, ...numbers] = cells(table.columns);
  const about = h('span', { class: 'about' });
  name.append(h('strong', { text: plain(one.name, 80) }), about);
  const calls = numbers.pop();
  const ratio = numbers.pop();
  return { element: h('tr', { role: 'row' }, name, numbers, ratio, calls), numbers, ratio, calls };
}

function updateTokens(row, { usage }) {
  CLASSES.forEach((name, index) => {
    const count = usage.tokens[name] ?? 0;
    setText(row.numbers[index], si(count));
    setAttr(row.numbers[index], 'title', `${exact(count)} tokens`);
  });
  const ratio = usage.estimate_ratio;
  setText(row.ratio, percent(ratio));
  row.ratio.classList.toggle('bad', ratio > ABOVE);
  const ended = Object.keys(OUTCOMES).filter((name) => usage.outcomes[name] > 0);
  const texts = ended.map((name) => `${exact(usage.outcomes[name])} ${name}`);
  setText(row.calls, texts.join(', ') || 'none');
  const meanings = ended.map((name) => `${name}: ${OUTCOMES[name]}`);
  setAttr(row.calls, 'title', meanings.join('; ') || null);
}
