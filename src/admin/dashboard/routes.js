// The answers of each route in the last minute: how many, with which status, and how fast.

import { get } from './api.js';
import {
  brief,
  byId,
  count,
  exact,
  h,
  percent,
  plain,
  setAttr,
  setText,
  si,
  span,
  sync,
} from './dom.js';
import { cells, tableOf } from './table.js';
import { showTokens } from './tokens.js';

/** The number of routes that are shown at first, and after "more". */
const FEW = 12;

const state = { few: true };

const STATUSES = ['2xx', '3xx', '4xx', '429', '5xx'];
const table = tableOf('routes', 'Routes, in the last minute', [
  'Route',
  '#Requests/s',
  ...STATUSES.map((status) => `#${status}`),
  '#p50',
  '#p95',
  '#p99',
]);

export async function pollRoutes() {
  const report = await get('routes');
  const busiest = report.routes
    .filter((one) => one.path !== null || one.requests > 0)
    .sort((a, b) => b.requests - a.requests);
  showMore(busiest.length);
  const shown = state.few ? busiest.slice(0, FEW) : busiest;
  const all = { ...report.all, name: 'all routes', isAll: true, path: null };
  table.show(busiest.length > 1 ? [all, ...shown] : shown, {
    empty: 'This configuration has no route.',
    key: (one) => `${one.isAll ? 'all' : 'route'} ${one.name}`,
    create: routeRow,
    update: updateRoute,
    calm: true,
  });
  const left = report.left_out ? `; ${count(report.left_out, 'route')} more are not shown` : '';
  setText(byId('routes-note'), `in the last ${span(report.seconds)}${left}`);
  showStatuses(report.statuses);
  showTokens(report);
}

function showMore(routes) {
  const more = byId('more-routes');
  more.hidden = routes <= FEW;
  setText(more, state.few ? `Show ${routes}` : `Show ${FEW}`);
  more.onclick ??= () => {
    state.few = !state.few;
    pollRoutes().catch(() => {});
  };
}

function routeRow(one) {
  const [name, ...numbers] = cells(table.columns);
  const about = h('span', { class: 'about' });
  name.append(h('strong', { text: plain(one.name, 80) }), about);
  return { element: h('tr', { role: 'row' }, name, numbers), about, numbers };
}

function updateRoute(row, one) {
  const methods = one.methods?.length ? `${one.methods.join(' ')} ` : '';
  const parts = one.path && one.path !== one.name ? [`${methods}${plain(one.path, 120)}`] : [];
  const { calls, failed } = one.grpc;
  if (calls > 0) parts.push(`gRPC: ${count(calls, 'call')}, ${exact(failed)} failed`);
  setText(row.about, parts.join(' · '));
  row.about.classList.toggle('bad', failed > 0);
  const latency = one.latency_seconds;
  const texts = [
    si(Math.round(one.requests_per_second * 10) / 10),
    ...STATUSES.map((status) => si(one.statuses[status])),
    ...['p50', 'p95', 'p99'].map((share) => brief(latency[share])),
  ];
  texts.forEach((text, index) => setText(row.numbers[index], text));
  setAttr(row.numbers[0], 'title', `${exact(one.requests)} requests`);
  const isBad = (status) => one.statuses[status] > 0 && ['429', '5xx'].includes(status);
  STATUSES.forEach((status, at) => row.numbers[at + 1].classList.toggle('bad', isBad(status)));
}

const kind = (code) => (code === '429' || code.startsWith('5') ? 'denied' : 'q75');

/** One row for each status. */
function showStatuses(statuses) {
  const place = byId('statuses');
  const all = statuses.reduce((sum, one) => sum + one.requests, 0);
  let list = place.querySelector('dl');
  if (!list) {
    const none = h('p', { class: 'empty', text: 'No request in the last minute.' });
    list = h('dl', { class: 'use' });
    place.replaceChildren(h('h3', { text: 'Statuses' }), list, none);
  }
  place.querySelector('.empty').hidden = statuses.length > 0;
  sync(list, statuses, {
    key: (one) => one.code,
    create: (one) => {
      const bar = h('span', { class: `fill ${kind(one.code)}` });
      const [number, share] = [h('span', { class: 'num' }), h('span', { class: 'num faint' })];
      const track = h('span', { class: 'track', 'aria-hidden': 'true' }, bar);
      const value = h('dd', {}, track, number, share);
      const term = h('dt', { text: plain(one.code, 8) });
      return { element: h('div', { class: 'use-row' }, term, value), bar, number, share };
    },
    update: (row, one) => {
      setText(row.number, exact(one.requests));
      setText(row.share, percent(one.requests / all));
      const wide = Math.max((one.requests / all) * 100, 0.8);
      row.bar.style.setProperty('width', `${wide.toFixed(1)}%`);
    },
  });
}
