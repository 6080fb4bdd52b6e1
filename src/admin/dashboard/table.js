// Tables that become cards on narrow screens. They name their roles, because screen readers do not
// recognize a table with another layout.

import { byId, h, setAttr, sync } from './dom.js';

/** The mark of columns with numbers. */
const NUMBER = '#';

const named = (column) => column.replace(NUMBER, '');
const kindOf = (column) => (column.startsWith(NUMBER) ? 'num' : null);

/** The cells of a row, each with the name of its column, which cards show. */
export function cells(columns) {
  return columns.map((column, index) => {
    const props = { class: kindOf(column), data: { column: named(column) } };
    return index === 0
      ? h('th', { role: 'rowheader', scope: 'row', ...props })
      : h('td', { role: 'cell', ...props });
  });
}

class Table {
  constructor(place, caption, columns) {
    Object.assign(this, { place, columns });
    this.body = h('tbody', { role: 'rowgroup' });
    const heads = columns.map((column) => {
      const props = { class: kindOf(column), text: named(column) };
      return h('th', { role: 'columnheader', scope: 'col', ...props });
    });
    const head = h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads));
    const title = h('caption', { class: 'hidden', text: caption });
    this.element = h('table', { role: 'table', class: `t-${place}` }, title, head, this.body);
    this.none = h('p', { class: 'empty' });
    byId(place).append(this.element, this.none);
    this.showEmpty('');
  }

  showEmpty(text) {
    const isEmpty = this.body.childElementCount === 0;
    this.element.hidden = isEmpty;
    this.none.hidden = !isEmpty;
    if (this.none.textContent !== text) this.none.textContent = text;
  }

  show(items, { empty, ...how }) {
    sync(this.body, items, how);
    this.showEmpty(items.length ? '' : empty);
  }

  row(key) {
    return this.body.known?.get(key);
  }

  clear() {
    sync(this.body, [], { key: String, create: null, update: null });
    this.showEmpty('');
  }
}

/** A table in the element of this id. */
export const tableOf = (place, caption, columns) => new Table(place, caption, columns);

/** A plain table of texts or elements, made once. */
export function textTable(caption, columns, rows) {
  const heads = columns.map((text) => h('th', { scope: 'col', text }));
  const lines = rows.map((row) =>
    h(
      'tr',
      {},
      row.map((text, index) => {
        const cell = h(index === 0 ? 'th' : 'td', {}, text);
        if (index === 0) setAttr(cell, 'scope', 'row');
        return cell;
      }),
    ),
  );
  const title = h('caption', { class: 'hidden', text: caption });
  return h(
    'table',
    { class: 'plain' },
    title,
    h('thead', {}, h('tr', {}, heads)),
    h('tbody', {}, lines),
  );
}
