// Denied requests as they happen, newest first. Each opens the explanation.

import { get, offers, Stream } from './api.js';
import { fromAddress } from './address.js';
import { clientLink } from './client.js';
import { byId, clock, exact, h, plain, setAttr, setText, short, span, sync } from './dom.js';
import { say, trouble } from './actions.js';
import { explainDenial } from './explain.js';

const KEPT = 200;
const SHOWN = 60;
/** The shortest time between two drawings, milliseconds. */
const DRAW_MS = 250;

const STATES = { live: '', away: 'the stream is away', locked: 'sign in to see them' };

const state = {
  list: [],
  past: null,
  asked: null,
  serial: 0,
  dropped: 0,
  held: false,
  waiting: 0,
  timer: 0,
  said: '',
};

const list = h('ol', { class: 'denials' });
const none = h('p', { class: 'empty' });

export function start() {
  byId('denied').append(list, none);
  byId('hold').addEventListener('click', () => hold(!state.held));
  byId('denials-limit').addEventListener('change', () => draw());
  draw();
  return new Stream('denials/stream', take, (said) => {
    // Denials that were missed while the stream was closed are requested.
    if (said === 'live' && state.said !== 'live') recent();
    state.said = said;
    byId('denied').closest('.card').hidden = said === 'none';
    note();
  });
}

async function recent() {
  try {
    const { denials } = await get('denials');
    const known = new Set(state.list.map((one) => name(one)));
    const news = denials.filter((one) => !known.has(name(one))).map((one) => number(one));
    state.list = [...state.list, ...news].sort((a, b) => b.at - a.at).slice(0, KEPT);
    later();
  } catch {
    // The stream reports its own state.
  }
}

/** Opens the denial of the request whose id is in the address. */
export async function openAsked() {
  const id = fromAddress('request');
  const isNew = id !== state.asked;
  state.asked = id;
  if (!id || !isNew) return;
  try {
    const { denials } = await get(`denials?request_id=${encodeURIComponent(id)}`);
    if (denials.length > 0) explainDenial(denials[0]);
    else say(`The request ${plain(id, 80)} is not among the last ${KEPT} denials.`);
  } catch (error) {
    say(`The request ${plain(id, 80)} could not be looked up: ${trouble(error)}.`);
  }
}

/** Shows the denials up to a moment, instead of those that happen; null for now. */
export async function showUntil(at) {
  if (at === null) {
    state.past = null;
    draw();
    return;
  }
  try {
    const { denials } = await get(`denials?until=${at + 1}`);
    state.past = { at, list: denials.map((one) => number(one)) };
    draw();
  } catch (error) {
    say(`The denials of then could not be read: ${trouble(error)}.`);
  }
}

const name = (one) => `${one.at} ${one.request_id} ${one.limit}`;

function number(one) {
  state.serial += 1;
  return { ...one, serial: state.serial };
}

function take(kind, value) {
  if (kind === 'dropped') {
    state.dropped += value.dropped ?? value.count ?? 0;
    note();
    return;
  }
  if (kind !== 'message' && kind !== 'denial') return;
  if (state.list.some((one) => name(one) === name(value))) return;
  state.list.unshift(number(value));
  state.list.length = Math.min(state.list.length, KEPT);
  if (state.held) state.waiting += 1;
  later();
}

function later() {
  state.timer ||= setTimeout(() => {
    state.timer = 0;
    if (state.held) note();
    else draw();
  }, DRAW_MS);
}

function hold(held) {
  state.held = held;
  state.waiting = 0;
  const button = byId('hold');
  setAttr(button, 'aria-pressed', held);
  setText(button, held ? 'Go on' : 'Pause');
  if (!held) draw();
  note();
}

function note() {
  const parts = [];
  if (state.past) parts.push(`up to ${clock(state.past.at)}`);
  if (state.held) parts.push(`paused, ${exact(state.waiting)} since`);
  if (state.dropped) parts.push(`${exact(state.dropped)} more were not shown`);
  if (STATES[state.said]) parts.push(STATES[state.said]);
  setText(byId('denials-note'), parts.join(' · '));
}

/** Sets the limits that can be chosen. */
export function offer(names) {
  const select = byId('denials-limit');
  const told = names.join();
  if (select.dataset.told === told) return;
  select.dataset.told = told;
  const was = select.value;
  const all = h('option', { value: '', text: 'all' });
  select.replaceChildren(all, ...names.map((text) => h('option', { value: text, text })));
  select.value = names.includes(was) ? was : '';
}

function draw() {
  const limit = byId('denials-limit').value;
  const all = state.past?.list ?? state.list;
  const shown = all.filter((one) => !limit || one.limit === limit).slice(0, SHOWN);
  sync(list, shown, { key: (one) => one.serial, create: row, update: () => {} });
  list.hidden = shown.length === 0;
  none.hidden = shown.length > 0;
  setText(none, limit ? `Nothing was denied by ${limit} lately.` : 'Nothing was denied lately.');
  note();
}

function row(one) {
  const wait = one.retry_after ? `retry in ${span(one.retry_after)}` : '';
  const open = h(
    'button',
    { type: 'button', class: 'denial' },
    h('time', { class: 'num faint', text: clock(one.at) }),
    h('span', { class: one.shadow ? 'tag' : 'tag bad', text: plain(one.limit, 40) }),
    h(
      'span',
      { class: 'what' },
      h('span', { class: 'method', text: `${plain(one.method, 12)} ` }),
      h('bdi', { text: plain(one.path, 160) }),
    ),
    h('bdi', { class: 'who', text: one.client ? plain(one.client, 60) : short(one.id) }),
    h('span', { class: 'wait num faint', text: one.shadow ? 'shadow: let through' : wait }),
    h('span', { class: 'hidden', text: ': explain' }),
  );
  open.addEventListener('click', () => explainDenial(one));
  const label = `Client ${short(one.id)}: timeline and actions`;
  const client = clientLink(one.id, 'Client', { class: 'of-client', 'aria-label': label });
  return { element: h('li', {}, open, offers('clients/{key}') && client) };
}
