// Functions that make elements, and that update lists of them in place. Data of the server becomes
// text: no function makes markup of a string.

const SVG = 'http://www.w3.org/2000/svg';

/** An element. `props`: `class`, `text`, `on` ({event: listener}), `data`; all else attributes. */
export function h(tag, props = {}, ...children) {
  return build(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props = {}, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name === 'on') listen(element, value);
    else if (name === 'data') Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  const isShown = (child) => child !== null && child !== undefined && child !== false;
  element.append(...children.flat().filter(isShown));
  return element;
}

function listen(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) {
    element.addEventListener(event, listener);
  }
}

/** A small button. `label` is what a screen reader says in place of the text. */
export function actButton(text, act, label = text) {
  const button = h('button', { type: 'button', class: 'act', 'aria-label': label, text });
  button.addEventListener('click', act);
  return button;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text if it differs. An equal text is left alone, so that a selection in it is kept. */
export function setText(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

export function setAttr(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Makes the children of `parent` equal to `items`, by key. Existing elements are kept, with their
 * focus and hover. `calm` lists do not change their order while a pointer or the focus is in them,
 * so that no row moves away from under a pointer.
 */
export function sync(parent, items, { key, create, update, calm = false }) {
  const known = parent.known ?? new Map();
  const rows = new Map(items.map((item) => [key(item), item]));
  for (const [name, row] of known) {
    if (!rows.has(name)) {
      row.element.remove();
      known.delete(name);
    }
  }
  const still = calm && parent.matches(':hover, :focus-within');
  const focused = document.activeElement;
  let place = parent.firstElementChild;
  for (const [name, item] of rows) {
    let row = known.get(name);
    const isNew = !row;
    if (isNew) {
      row = create(item);
      known.set(name, row);
    }
    update(row, item);
    if (still) {
      if (isNew) parent.append(row.element);
    } else if (row.element === place) {
      place = place.nextElementSibling;
    } else {
      parent.insertBefore(row.element, place);
    }
  }
  parent.known = known;
  if (focused !== document.activeElement && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

// Control characters, and characters that change the direction of a text. They could make the text
// of a client look like another text.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A text from a client with all its characters visible, cut to `most` characters. */
export function plain(text, most = 200) {
  const whole = String(text ?? '');
  const cut = whole.length > most ? `${whole.slice(0, most)}…` : whole;
  return cut.replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** The beginning of the hash of a key, as `tidegate limits` shows it. */
export const short = (id) => plain(id, 22).slice(0, 8);

/** 842, 12.3 k, 1.20 M: at most five characters and a unit, so that columns keep their width. */
export function si(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return '–';
  const units = ['', 'k', 'M', 'G', 'T'];
  let value = number;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  if (unit === 0)
    return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)}\u202f${units[unit]}`;
}

/** All digits, in groups. */
export const exact = (number) => Math.round(number).toLocaleString('en').replaceAll(',', '\u202f');

export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return '–';
  const value = share * 100;
  const text = value > 0 && value < 0.1 ? '<0.1' : value.toFixed(value < 9.95 && value > 0 ? 1 : 0);
  return `${text}\u202f%`;
}

/** A short time: 420 µs, 4.2 ms, 1.3 s. */
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)}\u202fµs`;
  // `Number` removes the exponent: 480 would be 4.8e+2.
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))}\u202fms`;
  return `${seconds.toFixed(1)}\u202fs`;
}

/** A long time: 41 s, 12 min, 3 h 20 min, 8 d 4 h. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}\u202fs`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}\u202fmin`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24)
    return minutes % 60 ? `${hours}\u202fh ${minutes % 60}\u202fmin` : `${hours}\u202fh`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days}\u202fd ${hours % 24}\u202fh` : `${days}\u202fd`;
}

/** The time of day in the format of the browser. */
export function clock(at, withSeconds = true) {
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
  if (withSeconds) options.second = '2-digit';
  return new Date(at * 1000).toLocaleTimeString('en', options);
}

/** `one client`, `2 clients`. */
export const count = (number, one, many = `${one}s`) =>
  `${exact(number)} ${number === 1 ? one : many}`;

/** What a block does: an operator blocks a client, and a limit bans it. */
export function blockWord(one) {
  return one.ban ? 'banned' : 'blocked';
}
