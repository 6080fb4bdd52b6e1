// Limits, how much of them clients use, and the busiest clients.

import { get, offers } from './api.js';
import { Columns, SHARES } from './charts.js';
import {
  blockWord,
  brief,
  byId,
  count,
  exact,
  h,
  percent,
  plain,
  setAttr,
  setText,
  short,
  si,
  span,
  sync,
} from './dom.js';
import { fromAddress, setAddress } from './address.js';
import * as actions from './actions.js';
import { clientLink } from './client.js';
import { promoteButton } from './promote.js';
import { cells, tableOf } from './table.js';
import { ratesText, rateText, usedOf } from './units.js';

/** The number of clients that are shown at first, and after "more". */
const FEW = 8;
const MANY = 50;

/** What a limit counts, where that is neither requests nor the cost of a route. */
const COUNTED = {
  tokens: 'counts tokens',
  input: 'counts tokens of input',
  output: 'counts tokens of output',
  money: 'counts money',
};

const state = { limits: [], chosen: '', few: true, overrides: [], isSentTo: false };

/** The limit whose clients are shown. */
export const chosen = () => state.limits.find((limit) => limit.name === state.chosen);

/** What the limit of this name counts; undefined if it is not known. */
export const countsOf = (name) => state.limits.find((limit) => limit.name === name)?.counts;

export const names = () => state.limits.map((limit) => limit.name);

const table = tableOf('limits', 'Limits', [
  'Limit',
  'Rate',
  '#Allowed/s',
  '#Denied/s',
  'Clients by use',
  'Headroom',
]);

/** Takes the limit from the address, so that a link can lead to it. */
export function takeChoice() {
  const name = fromAddress('limit');
  if (name === null || name === state.chosen) return;
  state.chosen = name;
  // A page that is loaded again keeps its position.
  state.isSentTo = performance.getEntriesByType('navigation')[0]?.type !== 'reload';
}

export async function pollLimits() {
  const { limits } = await get('limits');
  state.limits = limits;
  if (!chosen()) {
    // An operator probably looks for the limit with the most denials.
    const denied = (limit) => limit.totals.denied;
    const most = limits.reduce((a, b) => (a && denied(a) >= denied(b) ? a : b), undefined);
    if (!chosen()) state.chosen = most?.name ?? '';
  }
  table.show(limits, {
    empty: 'This configuration has no limits: every request is allowed. Add [limit.default] to it.',
    key: (limit) => limit.name,
    create: limitRow,
    update: updateLimit,
  });
  setText(byId('limits-note'), limits.length ? count(limits.length, 'limit') : '');
  showUse();
  if (state.isSentTo) show();
}

function limitRow(limit) {
  const [name, rate, allowed, denied, use, room] = cells(table.columns);
  const choose = h('button', { type: 'button', class: 'name', text: limit.name });
  choose.addEventListener('click', () => select(limit.name));
  const tags = h('span', { class: 'tags' });
  const promote = h('span');
  const about = h('span', { class: 'about' });
  name.append(h('span', { class: 'titled' }, choose, tags, promote), about);
  const columns = new Columns();
  use.append(columns.element);
  const meter = h('span', { class: 'meter', 'aria-hidden': 'true' }, h('span'));
  const left = h('span', { class: 'num' });
  room.append(meter, left);
  const element = h('tr', { role: 'row' }, name, rate, allowed, denied, use, room);
  const numbers = { rate, allowed, denied, columns, meter, left, room };
  return { element, choose, tags, promote, about, ...numbers };
}

function updateLimit(row, limit) {
  const isChosen = limit.name === state.chosen;
  row.element.classList.toggle('chosen', isChosen);
  setAttr(row.choose, 'aria-pressed', isChosen);
  setText(row.rate, ratesText(limit.rates, limit.counts));
  setAttr(row.rate, 'title', resets(limit));
  const routes = limit.routes.length;
  const where = routes === 0 ? 'on no route' : `on ${count(routes, 'route')}`;
  const counts = COUNTED[limit.counts];
  setText(row.about, `by ${plain(limit.key)}${counts ? ` · ${counts}` : ''} · ${where}`);
  setAttr(
    row.about,
    'title',
    `Algorithm: ${limit.algorithm}. ${limit.routes.map((one) => plain(one)).join(', ')}`,
  );
  showTags(row.tags, limit);
  showPromotion(row.promote, limit);
  setText(row.allowed, si(limit.per_second.allowed));
  setAttr(row.allowed, 'title', `${exact(limit.totals.allowed)} since the start`);
  setText(row.denied, si(limit.per_second.denied));
  setAttr(row.denied, 'title', `${exact(limit.totals.denied)} since the start`);
  row.denied.classList.toggle('bad', limit.per_second.denied > 0);
  row.columns.draw(limit.use);
  const room = limit.headroom;
  setText(row.left, room === null || room === undefined ? 'all' : `${percent(room)} left`);
  const none = 'No client has used it in the last ten seconds';
  const fullest =
    'The part that is left to the client that used most of it in the last ten seconds';
  const words = room === null || room === undefined ? none : fullest;
  setAttr(row.room, 'title', words);
  const isKnown = room !== null && room !== undefined;
  const width = isKnown ? Math.max(0, Math.min(1, room)) * 100 : 100;
  row.meter.firstChild.style.setProperty('width', `${width.toFixed(1)}%`);
  row.meter.classList.toggle('low', isKnown && room < 0.1);
}

/** The ends of the calendar windows of a limit, in their zones. */
function resets(limit) {
  const ends = (limit.calendar ?? []).map(
    (one) => `${plain(one.unit)} in ${plain(one.zone)}: resets at ${plain(one.resets_at)}`,
  );
  return ends.join('; ');
}

function showTags(place, limit) {
  const tags = [];
  if (limit.mode === 'shadow') {
    const denied = limit.totals.shadow_denied;
    tags.push(['shadow', `It denies nothing; it would have denied ${exact(denied)} requests`]);
  }
  if (limit.candidate) {
    const { rates, denied } = limit.candidate;
    const words = ratesText(rates, limit.counts);
    tags.push([`candidate ${words}`, `It would have denied ${exact(denied ?? 0)} requests`]);
  }
  if (limit.waiting > 0) {
    const clients = (limit.waiting_clients ?? []).map(
      (one) => `${plain(one.id).slice(0, 8)} ${exact(one.waiting)}`,
    );
    const who = `Requests that it holds until they may pass, by client: ${clients.join(', ')}`;
    tags.push([`${si(limit.waiting)} waiting`, who]);
  }
  const { ban } = limit;
  if (ban) {
    const longer =
      ban.again > 1
        ? `, each further ban ${exact(ban.again)} times as long, up to ${span(ban.max_for_seconds)}`
        : '';
    const when = `${exact(ban.after)} denials in ${span(ban.window_seconds)}`;
    tags.push(['bans', `${when} ban a client for ${span(ban.for_seconds)}${longer}`]);
  }
  if (limit.delay_seconds) {
    const queue = exact(limit.delay_queue);
    const wait = limit.delay_seconds < 60 ? brief(limit.delay_seconds) : span(limit.delay_seconds);
    const text = `It holds a request for up to ${wait} instead of denying it`;
    tags.push(['delays', `${text}, ${queue} of one client at once`]);
  }
  const strict = 'It denies requests while the store is away';
  if (limit.on_error === 'deny') tags.push(['strict', strict]);
  const texts = JSON.stringify(tags);
  if (place.dataset.texts === texts) return;
  place.dataset.texts = texts;
  place.replaceChildren(...tags.map(([text, title]) => h('span', { class: 'tag', title, text })));
}

function showPromotion(place, limit) {
  const texts = JSON.stringify([limit.mode, limit.candidate?.rates]);
  if (place.dataset.texts === texts) return;
  place.dataset.texts = texts;
  place.replaceChildren(...[promoteButton(limit)].filter(Boolean));
}

function select(name) {
  state.chosen = name;
  setAddress({ limit: name });
  const limits = state.limits;
  limits.forEach((limit) => updateLimit(table.row(limit.name), limit));
  showUse();
  clientsTable.clear();
  setText(byId('message'), `Clients of ${name}`);
  reveal();
  pollClients().catch(() => {});
}

/** Scrolls to the clients of the chosen limit, and moves the focus there. */
function reveal() {
  byId('clients-title').focus({ preventScroll: true });
  show();
}

function show() {
  state.isSentTo = false;
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const card = byId('clients-title').closest('.card');
  card.scrollIntoView({ behavior: still ? 'auto' : 'smooth', block: 'start' });
}

/** Helps to choose a rate: how many clients use how much of the limit. */
function showUse() {
  const place = byId('use');
  const limit = chosen();
  const note = limit ? `of ${limit.name}` : '';
  setText(byId('clients-note'), note);
  byId('find').hidden = !limit;
  if (!limit) {
    const text = 'Without limits the proxy counts no client.';
    place.replaceChildren(h('p', { class: 'empty', text }));
    return;
  }
  const { use } = limit;
  if (!use?.clients) {
    const text = 'No client has used this limit yet. Later this shows how much of it clients use.';
    place.replaceChildren(h('p', { class: 'empty', text }));
    return;
  }
  const rows = [...SHARES.map((share) => [share, use[share.name]])];
  let list = place.querySelector('dl.use');
  if (!list) {
    place.replaceChildren(
      h('h3', { text: 'How much of it they use' }),
      (list = h('dl', { class: 'use' })),
      h('p', { class: 'advice' }),
    );
  }
  const items = rows.map(([share, clients]) => ({ name: share.words, clients, kind: share.name }));
  items.push({ name: 'denied', clients: use.denied, kind: 'denied' });
  const all = Math.max(use.clients, 1);
  sync(list, items, {
    key: (item) => item.kind,
    create: (item) => useRow(item),
    update: (row, item) => {
      const share = Math.min(1, item.clients / all);
      setText(row.number, exact(item.clients));
      setText(row.share, percent(share));
      row.bar.style.setProperty(
        'width',
        `${Math.max(share * 100, item.clients ? 0.8 : 0).toFixed(1)}%`,
      );
    },
  });
  setText(place.querySelector('.advice'), advice(limit));
}

function useRow(item) {
  const bar = h('span', { class: `fill ${item.kind}` });
  const number = h('span', { class: 'num' });
  const share = h('span', { class: 'num faint' });
  const term = h('dt', { text: item.name });
  const value = h(
    'dd',
    {},
    h('span', { class: 'track', 'aria-hidden': 'true' }, bar),
    number,
    share,
  );
  return { element: h('div', { class: 'use-row' }, term, value), bar, number, share };
}

/** The distribution as a sentence that helps to choose a rate. */
function advice(limit) {
  const { use } = limit;
  const rate = limit.rates.length ? rateText(limit.rates[0], limit.counts) : 'it';
  const below = use.q25 + use.q50 + use.q75;
  if (use.q75 + use.q100 + use.denied === 0) {
    const half = use.q50 === 0 ? 'a quarter' : 'half';
    const enough = `${half} of it would be enough for all`;
    return `No client uses more than ${half} of ${rate}: ${enough}.`;
  }
  const over = use.clients - use.q25 - use.q50;
  const denied = `about ${exact(over)} of ${count(use.clients, 'client')} would be denied`;
  const text = `At half of ${rate}, ${denied}`;
  const near = `${percent(below / use.clients)} keep a quarter of it free`;
  return `${text}; ${near}.`;
}

const clientsTable = tableOf('clients', 'Clients with the most requests', [
  'Client',
  '#Requests',
  '#Denied',
  '#Used',
  'Share',
  'Actions',
]);

export async function pollClients() {
  const limit = chosen();
  if (!limit) {
    clientsTable.clear();
    return;
  }
  const path = `limits/${encodeURIComponent(limit.name)}/clients?top=${MANY}`;
  const { clients } = await get(path);
  if (limit.name !== state.chosen) return;
  showMore(clients.length);
  clientsTable.show(state.few ? clients.slice(0, FEW) : clients, {
    empty: 'No client has sent a request yet.',
    key: (client) => `${limit.name} ${client.id}`,
    create: (client) => clientRow(limit, client),
    update: updateClient,
    calm: true,
  });
}

function showMore(clients) {
  const more = byId('more');
  more.hidden = clients <= FEW;
  setText(more, state.few ? `Show ${clients}` : `Show ${FEW}`);
  more.onclick ??= () => {
    state.few = !state.few;
    pollClients().catch(() => {});
  };
}

function clientRow(limit, client) {
  const [who, requests, denied, used, uses, acts] = cells(clientsTable.columns);
  const text = client.key ?? short(client.id);
  const key = h('bdi', { class: 'key', text: plain(text, 80) });
  const name = offers('clients/{key}') ? clientLink(client.id, key) : key;
  const title = client.key
    ? `${plain(text)}, ${client.id} in logs`
    : `${client.id}, as logs show it`;
  setAttr(who, 'title', title);
  const mark = h('span', { class: 'tags' });
  who.append(name, mark);
  const meter = h('span', { class: 'meter', 'aria-hidden': 'true' }, h('span'));
  const share = h('span', { class: 'num' });
  uses.append(meter, share);
  const { rates, counts } = limit;
  const subject = { limit: limit.name, rates, counts, id: client.id, name: plain(text, 80) };
  setAttr(used, 'title', 'After its last request, of the rate that it used most');
  acts.append(actions.buttons(subject));
  const element = h('tr', { role: 'row' }, who, requests, denied, used, uses, acts);
  return { element, mark, requests, denied, used, counts, meter, share };
}

function updateClient(row, client) {
  setText(row.requests, si(client.requests));
  setText(row.denied, si(client.denied));
  row.denied.classList.toggle('bad', client.denied > 0);
  setText(row.share, percent(client.share));
  setText(row.used, client.units ? usedOf(client.used, client.units, row.counts) : '–');
  const share = Math.min(1, client.share ?? 0);
  row.meter.firstChild.style.setProperty('width', `${(share * 100).toFixed(1)}%`);
  const records = state.overrides.filter((one) => one.id === client.id);
  const mine = records.filter((one) => one.kind === 'block' || one.limit === state.chosen);
  const tags = mine.map((one) => (one.kind === 'block' ? blockWord(one) : plain(one.rate, 24)));
  const joined = tags.join();
  if (row.mark.dataset.texts === joined) return;
  row.mark.dataset.texts = joined;
  row.mark.replaceChildren(...tags.map((text) => h('span', { class: 'tag', text })));
}

/** Sets the overrides and blocks, so that their clients are marked. */
export function setOverrides(overrides) {
  state.overrides = overrides;
}
