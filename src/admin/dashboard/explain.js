// The explanation of one request: of a denial, or of a request that the operator describes. An
// explanation charges nothing.

import { get, offers, post } from './api.js';
import { link } from './address.js';
import * as actions from './actions.js';
import { byId, clock, exact, h, plain, short, span } from './dom.js';
import { number, rateText, unitName, usedOf } from './units.js';

/** The ways in which other proxies ask for decisions. */
const DOORS = {
  auth: 'forward auth (auth)',
  auth_nginx: 'auth_request of nginx (auth_nginx)',
  auth_envoy: 'ext_authz of Envoy over HTTP (auth_envoy)',
  check: 'ext_authz of Envoy over gRPC (check)',
  rls: 'the rate limit service of Envoy (rls)',
  json: 'the JSON form of the rate limit service (json)',
};
/** Descriptors are decided by rules; all others ask about a request, which has a route. */
const DESCRIPTOR_DOORS = ['rls', 'json'];
const isCall = ({ door }) => DESCRIPTOR_DOORS.includes(door);

/** Why a request was denied: the counts at that moment, which are kept with the denial. */
export function explainDenial(denial) {
  const subject = { limit: denial.limit.split('~')[0], id: denial.id, name: short(denial.id) };
  const now = h('div', { class: 'now', 'aria-live': 'polite' });
  const question = { method: denial.method, url: denial.path, ip: '' };
  const explainLike = h('button', {
    type: 'button',
    class: 'quiet',
    text: 'Explain a request like it',
  });
  explainLike.addEventListener('click', () => openQuestion('Explain a request', question));
  const buttons = h('div', { class: 'buttons' }, actions.buttons(subject));
  // A call with descriptors is not a request of a client.
  if (offers('explain') && !isCall(denial)) buttons.prepend(explainLike);
  if (offers('clients/{key}'))
    buttons.prepend(leave({ client: denial.id }, 'Timeline of the client'));
  buttons.prepend(leave({ at: Math.floor(denial.at) }, 'This moment'));
  const title = denial.shadow ? 'Why it would be denied' : 'Why it was denied';
  actions.open(title, ...verdicts(denial), definitions(about(denial)), now, buttons);
  byId('dialog').classList.add('wide');
  showNow(subject, now);
}

/** A link that closes the dialog. */
function leave(changes, text) {
  const element = link(changes, { class: 'leave', text });
  element.addEventListener('click', () => byId('dialog').close());
  return element;
}

/** One sentence for each rate that denied. */
function verdicts(denial) {
  const would = denial.shadow ? 'In shadow mode it denies nothing. ' : '';
  const rates = denial.rates ?? [];
  if (rates.length === 0) {
    const text = `${would}The limit ${plain(denial.limit)} denied it.`;
    return [h('p', { class: 'verdict bad', text })];
  }
  return rates.map((rate) => {
    const name = h('strong', { text: plain(rate.policy) });
    const text = ` ${counted(rate)} ${outlook(rate)}`;
    return h('p', { class: 'verdict bad' }, would, name, text);
  });
}

function counted(rate) {
  const { counts } = rate;
  const allows = `allows ${rateText(rate.rate, counts)} for each key (${plain(rate.key)}).`;
  const used = `This key had used ${usedOf(rate.used, rate.units, counts)}`;
  const cost = rate.cost === 1 && !unitName(counts) ? 'one' : number(rate.cost, counts);
  return `${allows} ${used} when the request came, and the request asked for ${cost} more.`;
}

function outlook(rate) {
  if (rate.cost > rate.units) return 'That is more than the limit ever allows.';
  if (rate.retry_after === null) return 'The proxy did not know when it could pass.';
  return `The same request could pass ${span(rate.retry_after)} later.`;
}

function about(denial) {
  const from = denial.client ? `an address in ${plain(denial.client)}` : 'not known';
  const wait = denial.retry_after ? span(denial.retry_after) : 'nothing';
  return [
    ['When', clock(denial.at)],
    [isCall(denial) ? 'Call' : 'Request', `${plain(denial.method, 12)} ${plain(denial.path, 400)}`],
    ...asker(denial),
    ['Client', from],
    ['Key, hashed', plain(denial.id)],
    ['Retry after', denial.shadow ? 'nothing: the request went on' : wait],
    ['Request id', plain(denial.request_id)],
  ];
}

/** The route; or how another proxy asked, and the rule or route that decided. */
function asker({ door, route }) {
  if (!door) return [['Route', plain(route)]];
  const kind = isCall({ door }) ? 'Rule' : 'Route';
  return [
    ['Asked by', `another proxy, through ${DOORS[door] ?? plain(door)}`],
    [kind, plain(route) || 'none'],
  ];
}

/** The current counts of the same key, if they can be found by its hash. */
async function showNow(subject, place) {
  if (!offers('limits/{name}/keys/{key}')) return;
  const [limit, id] = [subject.limit, subject.id].map(encodeURIComponent);
  try {
    const lines = actions.usageLines(await get(`limits/${limit}/keys/${id}?by=id`));
    const heading = h('h3', { text: 'The same key now' });
    place.replaceChildren(heading, h('ul', { class: 'facts' }, lines));
  } catch {
    // The counts of the denial are shown above. Current counts are not available.
  }
}

/** Asks about any request. */
export function explainAny() {
  openQuestion('Explain a request', { method: 'GET', url: '/', ip: '' });
}

const definitions = (pairs) =>
  h(
    'dl',
    { class: 'facts' },
    pairs.map(([name, value]) =>
      h('div', {}, h('dt', { text: name }), h('dd', {}, h('bdi', { text: value }))),
    ),
  );

function openQuestion(title, question) {
  const input = (name, props) =>
    h('input', { name, spellcheck: 'false', autocomplete: 'off', ...props });
  const field = (text, control, kind = '') =>
    h('label', { class: `field ${kind}` }, h('span', { text }), control);
  const method = input('method', { value: question.method, required: true, size: 7 });
  const url = input('url', { value: question.url, required: true });
  const ip = input('ip', { value: question.ip, placeholder: '192.0.2.1' });
  const headers = h('textarea', {
    name: 'headers',
    rows: 2,
    spellcheck: 'false',
    placeholder: 'x-api-key: abc',
  });
  const result = h('div', { class: 'story', 'aria-live': 'polite' });
  const go = h('button', { type: 'submit', class: 'primary', text: 'Explain' });
  const form = h(
    'form',
    { class: 'question' },
    field('Method', method, 'short'),
    field('URL or path', url, 'long'),
    field('From address', ip),
    field('Headers, one on a line', headers, 'long'),
    h('div', { class: 'buttons' }, go),
  );
  const answer = async () => {
    go.disabled = true;
    try {
      const lines = headers.value.split('\n').filter((line) => line.trim() !== '');
      const value = {
        method: method.value.trim(),
        url: url.value.trim(),
        headers: lines.map((line) => {
          const at = line.indexOf(':');
          return at < 0 ? [line.trim(), ''] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
        }),
        live: true,
      };
      if (ip.value.trim()) value.ip = ip.value.trim();
      result.replaceChildren(...story(await post('explain', value)));
    } catch (error) {
      const needsToken = error.status === 401 ? ' Sign in first.' : '';
      const text = `No explanation: ${actions.errorText(error)}.${needsToken}`;
      result.replaceChildren(h('p', { class: 'failed', text }));
    } finally {
      go.disabled = false;
    }
  };
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    answer();
  });
  const note =
    'Write the address of the client, and the headers that identify it, such as its API key. ' +
    'An explanation charges nothing.';
  actions.open(title, h('p', { class: 'faint', text: note }), form, result);
  byId('dialog').classList.add('wide');
  url.focus();
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const GOOD = ['forwarded', 'answered', 'redirected'];

/** An explanation as sections, the most important first. */
function story(explanation) {
  const { verdict, counts } = explanation;
  const kind = GOOD.includes(verdict.outcome) ? 'good' : 'bad';
  const status = verdict.status ? ` · ${verdict.status}` : '';
  const parts = [
    h(
      'p',
      { class: `verdict ${kind}` },
      h('strong', { text: `${capital(plain(verdict.outcome, 40))}${status}` }),
      ` ${plain(verdict.why, 600)}`,
    ),
  ];
  if (counts?.trouble) parts.push(faint(`Counts could not be read: ${plain(counts.trouble)}`));
  else if (counts?.live) parts.push(faint(`Counts of now, from ${plain(counts.from)}.`));
  else if (counts) parts.push(faint('Assumes a client with no earlier requests.'));
  if (explanation.spared) parts.push(h('p', { text: `Not charged: ${plain(explanation.spared)}` }));
  parts.push(
    ...limits(explanation.limits ?? []),
    ...client(explanation.client),
    ...route(explanation),
    ...clientResponse(explanation),
  );
  return parts;
}

const faint = (text) => h('p', { class: 'faint', text });

function limits(list) {
  if (list.length === 0) return [];
  return [
    h('h4', { text: 'Limits' }),
    ...list.map((limit) => {
      const about = limit.why ? `${limit.state}: ${plain(limit.why)}` : limit.state;
      const heading = h(
        'p',
        {},
        h('strong', { text: limit.name }),
        h('span', { class: 'faint', text: ` ${about}` }),
      );
      const key = (limit.key ?? []).map((part) => h('li', {}, h('bdi', { text: keyPart(part) })));
      if (limit.tier) key.push(h('li', { text: `tier ${plain(limit.tier)}` }));
      if (limit.cost_why)
        key.push(h('li', { text: `costs ${limit.cost}: ${plain(limit.cost_why)}` }));
      const rates = (limit.rates ?? []).map((rate) => {
        const kind = rate.allows === false ? 'failed' : '';
        return h('li', { class: kind, text: rateLine(rate) });
      });
      return h('div', { class: 'limit' }, heading, h('ul', {}, key, rates));
    }),
  ];
}

function keyPart(part) {
  const value = part.value === null || part.value === undefined ? '' : ` = ${plain(part.value)}`;
  const found = part.found && part.found !== part.part ? `: ${plain(part.found)}` : '';
  return `by ${plain(part.part)}${found}${value}${part.note ? ` (${plain(part.note)})` : ''}`;
}

function rateLine(rate) {
  const role = rate.role === 'enforced' ? '' : `${rate.role} `;
  const parts = [`${role}${plain(rate.rate)} (${plain(rate.algorithm)})`];
  if (rate.used !== null && rate.used !== undefined) {
    parts.push(`${exact(rate.used)} used before it, ${exact(rate.remaining ?? 0)} left`);
  }
  if (rate.allows === false && rate.retry_seconds !== null && rate.retry_seconds !== undefined) {
    parts.push(`allows it in ${span(Math.ceil(rate.retry_seconds))}`);
  }
  return parts.join('; ');
}

function client(explanation) {
  if (!explanation) return [];
  const as =
    explanation.counted_as === explanation.address
      ? ''
      : `, counted as ${plain(explanation.counted_as)}`;
  const hops = (explanation.hops ?? []).map((hop) =>
    h('li', {}, h('bdi', { class: 'key', text: plain(hop.said, 80) }), ` ${plain(hop.note)}`),
  );
  const parts = [
    h('h4', { text: 'Client' }),
    h('p', { text: `${plain(explanation.address)}${as}` }),
  ];
  parts.push(faint(plain(explanation.why, 400)));
  if (hops.length) parts.push(h('ol', {}, hops));
  return parts;
}

function route(explanation) {
  const parts = [h('h4', { text: 'Route' })];
  const { path } = explanation;
  if (path?.refused) parts.push(h('p', { class: 'failed', text: plain(path.refused) }));
  if (path?.canonical && path.canonical !== path.sent) {
    parts.push(
      h('p', {}, 'the path is read as ', h('bdi', { class: 'key', text: plain(path.canonical) })),
    );
  }
  const found = explanation.route;
  if (found) {
    const methods = found.methods?.length ? ` ${found.methods.join(' ')}` : '';
    const text = `${plain(found.name)}: path ${plain(found.path)}${methods}, to ${plain(found.to)}`;
    parts.push(h('p', { text }));
  } else {
    parts.push(h('p', { text: 'none' }));
  }
  const near = (explanation.near ?? []).map((one) =>
    h('li', { text: `not ${plain(one.route)}: ${plain(one.why, 300)}` }),
  );
  if (near.length) parts.push(h('ul', { class: 'faint' }, near));
  return parts;
}

function clientResponse(explanation) {
  const sees = explanation.client_sees;
  if (!sees) return [];
  const status = sees.status ? `${sees.status}` : 'the answer of the upstream';
  const lines = [status, ...(sees.headers ?? []).map(([name, value]) => `${name}: ${value}`)];
  if (sees.body) lines.push('', sees.body);
  const text = lines.map((line) => plain(line, 2000)).join('\n');
  return [
    h('h4', { text: 'The answer to the client' }),
    h('pre', { class: 'code', tabindex: 0, text }),
  ];
}
