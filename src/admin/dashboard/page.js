// The page: it says which data is requested how often, and where it is shown. All other files are
// its parts.

import * as client from './client.js';
import { setConfig, whenCopied } from './commands.js';
import { get, hasToken, readPaths, offers, Poll, takeToken } from './api.js';
import * as actions from './actions.js';
import { minutes, Spark, TrafficChart } from './charts.js';
import * as denials from './denials.js';
import {
  actButton,
  blockWord,
  brief,
  byId,
  clock,
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
import { explainAny } from './explain.js';
import { setLedger, startLedger } from './ledger.js';
import * as limits from './limits.js';
import { goTo, moment, sampleOf, startMoment, takeMoment, showText } from './moment.js';
import { pollRoutes } from './routes.js';
import { cells, tableOf, textTable } from './table.js';
import { startTheme } from './theming.js';
import { ratesText } from './units.js';

const SECOND = 1000;

const charts = {
  requests: new Spark(byId('requests-spark'), 'Requests per second', 'accent'),
  denials: new Spark(byId('denials-spark'), 'Denials per second', 'bad'),
  traffic: new TrafficChart(byId('traffic'), goTo),
};
let asTable = false;

// ---- the line at the top, and notices

const CONNECTION_WORDS = {
  live: () => 'live',
  wait: () => 'connecting',
  away: (wait) => `no answer, asking again in ${span(wait / 1000)}`,
  locked: () => 'needs a token',
};

function showConnection(state, wait) {
  const place = byId('connection');
  if (place.dataset.state !== state) place.dataset.state = state;
  setText(byId('connection-text'), CONNECTION_WORDS[state](wait));
}

const notices = new Map();

/** Shows a notice at the top until its text is null. Screen readers read a changed text out. */
function notice(id, kind, text, ...more) {
  const shown = notices.get(id);
  if (text === null) {
    shown?.remove();
    notices.delete(id);
    return;
  }
  if (shown?.dataset.text === text) return;
  const element = h('div', { class: `notice ${kind}`, data: { id, text } }, h('p', { text }), more);
  if (shown) shown.replaceWith(element);
  else if (kind === 'finding') byId('findings').append(element);
  else byId('notices').prepend(element);
  notices.set(id, element);
}

const WITHOUT_STORE = {
  local: 'Each proxy limits with its own share of every budget until it is back.',
  allow: 'Every request is allowed until it is back.',
  deny: 'Every request that has a limit is denied until it is back.',
};

const STORES = {
  memory: 'Memory',
  redis: 'Redis',
  sentinel: 'Redis by Sentinel',
  cluster: 'Redis Cluster',
};

function showStore(store) {
  const kind = STORES[store.kind] ?? plain(store.kind);
  if (!store.degraded && store.up) {
    notice('store', '', null);
    return;
  }
  const since = store.since ? `since ${clock(store.since)}` : '';
  const meaning = WITHOUT_STORE[store.on_error] ?? '';
  const own = 'A limit with its own on_error follows that.';
  notice('store', 'degraded', `Degraded: ${kind} is away ${since}. ${meaning} ${own}`);
}

function showFindings(findings) {
  const now = new Set(findings.map((one) => `finding ${one.id}`));
  for (const id of notices.keys()) {
    if (id.startsWith('finding ') && !now.has(id)) notice(id, '', null);
  }
  for (const one of findings) {
    const id = `finding ${one.id}`;
    const silence =
      one.silence &&
      h('p', { class: 'silence' }, 'To silence it: ', h('code', { text: plain(one.silence, 300) }));
    notice(id, 'finding', plain(one.text, 600), h('p', { class: 'times faint' }), silence);
    const times = one.count > 1 ? `${exact(one.count)} times since` : 'since';
    const text = `${times} ${clock(one.first_seen, false)}`;
    setText(notices.get(id).querySelector('.times'), text);
  }
}

// ---- health

function showStatus(status) {
  const { store, config } = status;
  setText(byId('version'), plain(status.version, 40));
  setConfig(config);
  const last = config.last_reload;
  const file = plain(config.file?.split('/').at(-1) ?? 'no file', 60);
  const failed = last && !last.ok;
  const away = store.degraded || !store.up;
  const words = {
    kind: STORES[store.kind] ?? plain(store.kind),
    trip: store.round_trip_seconds === null ? '' : `, ${brief(store.round_trip_seconds)}`,
  };
  facts(byId('health'), [
    ['Serving', `${span(status.now - status.started_at)}`, '', `process ${status.pid}`],
    ['Store', away ? `${words.kind} away` : `${words.kind}${words.trip}`, away ? 'amber' : ''],
    [
      'Configuration',
      failed ? 'reload failed' : `${file}`,
      failed ? 'amber' : '',
      `${plain(config.file ?? '')} as of ${clock(config.loaded_at)}`,
    ],
    ...knownKeys(status.known_keys),
    ['Connections', si(status.connections), '', exact(status.connections)],
    ['Workers', String(status.workers)],
    ['Listening on', status.listen.map((one) => plain(one, 60)).join(', ')],
  ]);
  const errors = failed ? last.errors.map((one) => plain(one, 400)).join('; ') : null;
  const text = failed
    ? `The reload at ${clock(last.at)} failed, and nothing was changed: ${errors}`
    : null;
  notice('reload', 'degraded', text);
  showStore(store);
  setLedger(status.ledger);
  showFindings(status.findings ?? []);
  setText(byId('foot'), `tidegate ${plain(status.version, 40)}, process ${status.pid}`);
}

function knownKeys(known) {
  if (!known) return [];
  const sources = { file: 'in files', redis: 'in Redis', callback: 'cached of the callback' };
  const text = `${si(known.keys)} ${sources[known.source] ?? plain(known.source)}`;
  const away = known.source === 'redis' ? ', not read' : ', callback away';
  return [['API keys', known.up ? text : text + away, known.up ? '' : 'amber', exact(known.keys)]];
}

function facts(place, list) {
  sync(place, list, {
    key: ([name]) => name,
    create: ([name]) => {
      const value = h('dd');
      return { element: h('div', {}, h('dt', { text: name }), value), value };
    },
    update: (row, [, text, kind = '', title = '']) => {
      setText(row.value, text);
      setAttr(row.value, 'title', title || null);
      row.value.className = kind;
    },
  });
}

// ---- traffic

function showTraffic(data) {
  const { requests, denials: denied } = ratesOf(data);
  setText(byId('requests'), si(requests));
  setText(byId('denials'), si(denied));
  byId('denials').classList.toggle('bad', denied > 0);
  charts.requests.draw(data.second.map((one) => one.requests));
  charts.denials.draw(data.second.map((one) => one.denied));
  const sum = (name) => data.samples.reduce((all, one) => all + one[name], 0);
  const total = { allowed: sum('allowed'), denied: sum('denied'), shadow: sum('shadow') };
  const decided = total.allowed + total.denied;
  facts(byId('quarter'), [
    ['Allowed', si(total.allowed), '', exact(total.allowed)],
    ['Denied', si(total.denied), total.denied ? 'bad' : '', exact(total.denied)],
    ['Shadow would deny', si(total.shadow), '', exact(total.shadow)],
    ['Share denied', decided ? percent(total.denied / decided) : '–'],
  ]);
  byId('traffic').classList.toggle('none', decided + total.shadow === 0);
  if (asTable) showMinutes(data);
  else charts.traffic.draw(data, moment());
}

/** The rates of the last second, or of the moment that the page shows. */
function ratesOf(data) {
  if (moment() === null) return data.rates;
  const sample = sampleOf(data);
  showText(sample !== undefined);
  if (!sample) return { requests: null, denials: null };
  return { requests: sample.requests / data.step, denials: sample.denied / data.step };
}

function showMinutes(data) {
  const place = byId('minutes');
  // A new table would take the focus from its buttons.
  if (place.querySelector(':focus')) return;
  const rows = minutes(data).map((one) => [
    minuteButton(one.at),
    exact(one.allowed),
    exact(one.denied),
    exact(one.shadow),
    exact(one.errors),
    one.notes.join('; '),
  ]);
  const columns = ['Minute', 'Allowed', 'Denied', 'Shadow', 'Errors', 'Changes'];
  place.replaceChildren(textTable('Traffic by minute, newest first', columns, rows));
}

function minuteButton(at) {
  const time = clock(at, false);
  const label = `Show the moment ${time}`;
  const button = h('button', { type: 'button', class: 'link', 'aria-label': label, text: time });
  button.addEventListener('click', () => goTo(at));
  return button;
}

byId('as-table').addEventListener('click', (event) => {
  asTable = !asTable;
  setAttr(event.currentTarget, 'aria-pressed', asTable);
  byId('traffic').hidden = asTable;
  byId('minutes').hidden = !asTable;
  polls.fast.now();
});

// ---- upstreams, overrides and blocks

const servers = tableOf('upstreams', 'Upstream servers', [
  'Server',
  'State',
  '#In flight',
  '#Latency',
  '#Requests',
  '#Failed',
  '#Cut short',
]);

async function pollUpstreams() {
  const { upstreams } = await get('upstreams');
  const list = upstreams.flatMap((one) => one.servers.map((server) => ({ ...server, of: one })));
  servers.show(list, {
    empty: 'This configuration has no upstream: routes answer by themselves.',
    key: (server) => `${server.of.name} ${server.server}`,
    create: (server) => {
      const [name, state, ...numbers] = cells(servers.columns);
      const named = server.of.name === server.server ? [] : [plain(server.of.name)];
      const about = [...named, plain(server.of.balance)].join(' · ');
      name.append(
        h('bdi', { class: 'key', text: plain(server.server, 80).replace('http://', '') }),
        h('span', { class: 'about', text: about }),
      );
      const light = h('span', { class: 'dot', 'aria-hidden': 'true' });
      const word = h('span');
      state.append(h('span', { class: 'state' }, light, word));
      return { element: h('tr', { role: 'row' }, name, state, numbers), state, word, numbers };
    },
    update: (row, server) => {
      const left = server.ejected_until ? server.ejected_until - Date.now() / 1000 : 0;
      const words = { ejected: left > 0 ? `out, ${span(left)}` : 'out' };
      row.state.classList.toggle('down', server.state !== 'up');
      setText(row.word, words[server.state] ?? plain(server.state, 20));
      const failing = 'The last requests there failed';
      setAttr(row.state, 'title', server.state === 'failing' ? failing : null);
      const texts = [
        si(server.in_flight),
        brief(server.latency_seconds),
        si(server.requests),
        si(server.failures),
        si(server.truncated),
      ];
      texts.forEach((text, index) => setText(row.numbers[index], text));
      const backup = server.backup ? ', backup' : '';
      const kept = `${server.idle} idle connections, weight ${server.weight}${backup}`;
      setAttr(row.numbers[0], 'title', kept);
    },
  });
}

const overridesTable = tableOf('overrides', 'Overrides and blocks in force', [
  'Client',
  'What',
  'Until',
  'Actions',
]);

async function pollOverrides() {
  const answer = await get('overrides');
  const overrides = answer.overrides.map((one) => ({ ...one, kind: one.what, rate: one.rates }));
  limits.setOverrides(overrides);
  overridesTable.show(overrides, {
    empty: 'No client has an override, and no client is blocked.',
    key: (one) => JSON.stringify([one.kind, one.limit, one.id, one.rate, one.until]),
    create: (one) => {
      const [who, what, until, acts] = cells(overridesTable.columns);
      const name = short(one.id);
      const counts = limits.countsOf(one.limit);
      const rate = `${ratesText(one.rate?.split(','), counts)} on ${plain(one.limit)}`;
      const why = [one.reason, one.by]
        .filter(Boolean)
        .map((text) => plain(text))
        .join(', by ');
      const key = h('bdi', { class: 'key', text: name, title: plain(`${one.id} ${one.key}`) });
      who.append(offers('clients/{key}') ? client.clientLink(one.id, key) : key);
      what.append(h('span', { text: one.kind === 'block' ? blockWord(one) : rate }));
      if (why) what.append(h('span', { class: 'about', text: why }));
      const left = (one.until ?? 0) - Date.now() / 1000;
      setText(until, one.until ? `${span(left)} left` : 'until removed');
      if (one.until) setAttr(until, 'title', new Date(one.until * 1000).toLocaleString());
      const label = `Remove: ${one.kind} of ${name}`;
      // A block applies to all limits. The API takes it under the name of any limit.
      const limit = one.limit ?? limits.names()[0];
      acts.append(actButton('Remove', () => actions.removeTerms({ ...one, limit }, name), label));
      return { element: h('tr', { role: 'row' }, who, what, until, acts) };
    },
    update: () => {},
  });
}

// ---- polls

function failed(error, wait) {
  if (error.status === 401) {
    showConnection('locked');
    notice('token', 'locked', 'This address needs a token for reading too: sign in.');
    return;
  }
  showConnection('away', wait);
  document.body.classList.add('stale');
  const what = error.status
    ? `tidegate answers: ${plain(error.message, 300)}`
    : 'tidegate does not answer';
  notice('away', 'degraded', `${what}. The page shows old data.`);
}

const hide = (id) => {
  byId(id).closest('.card').hidden = true;
};

/** A part of the page with a poll of its own. It is hidden if the proxy has no such endpoint. */
function part(id, path, every, work) {
  if (!offers(path)) {
    hide(id);
    return { now() {} };
  }
  return new Poll(every, work, (error) => error.status === 404 && hide(id));
}

takeToken();
limits.takeChoice();
await readPaths();
for (const [id, path] of [
  ['explain', 'explain'],
  ['reload', 'reload'],
  ['config', 'config'],
  ['find', 'limits/{name}/keys/{key}'],
]) {
  byId(id).classList.toggle('gone', !offers(path));
}
byId('search').classList.toggle('gone', !offers('clients/{key}'));
const changes = ['reset', 'override', 'block'].map((change) => `limits/{name}/${change}`);
document.body.classList.toggle('reads', !changes.some(offers));
byId('sign-in').classList.toggle('gone', ![...changes, 'reload'].some(offers));

const polls = {
  fast: new Poll(
    SECOND,
    async () => {
      const [status, traffic] = await Promise.all([get('status'), get('traffic')]);
      showConnection('live');
      document.body.classList.remove('stale');
      notice('away', '', null);
      notice('token', '', null);
      showStatus(status);
      showTraffic(traffic);
      setText(byId('sign-in'), hasToken() ? 'Sign out' : 'Sign in');
    },
    failed,
  ),
  limits: new Poll(2 * SECOND, async () => {
    await limits.pollLimits();
    denials.setLimits(limits.names());
  }),
  clients: part('clients', 'limits/{name}/clients', 2 * SECOND, limits.pollClients),
  routes: part('routes', 'routes', 5 * SECOND, pollRoutes),
  upstreams: part('upstreams', 'upstreams', 3 * SECOND, pollUpstreams),
  overrides: part('overrides', 'overrides', 10 * SECOND, pollOverrides),
  client: offers('clients/{key}') ? new Poll(5 * SECOND, client.pollClient) : { now() {} },
};
let stream;
denials.openAsked();
if (offers('denials/stream')) stream = denials.start();
else hide('denied');

startMoment((at) => {
  denials.showUntil(at);
  polls.fast.now();
  polls.client.now();
});
if (offers('clients/{key}')) client.startClient(() => limits.names()[0]);
whenCopied(actions.showMessage);
startLedger(actions.showMessage);
actions.whenChanged(() => {
  Object.values(polls).forEach((poll) => poll.now());
  if (stream && !stream.isOpen()) stream.open();
});

byId('sign-in').addEventListener('click', () =>
  hasToken() ? actions.signOut() : actions.signIn(),
);
byId('explain').addEventListener('click', explainAny);
byId('reload').addEventListener('click', actions.reload);
byId('config').addEventListener('click', actions.showConfig);
byId('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const key = byId('find-key').value.trim();
  if (key) actions.lookUp(limits.chosen(), key);
});
window.addEventListener('hashchange', () => {
  if (takeToken()) polls.fast.now();
  limits.takeChoice();
  denials.openAsked();
  takeMoment();
  if (offers('clients/{key}')) client.takeClient();
  polls.limits.now();
});
// A click beside a dialog closes it, as Escape does.
byId('dialog').addEventListener('click', (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close();
});
startTheme(byId('theme'), byId('theme-name'));
