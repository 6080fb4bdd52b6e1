// The address of the page. Links lead to a limit, a client, a denied request or a moment.

import { h } from './dom.js';

const parts = () =>
  location.hash
    .slice(1)
    .split('&')
    .filter((part) => part !== '');

/** The value of a name in the address; null without it. */
export function fromAddress(name) {
  const part = parts().find((one) => one.startsWith(`${name}=`));
  try {
    return part === undefined ? null : decodeURIComponent(part.slice(name.length + 1));
  } catch {
    return null;
  }
}

/** The part of the address behind `#`, with these values. `null` removes a name. */
function withValues(changes) {
  const isKept = (part) => !(part.split('=')[0] in { ...changes, token: null });
  const given = Object.entries(changes).filter(([, value]) => value !== null);
  const set = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return [...set, ...parts().filter(isKept)].join('&');
}

/** Changes the address, and nothing else. */
export function setAddress(changes) {
  const hash = withValues(changes);
  const place = location.pathname + location.search;
  history.replaceState(null, '', hash ? `${place}#${hash}` : place);
}

/** The whole address of the page, with these values. */
export const addressWith = (changes) =>
  `${location.origin}${location.pathname}#${withValues(changes)}`;

/** A link that changes these values of the address, and keeps the others. */
export function link(changes, props, ...children) {
  const element = h('a', { ...props, href: `#${withValues(changes)}` }, ...children);
  element.addEventListener('click', (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    location.hash = withValues(changes);
  });
  return element;
}
