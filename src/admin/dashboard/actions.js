// Actions that change something. Each explains its effect, asks, and reports the result.

import { get, getText, hasToken, keepToken, offers, post, Problem } from './api.js';
import { codeLine, commandLine, placeWords, quotedWords } from './commands.js';
import { actButton, byId, clock, h, plain, setText, span } from './dom.js';
import { number, ratesText, rateText } from './units.js';

const dialog = () => byId('dialog');
let changed = () => {};

/** Called after each change. */
export function whenChanged(listener) {
  changed = listener;
}

/** Shows a short message about a result. Screen readers read it out. It disappears by itself. */
export function showMessage(text) {
  const place = byId('message');
  setText(place, text);
  place.classList.add('shown');
  clearTimeout(showMessage.timer);
  showMessage.timer = setTimeout(() => place.classList.remove('shown'), 6000);
}

/** Opens the dialog with a title and content. When it closes, the focus returns to its opener. */
export function open(title, ...content) {
  const box = dialog();
  const close = h('button', {
    type: 'button',
    class: 'close quiet',
    'aria-label': 'Close',
    text: '✕',
  });
  close.addEventListener('click', () => box.close());
  const heading = h('h2', { id: 'dialog-title', text: title });
  const body = h('div', { class: 'inside' }, content);
  box.replaceChildren(h('div', { class: 'head' }, heading, close), body);
  box.classList.remove('wide');
  if (!box.open) box.showModal();
  return body;
}

export const errorText = (error) =>
  error instanceof Problem ? error.message : 'something went wrong on this page';

const label = (text, input, hint) =>
  h('label', { class: 'field' }, h('span', { text }), input, hint && h('small', { text: hint }));

/**
 * A form that asks before it calls `work`, which returns the message of success. `command` returns
 * the command line for the values of the form.
 */
function openForm(question) {
  const { title, consequence, fields = [], verb, danger = false, command, work } = question;
  if (!hasToken()) {
    signIn(() => openForm(question));
    return;
  }
  const failed = h('p', { class: 'failed', role: 'alert', hidden: true });
  const cancel = h('button', { type: 'button', class: 'quiet', text: 'Cancel' });
  cancel.addEventListener('click', () => dialog().close());
  const kind = danger ? 'danger' : 'primary';
  const go = h('button', { type: 'submit', class: kind, text: verb });
  const buttons = h('div', { class: 'buttons' }, cancel, go);
  const form = h('form', {}, h('p', { text: consequence }), fields);
  if (command) {
    const line = codeLine(command(new FormData(form)), 'the command line');
    form.append(line.element);
    form.addEventListener('input', () => line.set(command(new FormData(form))));
  }
  form.append(failed, buttons);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    go.disabled = true;
    failed.hidden = true;
    try {
      const message = await work(new FormData(form));
      dialog().close();
      showMessage(message);
      changed();
    } catch (error) {
      if (error.status === 401) {
        keepToken('');
        signIn(() => openForm(question), error.message);
        return;
      }
      setText(failed, `Not done: ${errorText(error)}`);
      failed.hidden = false;
    } finally {
      go.disabled = false;
    }
  });
  open(title, form);
  (fields.length ? form.querySelector('input, select') : go).focus();
}

const TERMS = [
  ['600', '10 minutes'],
  ['3600', '1 hour'],
  ['86400', '1 day'],
  ['604800', '1 week'],
  ['', 'until removed'],
];
/** The same in the syntax of the command line. */
const LASTS = { 600: '10min', 3600: '1h', 86400: '24h', 604800: '7d' };

function terms(first) {
  const options = TERMS.map(([value, text]) =>
    h('option', { value, text, selected: value === first }),
  );
  return label('For how long', h('select', { name: 'for' }, options));
}

const reason = () => {
  const input = h('input', { name: 'reason', maxlength: 200, autocomplete: 'off' });
  return label('Why', input, 'Other operators see this note.');
};

function words(form, more = {}) {
  const seconds = Number(form.get('for'));
  const why = form.get('reason')?.trim();
  const value = { ...more };
  if (seconds) value.for_seconds = seconds;
  if (why) value.reason = why;
  return value;
}

const terminal = (action, subject) => (form) =>
  commandLine(action, subject, {
    rate: form.get('rate')?.trim(),
    lasts: LASTS[form.get('for')],
    note: form.get('reason')?.trim(),
  });

const path = (subject, action) => `limits/${encodeURIComponent(subject.limit)}/${action}`;
const clientOf = (subject) => (subject.id ? { id: subject.id } : { key: subject.key });
const lasting = (form) =>
  form.get('for') ? `for ${span(Number(form.get('for')))}` : 'until removed';

function reset(subject) {
  const rates = ratesText(subject.rates, subject.counts) || 'the limit';
  openForm({
    title: `Reset ${subject.name}`,
    consequence:
      `This sets the counts of the client in ${subject.limit} to zero. ` +
      `It may use all of ${rates} at once.`,
    verb: 'Reset this client',
    command: terminal('reset', subject),
    work: async () => {
      await post(path(subject, 'reset'), clientOf(subject));
      return `${subject.name} starts at zero on ${subject.limit}.`;
    },
  });
}

function override(subject) {
  const inMillionths = subject.counts === 'money' ? ' In millionths: 5000000/d is 5 a day.' : '';
  const hint = `A rate such as 50/min, several (10/s,1000/h), or unlimited.${inMillionths}`;
  const attributes = { name: 'rate', required: true, autocomplete: 'off', spellcheck: 'false' };
  const now = ratesText(subject.rates, subject.counts) || 'its rate';
  openForm({
    title: `Another rate for ${subject.name}`,
    consequence:
      `On ${subject.limit} this client gets its own rate in place of ${now}. ` +
      'Every proxy that shares the store applies it within a second. ' +
      'The units that it has used still count.',
    fields: [
      label(
        'Rate',
        h('input', { ...attributes, placeholder: subject.rates?.[0] ?? '50/min' }),
        hint,
      ),
      terms('86400'),
      reason(),
    ],
    verb: 'Set this rate',
    command: terminal('override', subject),
    work: async (form) => {
      const rate = form.get('rate').trim();
      await post(path(subject, 'override'), words(form, { ...clientOf(subject), rate }));
      return `${subject.name} has ${rate} on ${subject.limit}, ${lasting(form)}.`;
    },
  });
}

function block(subject) {
  openForm({
    title: `Block ${subject.name}`,
    consequence:
      'Every proxy that shares the store denies every request of this client. ' +
      'Only [[bypass]] still lets requests through.',
    fields: [terms('3600'), reason()],
    verb: 'Block this client',
    command: terminal('block', subject),
    danger: true,
    work: async (form) => {
      await post(path(subject, 'block'), words(form, clientOf(subject)));
      return `${subject.name} is blocked ${lasting(form)}.`;
    },
  });
}

/** Removes an override or a block. */
export function removeTerms(one, name) {
  const isBlock = one.kind === 'block';
  const then = isBlock ? 'may send requests again' : `has the rate of ${one.limit} again`;
  openForm({
    title: isBlock ? `Unblock ${name}` : `Remove the override of ${name}`,
    consequence: `Within a second the client ${then}, on every proxy that shares the store.`,
    verb: isBlock ? 'Unblock' : 'Remove the override',
    command: () => commandLine(one.kind, one, { remove: true }),
    work: async () => {
      await post(path(one, one.kind), { ...clientOf(one), remove: true });
      return isBlock ? `${name} is not blocked.` : `${name} has the limit's own rate again.`;
    },
  });
}

/** The actions on a client; `terms` are those that their forms begin with. */
const CLIENT_ACTIONS = {
  reset: { text: 'Reset', work: reset, terms: {} },
  override: { text: 'Override', work: override, terms: { lasts: LASTS[86400] } },
  block: { text: 'Block', work: block, terms: { lasts: LASTS[3600] } },
};

/** The buttons of these actions on a client, as far as the proxy offers them. */
export function clientActions(subject, names = Object.keys(CLIENT_ACTIONS)) {
  const offered = names.filter((name) => offers(`limits/{name}/${name}`));
  return offered.map((name) => {
    const { text, work, terms } = CLIENT_ACTIONS[name];
    const about = `${text} ${subject.name} on ${subject.limit}`;
    return { name, button: actButton(text, () => work(subject), about), terms };
  });
}

export function buttons(subject) {
  const list = clientActions(subject).map((action) => action.button);
  return h('span', { class: 'acts' }, list);
}

/** Asks for the token, and then calls `then`. */
export function signIn(then = () => {}, why = '') {
  const input = h('input', {
    name: 'token',
    type: 'password',
    required: true,
    autocomplete: 'off',
  });
  const failed = h('p', { class: 'failed', role: 'alert', text: why, hidden: !why });
  const go = h('button', { type: 'submit', class: 'primary', text: 'Sign in' });
  const hint =
    'It is in the file that admin_token_file names. Without one, `' +
    quotedWords(['tidegate', 'status', ...placeWords()]) +
    '` prints an address that signs you in. This tab keeps the token until you close it.';
  const form = h(
    'form',
    {},
    label('Token', input, hint),
    failed,
    h('div', { class: 'buttons' }, go),
  );
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    keepToken(input.value);
    try {
      // A change without a client is always refused: with 401 only if the token is wrong.
      await post('limits/-/reset', {});
    } catch (error) {
      if (![400, 404].includes(error.status)) {
        keepToken('');
        setText(failed, error.status === 401 ? 'That is not the token.' : errorText(error));
        failed.hidden = false;
        return;
      }
    }
    dialog().close();
    changed();
    then();
  });
  open('Sign in', form);
  input.focus();
}

export function signOut() {
  keepToken('');
  showMessage('Signed out: changes need the token again.');
  changed();
}

/** Makes the proxy read its configuration again. */
export function reload() {
  openForm({
    title: 'Reload the configuration',
    consequence:
      'The proxy reads its file again. If the file has a mistake, nothing changes. ' +
      'Each request has one configuration. Counts and connections stay.',
    verb: 'Reload',
    work: async () => {
      const done = await post('reload', {});
      const changes = done.changes ?? [];
      return changes.length
        ? `Reloaded: ${changes.map((one) => plain(one)).join('; ')}.`
        : 'Reloaded: the file has no changes.';
    },
  });
}

/** Shows the configuration in effect. */
export async function showConfig() {
  try {
    const text = await getText('config');
    const place = h('pre', { class: 'code', tabindex: 0, text });
    open(
      'Configuration in force',
      h('p', { class: 'faint', text: 'Secrets are left out.' }),
      place,
    );
    dialog().classList.add('wide');
  } catch (error) {
    if (error.status === 401) signIn(showConfig, error.message);
    else showMessage(`The configuration could not be read: ${errorText(error)}.`);
  }
}

/** The current counts of a client at each rate, as lines of a list. */
export function usageLines(found) {
  return (found.windows ?? []).map((rate) => {
    const [used, remaining] = [rate.used, rate.remaining].map((units) =>
      number(units, found.counts),
    );
    const left = `${used} used, ${remaining} left`;
    const end = rate.resets_at ? `; resets at ${plain(rate.resets_at)}` : '';
    const when = rate.retry_seconds ? `; next one in ${span(Math.ceil(rate.retry_seconds))}` : '';
    const of = rate.of ? `${plain(rate.of, 60)} ` : '';
    return h('li', { text: `${of}${rateText(rate.rate, found.counts)}: ${left}${when}${end}` });
  });
}

/** Shows the current counts of one client, named by its key. */
export async function lookUp(limit, key) {
  try {
    const found = await get(
      `limits/${encodeURIComponent(limit.name)}/keys/${encodeURIComponent(key)}`,
    );
    const lines = usageLines(found);
    const subject = {
      limit: limit.name,
      rates: limit.rates,
      counts: limit.counts,
      key,
      id: found.id,
      name: plain(key, 80),
    };
    const body = open(`${plain(key, 60)} on ${limit.name}`, h('ul', { class: 'facts' }, lines));
    if (found.id) body.append(h('p', { class: 'faint', text: `${found.id} in logs` }));
    for (const one of [found.override, found.block].filter(Boolean)) {
      const until = one.until ? `until ${clock(one.until)}` : 'until removed';
      const rates = ratesText(one.rates?.split(','), limit.counts);
      const word = one.ban ? 'Banned' : 'Blocked';
      const text = one.rates ? `Override: ${rates} ${until}` : `${word} ${until}`;
      body.append(h('p', { text }));
    }
    body.append(h('div', { class: 'buttons' }, buttons(subject)));
  } catch (error) {
    if (error.status === 401) signIn(() => lookUp(limit, key), error.message);
    else showMessage(`${plain(key, 60)}: ${errorText(error)}.`);
  }
}
