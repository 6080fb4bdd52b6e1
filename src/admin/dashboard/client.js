// One client: what it used of each limit in the last quarter of an hour, its denials, its override
// and block, and the actions with their command lines.

import { get } from './api.js';
import * as actions from './actions.js';
import { addressWith, fromAddress, link, setAddress } from './address.js';
import { codeLine, commandLine, copyButton } from './commands.js';
import { actButton, byId, clock, h, plain, setText, short, span, sync } from './dom.js';
import { explainDenial } from './explain.js';
import { moment } from './moment.js';
import { Timeline, timelineTable } from './timeline.js';
import { ratesText } from './units.js';

/** Denials of the client that are shown. */
const DENIALS = 20;

const state = { id: null, found: null, firstLimit: () => '' };
const address = h('code', { class: 'hidden' });

/** A link to the page of a client. */
export function clientLink(id, content, props = {}) {
  const title = `${plain(id, 40)}: timeline and actions`;
  const element = link({ client: id }, { ...props, title }, content);
  element.addEventListener('click', () => {
    if (id === state.id) reveal();
  });
  return element;
}

export function startClient(firstLimit) {
  state.firstLimit = firstLimit;
  byId('client-tools').prepend(
    address,
    copyButton(address, 'the link to this client', 'Copy the link'),
  );
  byId('client-close').addEventListener('click', close);
  byId('search').addEventListener('submit', (event) => {
    event.preventDefault();
    const word = byId('search-word').value.trim();
    if (word) search(word);
  });
  takeClient();
}

/** Takes the client from the address. */
export function takeClient() {
  const id = fromAddress('client');
  if (id === state.id) return;
  if (id === null) close();
  else show(id);
}

/** Finds clients by a key, a hash, an address or the id of a denied request. */
async function search(word) {
  try {
    const { clients } = await get(`clients/${encodeURIComponent(word)}`);
    if (clients.length === 1) showFound(clients[0]);
    else offerClients(word, clients);
  } catch (error) {
    if (error.status === 401) actions.signIn(() => search(word), error.message);
    else actions.showMessage(`${plain(word, 60)}: ${actions.errorText(error)}.`);
  }
}

function offerClients(word, clients) {
  const rows = clients.map((client) => {
    const limits = client.limits.map((one) => plain(one.limit, 60)).join(', ');
    const button = actButton(short(client.id), () => {
      byId('dialog').close();
      showFound(client);
    });
    return h('li', {}, button, ` by ${plain(client.key)}, limits: ${limits}`);
  });
  const note = 'The word fits limits with different keys. Each key is a client of its own.';
  actions.open(plain(word, 60), h('p', { text: note }), h('ul', { class: 'facts' }, rows));
}

/** A client may be unknown by its hash, and then only the search tells which limits count it. */
function showFound(client) {
  state.found = client;
  show(client.id);
}

function show(id) {
  state.id = id;
  setAddress({ client: id });
  setText(address, addressWith({ client: id }));
  setText(byId('client-title'), `Client ${short(id)}`);
  setText(byId('client-about'), '');
  for (const place of ['client-limits', 'client-terms', 'client-denials']) {
    sync(byId(place), [], { key: String, create: null, update: null });
  }
  byId('client').hidden = false;
  pollClient();
  reveal();
}

function reveal() {
  byId('client-title').focus({ preventScroll: true });
  byId('client').scrollIntoView({ block: 'start' });
}

function close() {
  state.id = null;
  setAddress({ client: null });
  byId('client').hidden = true;
  byId('main').focus({ preventScroll: true });
}

export async function pollClient() {
  const { id } = state;
  if (id === null) return;
  const at = moment();
  const until = at === null ? '' : `&until=${at + 1}`;
  const key = encodeURIComponent(id);
  try {
    const [found, denied] = await Promise.all([
      get(`clients/${key}?by=id`),
      get(`denials?key=${key}${until}`),
    ]);
    if (state.id === id) draw(withFound(found.clients[0]), denied.denials.slice(0, DENIALS));
  } catch (error) {
    if (state.id === id) setText(byId('client-about'), `Not read: ${actions.errorText(error)}.`);
  }
}

function withFound(client) {
  const { found } = state;
  if (found?.id !== client.id) return client;
  const names = new Set(client.limits.map((one) => one.limit));
  const others = found.limits.filter((one) => !names.has(one.limit));
  return { ...client, key: client.key || found.key, limits: [...client.limits, ...others] };
}

function draw(client, denials) {
  if (state.id !== client.id) {
    state.id = client.id;
    setAddress({ client: client.id });
  }
  const key = client.key ? `Known by ${plain(client.key)}. ` : '';
  setText(byId('client-about'), `${key}Its hash in logs is ${client.id}.`);
  sync(byId('client-limits'), client.limits, {
    key: (one) => one.limit,
    create: (one) => limitPart(client, one),
    update: updateLimit,
  });
  const own = client.limits.map((one) => one.override);
  const terms = [client.block, ...own].filter((one) => one);
  sync(byId('client-terms'), terms, {
    key: (one) => JSON.stringify([one.what, one.limit, one.rates, one.until]),
    create: (one) => term(client, { ...one, counts: countsOf(client, one.limit) }),
    update: () => {},
  });
  sync(byId('client-denials'), denials, {
    key: (one) => `${one.request_id} ${one.limit}`,
    create: denial,
    update: () => {},
  });
  byId('client-no-limit').hidden = client.limits.length > 0;
  byId('client-no-terms').hidden = terms.length > 0;
  byId('client-no-denials').hidden = denials.length > 0;
  drawBlock(client);
}

const subjectOf = (client, { limit, rates, counts }) => ({
  limit,
  rates,
  counts,
  id: client.id,
  name: short(client.id),
});

const countsOf = (client, limit) => client.limits.find((one) => one.limit === limit)?.counts;

/** A block applies to all limits. The API takes it under the name of any limit. */
function drawBlock(client) {
  const place = byId('client-block');
  if (place.dataset.id === client.id) return;
  place.dataset.id = client.id;
  const limit = client.limits[0]?.limit ?? state.firstLimit();
  const subject = subjectOf(client, { limit });
  place.replaceChildren(
    ...actions.clientActions(subject, ['block']).map((action) => actionRow(action, subject)),
  );
}

function actionRow(action, subject) {
  const about = `the command line: ${action.name} ${subject.name}`;
  const line = codeLine(commandLine(action.name, subject, action.terms), about);
  return h('div', { class: 'action' }, action.button, line.element);
}

function limitPart(client, one) {
  const subject = subjectOf(client, one);
  const timeline = new Timeline(one.counts);
  const usage = h('ul', { class: 'facts' });
  const table = h('div', { class: 'scroll tall', tabindex: 0, role: 'region' });
  table.setAttribute('aria-label', `Timeline of ${plain(one.limit, 60)}`);
  const more = h('details', {}, h('summary', { text: 'As a table' }), table);
  const note = one.mode === 'shadow' ? ', in shadow mode' : '';
  const rates = ratesText(one.rates, one.counts);
  const title = `${plain(one.limit, 60)}: ${rates}${note}`;
  const list = actions.clientActions(subject, ['reset', 'override']);
  const rows = list.map((action) => actionRow(action, subject));
  const parts = [usage, timeline.element, more, ...rows];
  const element = h('article', { class: 'of-limit' }, h('h3', { text: title }), parts);
  return { element, timeline, usage, table };
}

function updateLimit(row, one) {
  row.usage.replaceChildren(...actions.usageLines(one));
  row.timeline.draw(one.timeline, moment());
  // A table that is being read keeps its place.
  if (!row.table.matches(':focus, :hover')) row.table.replaceChildren(timelineTable(one));
}

/** An override or a block in force. */
function term(client, one) {
  const isBlock = one.what === 'block';
  const rates = ratesText(one.rates?.split(','), one.counts);
  const blocked = one.ban ? `Banned by ${plain(one.ban, 60)}` : 'Blocked';
  const what = isBlock ? blocked : `Override: ${rates} on ${plain(one.limit, 60)}`;
  const left = one.until
    ? `for ${span(one.until - Date.now() / 1000)} more`
    : 'until it is removed';
  const notes = [one.reason, one.by && `by ${one.by}`].filter(Boolean).map((text) => plain(text));
  const remove = () => {
    const limit = one.limit ?? client.limits[0]?.limit ?? state.firstLimit();
    actions.removeTerms({ ...one, kind: one.what, limit }, short(client.id));
  };
  const label = `Remove: ${plain(one.what, 20)} of ${short(client.id)}`;
  const button = actButton('Remove', remove, label);
  const text = [`${what} ${left}`, ...notes].join('; ');
  return { element: h('li', {}, h('span', { text: `${text} ` }), button) };
}

function denial(one) {
  const wait = one.retry_after ? `, retry in ${span(one.retry_after)}` : '';
  const text = `${plain(one.method, 12)} ${plain(one.path, 120)}`;
  const about = `${clock(one.at)} by ${plain(one.limit, 60)}${one.shadow ? ' (shadow)' : wait}`;
  const button = h(
    'button',
    { type: 'button', class: 'act wide' },
    h('bdi', { text }),
    ` ${about}`,
  );
  button.addEventListener('click', () => explainDenial(one));
  return { element: h('li', {}, button) };
}
