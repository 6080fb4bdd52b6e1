// Usage for billing: what each client used, by day or in all, from the ledger. It is read when an
// operator asks, because a ledger may be large.

import { get, offers } from './api.js';
import { byId, count, exact, h, plain, setText, span } from './dom.js';
import { cells, tableOf } from './table.js';
import { money } from './units.js';

/** The number of rows that are shown at first, and after "more". */
const FEW = 20;
const MANY = 500;

const KINDS = {
  unknown: 'requests without a known identity',
  other: 'clients beyond max_clients of [ledger]',
};

const state = { answer: null, few: true };

const table = tableOf('usage', 'Usage of clients', ['Client', '#Requests', '#Tokens', '#Money']);

/** Shows the card if the proxy has a ledger. */
export function setLedger(report) {
  const card = byId('usage').closest('.card');
  card.hidden = !report || !offers('usage');
  const lag = report?.lag_seconds ?? 0;
  setText(byId('usage-lag'), lag < 2 ? '' : `The store lacks the last ${span(lag)} of usage.`);
}

export function startLedger(showMessage) {
  byId('usage-form').addEventListener('submit', (event) => {
    event.preventDefault();
    read().catch((error) => showMessage(`The usage cannot be read: ${plain(error.message, 300)}`));
  });
  byId('usage-csv').addEventListener('click', download);
  byId('more-usage').addEventListener('click', () => {
    state.few = !state.few;
    show();
  });
}

async function read() {
  const [from, to, by] = ['usage-from', 'usage-to', 'usage-by'].map((id) => byId(id).value);
  const given = Object.entries({ from, to, by }).filter(([, value]) => value);
  state.answer = await get(`usage?${new URLSearchParams(given)}`);
  state.few = true;
  byId('usage-from').value = state.answer.from;
  byId('usage-to').value = state.answer.to;
  show();
}

const nameOf = (row) => row.day ?? row.month ?? row.client ?? '';

function show() {
  const { rows, total, from, to, zone } = state.answer;
  const isByClient = rows.some((row) => row.client !== null);
  const sorted = isByClient ? [...rows].sort((a, b) => b.requests - a.requests) : rows;
  const shown = sorted.slice(0, state.few ? FEW : MANY);
  const all = { ...total, client: 'all', kind: 'all' };
  table.show(rows.length > 1 ? [all, ...shown] : shown, {
    empty: 'No client used anything on these days.',
    key: (row) => `${row.kind} ${nameOf(row)}`,
    create: usageRow,
    update: updateUsage,
    calm: true,
  });
  const more = byId('more-usage');
  more.hidden = rows.length <= FEW;
  setText(more, state.few ? `Show ${Math.min(rows.length, MANY)}` : `Show ${FEW}`);
  const what = isByClient ? count(rows.length, 'client') : count(rows.length, 'day');
  setText(byId('usage-note'), `${what}, ${from} to ${to} in ${plain(zone)}`);
  byId('usage-csv').hidden = rows.length === 0;
}

function usageRow(row) {
  const [name, ...numbers] = cells(table.columns);
  name.append(h('strong', { text: plain(nameOf(row), 80) }));
  if (KINDS[row.kind]) name.append(h('span', { class: 'about', text: KINDS[row.kind] }));
  return { element: h('tr', { role: 'row' }, name, numbers), numbers };
}

function updateUsage(shown, row) {
  const counts = (name) => state.answer.counts.includes(name);
  const texts = [
    counts('requests') ? exact(row.requests) : '–',
    counts('tokens') ? exact(row.tokens) : '–',
    counts('money') ? money(row.money) : '–',
  ];
  texts.forEach((text, index) => setText(shown.numbers[index], text));
}

/** A cell of CSV. A name that begins as a formula of a spreadsheet is text. */
function cell(given) {
  const value = String(given).replace(/\p{Cc}/gu, '\ufffd');
  const text = /^[=+\-@]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The columns and units of `tidegate usage --csv`. */
function download() {
  const { rows, from, to, by } = state.answer;
  const columns = by.flatMap((name) => (name === 'client' ? ['client', 'kind'] : [name]));
  const names = [...columns, 'requests', 'tokens', 'money'];
  const line = (row) => names.map((name) => row[name] ?? '');
  const decimal = (row) => ({ ...row, money: (row.money / 1e6).toFixed(6) });
  const lines = [names, ...rows.map((row) => line(decimal(row)))];
  const text = lines.map((texts) => texts.map(cell).join(',')).join('\r\n');
  const href = URL.createObjectURL(new Blob([`${text}\r\n`], { type: 'text/csv' }));
  h('a', { href, download: `usage-${from}-${to}.csv` }).click();
  URL.revokeObjectURL(href);
}
