// Denied requests as they happen, newest first. Each opens the explanation.

import { get, offers, Stream } from './api.js';
import { fromAddress } from './address.js';
import { clientLink } from './client.js';
import { byId, clock, exact, h, plain, setAttr, setText, short, span, sync } from './dom.js';
import { showMessage, errorText } from './actions.js';
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
  isPaused: false,
  waiting: 0,
  timer: 0,
  stream: '',
};

const list = h('ol', { class: 'denials' });
const none = h('p', { class: 'empty' });

export function start() {
  byId('denied').append(list, none);
  byId('pause').addEventListener('click', () => pause(!state.isPaused));
  byId('denials-limit').addEventListener('change', () => draw());
  draw();
  return new Stream('denials/stream', receive, (stream) => {
    // Denials that were missed while the stream was closed are requested.
    if (stream === 'live' && state.stream !== 'live') recent();
    state.stream = stream;
    byId('denied').closest('.card').hidden = stream === 'none';
    showNote();
  });
}

async function recent() {
  try {
    const { denials } = await get('denials');
    const known = new Set(state.list.map((one) => name(one)));
    const news = denials.filter((one) => !known.has(name(one))).map((one) => number(one));
    state.list = [...state.list, ...news].sort((a, b) => b.at - a.at).slice(0, KEPT);
    drawSoon();
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
    else showMessage(`The request ${plain(id, 80)} is not among the last ${KEPT} denials.`);
  } catch (error) {
    showMessage(`The request ${plain(id, 80)} could not be looked up: ${errorText(error)}.`);
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
    showMessage(`The denials of that moment could not be read: ${errorText(error)}.`);
  }
}

const name = (one) => `${one.at} ${one.request_id} ${one.limit}`;

function number(one) {
  state.serial += 1;
  return { ...one, serial: state.serial };
}

function receive(kind, value) {
  if (kind === 'dropped') {
    state.dropped += value.dropped ?? value.count ?? 0;
    showNote();
    return;
  }
  if (kind !== 'message' && kind !== 'denial') return;
  if (state.list.some((one) => name(one) === name(value))) return;
  state.list.unshift(number(value));
  state.list.length = Math.min(state.list.length, KEPT);
  if (state.isPaused) state.waiting += 1;
  drawSoon();
}

function drawSoon() {
  state.timer ||= setTimeout(() => {
    state.timer = 0;
    if (state.isPaused) showNote();
    else draw();
  }, DRAW_MS);
}

function pause(isPaused) {
  state.isPaused = isPaused;
  state.waiting = 0;
  const button = byId('pause');
  setAttr(button, 'aria-pressed', isPaused);
  setText(button, isPaused ? 'Go on' : 'Pause');
  if (!isPaused) draw();
  showNote();
}

function showNote() {
  const parts = [];
  if (state.past) parts.push(`up to ${clock(state.past.at)}`);
  if (state.isPaused) parts.push(`paused, ${exact(state.waiting)} since`);
  if (state.dropped) parts.push(`${exact(state.dropped)} more were not shown`);
  if (STATES[state.stream]) parts.push(STATES[state.stream]);
  setText(byId('denials-note'), parts.join(' · '));
}

/** Sets the limits that can be chosen. */
export function setLimits(names) {
  const select = byId('denials-limit');
  const joined = names.join();
  if (select.dataset.names === joined) return;
  select.dataset.names = joined;
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
  setText(
    none,
    limit ? `The limit ${limit} denied nothing lately.` : 'The proxy denied nothing lately.',
  );
  showNote();
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
    h('span', { class: 'wait num faint', text: one.shadow ? 'shadow: not denied' : wait }),
    h('span', { class: 'hidden', text: ': explain' }),
  );
  open.addEventListener('click', () => explainDenial(one));
  const label = `Client ${short(one.id)}: timeline and actions`;
  const client = clientLink(one.id, 'Client', { class: 'of-client', 'aria-label': label });
  return { element: h('li', {}, open, offers('clients/{key}') && client) };
}
