// The moment that the page shows: now, or a moment of the last quarter of an hour.

import { addressWith, fromAddress, setAddress } from './address.js';
import { copyButton } from './commands.js';
import { byId, clock, h, setText } from './dom.js';

const state = { at: null, changed: () => {} };
const address = h('code', { class: 'hidden' });

/** Seconds since the Unix epoch; null for now. */
export const moment = () => state.at;

/** Takes the moment from the address. `changed` is called after each change. */
export function startMoment(changed) {
  state.changed = changed;
  byId('moment').append(address, copyButton(address, 'the link to this moment', 'Copy the link'));
  byId('moment-now').addEventListener('click', () => goTo(null));
  takeMoment();
}

export function takeMoment() {
  const at = Number(fromAddress('at') ?? NaN);
  set(Number.isFinite(at) && at > 0 && at < 1e11 ? at : null);
}

export function goTo(at) {
  setAddress({ at: at === null ? null : Math.floor(at) });
  takeMoment();
}

function set(at) {
  if (state.at === at) return;
  state.at = at;
  byId('moment').hidden = at === null;
  if (at !== null) {
    setText(address, addressWith({ at }));
    showText(true);
  }
  state.changed(at);
}

/** Says which moment it is, and whether the proxy knows it. */
export function showText(isKnown) {
  const day = new Date(state.at * 1000).toLocaleDateString('en', { dateStyle: 'medium' });
  const when = `${day}, ${clock(state.at)}`;
  const known = 'Traffic and denials are of that moment. All other parts are of now.';
  const unknown = 'The proxy keeps 15 minutes, and that moment is not in them.';
  setText(byId('moment-text'), `The page shows ${when}. ${isKnown ? known : unknown}`);
}

/** The sample of the moment; undefined if the proxy has none. */
export const sampleOf = (data) =>
  data.samples.find((one) => one.at <= state.at && state.at < one.at + data.step);
