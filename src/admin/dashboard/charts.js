// Charts in SVG: a minute as a line, a quarter of an hour as bars with marks, clients as columns.
// Each has a description in words, and the large one has a table.

import { clock, exact, h, plain, setAttr, setText, si, svg, sync } from './dom.js';

const SPARK = { width: 240, height: 48 };

/** A minute in seconds, as a line over its area. The newest second is at the right. */
export class Spark {
  constructor(place, what, tone) {
    const { width, height } = SPARK;
    this.what = what;
    this.title = svg('title');
    this.area = svg('path', { class: 'area' });
    this.line = svg('path', { class: 'line' });
    const box = { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img' };
    place.append(svg('svg', { ...box, class: `spark ${tone}` }, this.title, this.area, this.line));
    this.scale = new Scale();
    this.titledAt = 0;
  }

  draw(values) {
    const { width, height } = SPARK;
    const top = this.scale.fit(Math.max(...values, 1));
    const x = (index) => (index / (values.length - 1)) * width;
    const y = (value) => height - 1 - (value / top) * (height - 3);
    const points = values.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
    const line = `M${points.join('L')}`;
    setAttr(this.line, 'd', line);
    setAttr(this.area, 'd', `${line}L${width} ${height}L0 ${height}Z`);
    // The description changes rarely, so that screen readers can finish it.
    if (Date.now() - this.titledAt < 10_000) return;
    this.titledAt = Date.now();
    const most = exact(Math.max(...values));
    const words = `the last minute: ${exact(values.at(-1))} now, ${most} at most`;
    setText(this.title, `${this.what}, ${words}`);
  }
}

/** A scale that grows at once and shrinks late, so that a chart is calm. */
class Scale {
  top = 1;

  fit(most) {
    if (most > this.top || most < this.top * 0.4) this.top = nice(most);
    return this.top;
  }
}

/** The next of 1, 1.5, 2, 3, 4, 5, 8 and 10 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  const step = [1, 1.5, 2, 3, 4, 5, 8, 10].find((one) => one * power >= value * 1.02);
  return (step ?? 15) * power;
}

const MARGIN = { top: 22, right: 12, bottom: 22, left: 44 };
const HEIGHT = 224;
const MARK_WORDS = {
  reload: 'Reload',
  start: 'Start',
  store_down: 'Store away',
  store_flaps: 'Store comes and goes',
  store_up: 'Store back',
};

/** The text of a mark without its kind, which is shown beside it. */
const markText = (mark) => {
  const text = plain(mark.text, 300).replace(/^reload: /, '');
  return `${MARK_WORDS[mark.kind] ?? plain(mark.kind, 20)}: ${text}`;
};

/** Allowed, denied and shadow-denied requests of a quarter of an hour, with marks of events. */
export class TrafficChart {
  /** `choose` is called with the moment, in seconds, that a pointer chooses. */
  constructor(place, choose) {
    this.place = place;
    this.moment = svg('path', { class: 'moment' });
    this.grid = svg('g', { class: 'grid', 'aria-hidden': 'true' });
    this.away = svg('path', { class: 'away' });
    this.allowed = svg('path', { class: 'allowed' });
    this.denied = svg('path', { class: 'denied' });
    this.shadow = svg('path', { class: 'shadow' });
    this.cursor = svg('path', { class: 'cursor' });
    this.marks = svg('g', { class: 'marks' });
    this.words = svg('title');
    const bars = svg('g', { 'aria-hidden': 'true' }, this.away, this.allowed, this.denied);
    bars.append(this.shadow, this.cursor, this.moment);
    this.svg = svg('svg', { class: 'traffic', role: 'group', height: HEIGHT });
    this.svg.append(this.grid, bars, this.marks);
    setAttr(this.svg, 'aria-label', 'Requests of the last 15 minutes, with marks of changes');
    setAttr(this.marks, 'role', 'group');
    setAttr(this.marks, 'aria-label', 'Changes: arrow keys go from mark to mark');
    this.tip = h('div', { class: 'tip', hidden: true });
    place.append(this.svg, this.tip);
    this.scale = new Scale();
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('click', (event) => {
      const sample = this.sampleAt(event);
      if (sample) choose(sample.at);
    });
    this.svg.addEventListener('pointerleave', () => this.unpoint());
    this.svg.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.unpoint();
      else this.step(event);
    });
    new ResizeObserver(() => this.data && this.draw(this.data, this.at)).observe(place);
  }

  /** `at` is the moment that the page shows; null for now. */
  draw(data, at) {
    Object.assign(this, { data, at });
    this.width = Math.max(280, Math.floor(this.place.clientWidth));
    setAttr(this.svg, 'width', this.width);
    setAttr(this.svg, 'viewBox', `0 0 ${this.width} ${HEIGHT}`);
    const { step } = data;
    // The newest sample is incomplete, and would look like a fall.
    const done = data.samples.filter((sample) => sample.at + step <= data.now);
    this.samples = done.slice(-179);
    if (this.samples.length === 0) return;
    this.from = this.samples[0].at;
    this.to = this.samples.at(-1).at + step;
    const rate = (number) => number / step;
    const most = Math.max(...this.samples.map((one) => rate(Math.max(total(one), one.shadow))), 1);
    this.top = this.scale.fit(most);
    this.drawGrid();
    this.drawBars(step, rate);
    const isSeen = at !== null && at >= this.from && at <= this.to;
    const line = isSeen && `M${this.x(at).toFixed(1)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}`;
    setAttr(this.moment, 'd', line || '');
    this.drawMarks(data.marks.filter((mark) => mark.at >= this.from && mark.at <= this.to + step));
  }

  x(at) {
    const share = (at - this.from) / (this.to - this.from);
    return MARGIN.left + share * (this.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    return HEIGHT - MARGIN.bottom - (value / this.top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  }

  drawGrid() {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(this.y(this.top * share)) + 0.5;
      const right = this.width - MARGIN.right;
      parts.push(svg('path', { d: `M${MARGIN.left} ${y}H${right}` }));
      const label = { x: MARGIN.left - 8, y: y + 4, 'text-anchor': 'end' };
      parts.push(svg('text', { ...label, text: si(this.top * share) }));
    }
    const minutes = this.width < 480 ? [15, 10, 5, 0] : [15, 12, 9, 6, 3, 0];
    for (const ago of minutes) {
      const at = this.to - ago * 60;
      const anchor = ago === 15 ? 'start' : ago === 0 ? 'end' : 'middle';
      const label = { x: this.x(Math.max(at, this.from)), y: HEIGHT - 5, 'text-anchor': anchor };
      parts.push(svg('text', { ...label, text: ago === 0 ? 'now' : `−${ago} min` }));
    }
    this.grid.replaceChildren(...parts);
  }

  drawBars(step, rate) {
    const room = (this.width - MARGIN.left - MARGIN.right) / this.samples.length;
    const gap = room > 3.5 ? 1 : 0;
    const paths = { allowed: '', denied: '', away: '', shadow: '' };
    const wide = (room - gap).toFixed(2);
    const bar = (x, from, to) =>
      `M${x.toFixed(1)} ${from.toFixed(1)}h${wide}V${to.toFixed(1)}h-${wide}z`;
    let drawing = false;
    for (const sample of this.samples) {
      const x = this.x(sample.at);
      const allowed = this.y(rate(sample.allowed));
      if (sample.allowed > 0) paths.allowed += bar(x, this.y(0), allowed);
      if (sample.denied > 0) {
        paths.denied += bar(x, allowed, Math.min(this.y(rate(total(sample))), allowed - 1.5));
      }
      if (sample.degraded) paths.away += `M${x} ${MARGIN.top}h${room}V${this.y(0)}h-${room}z`;
      if (sample.shadow > 0) {
        const y = this.y(rate(sample.shadow)).toFixed(1);
        paths.shadow += `${drawing ? 'L' : 'M'}${(x + room / 2).toFixed(1)} ${y}`;
      }
      drawing = sample.shadow > 0;
    }
    for (const name of Object.keys(paths)) setAttr(this[name], 'd', paths[name]);
  }

  drawMarks(marks) {
    const create = (mark) => {
      const line = svg('path', { class: 'stem' });
      const head = svg('path', { class: 'head' });
      // A wider area is easier to hit with a pointer.
      const reach = svg('rect', { class: 'reach', width: 16, height: HEIGHT - MARGIN.bottom });
      const failed = mark.text.includes('failed') ? ' failed' : '';
      const group = svg('g', {
        class: `mark ${MARK_WORDS[mark.kind] ? mark.kind : ''}${failed}`,
      });
      group.at = mark.at;
      setAttr(group, 'tabindex', -1);
      setAttr(group, 'role', 'img');
      group.append(reach, line, head);
      const show = () => this.showTip(this.x(mark.at), [clock(mark.at)], markText(group.mark));
      group.addEventListener('focus', () => {
        this.hold(group);
        show();
      });
      group.addEventListener('blur', () => this.unpoint());
      group.addEventListener('pointerenter', show);
      group.addEventListener('pointermove', (event) => event.stopPropagation());
      return { element: group, line, head, reach };
    };
    const update = (row, mark) => {
      // The text of a mark for repeated outages changes.
      row.element.mark = mark;
      setAttr(row.element, 'aria-label', `${clock(mark.at)} ${markText(mark)}`);
      const x = Math.round(this.x(mark.at)) + 0.5;
      setAttr(row.line, 'd', `M${x} 14V${HEIGHT - MARGIN.bottom}`);
      setAttr(row.head, 'd', `M${x} 4l5 5-5 5-5-5z`);
      setAttr(row.reach, 'x', x - 8);
    };
    sync(this.marks, marks, { key: (mark) => `${mark.at}${mark.kind}`, create, update });
    const all = [...this.marks.children];
    if (!all.some((one) => one.tabIndex === 0)) this.hold(all.at(-1));
  }

  /** The Tab key stops once at all marks, at `mark`. Arrow keys move from one to the next. */
  hold(mark) {
    for (const one of this.marks.children) setAttr(one, 'tabindex', one === mark ? 0 : -1);
  }

  step(event) {
    const all = [...this.marks.children].sort((a, b) => a.at - b.at);
    const now = all.indexOf(document.activeElement);
    const places = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1 };
    const next = all[places[event.key]];
    if (now < 0 || !next) return;
    event.preventDefault();
    next.focus();
  }

  sampleAt(event) {
    if (!this.samples?.length) return undefined;
    const box = this.svg.getBoundingClientRect();
    const inner = this.width - MARGIN.left - MARGIN.right;
    const share = (event.clientX - box.left - MARGIN.left) / inner;
    const index = Math.floor(share * this.samples.length);
    return this.samples[Math.min(Math.max(index, 0), this.samples.length - 1)];
  }

  point(event) {
    const sample = this.sampleAt(event);
    if (!sample) return;
    const x = this.x(sample.at + this.data.step / 2);
    setAttr(this.cursor, 'd', `M${x.toFixed(1)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}`);
    const rate = (number) => `${si(number / this.data.step)}/s`;
    const lines = [
      clock(sample.at),
      `allowed ${rate(sample.allowed)}`,
      `denied ${rate(sample.denied)}`,
    ];
    if (sample.shadow) lines.push(`shadow ${rate(sample.shadow)}`);
    if (sample.errors) lines.push(`errors ${rate(sample.errors)}`);
    this.showTip(x, lines, sample.degraded ? 'without the store' : '');
  }

  showTip(x, lines, text) {
    const [when, ...rest] = lines;
    const parts = [h('strong', { text: when }), ...rest.map((line) => h('span', { text: line }))];
    if (text) parts.push(h('span', { class: 'what', text }));
    this.tip.replaceChildren(...parts);
    this.tip.hidden = false;
    const most = this.width - this.tip.offsetWidth - 4;
    const left = x + 12 > most ? x - this.tip.offsetWidth - 12 : x + 12;
    this.tip.style.setProperty('left', `${Math.max(4, Math.min(left, most))}px`);
  }

  unpoint() {
    this.tip.hidden = true;
    setAttr(this.cursor, 'd', '');
  }
}

const total = (sample) => sample.allowed + sample.denied;

/** The same as rows for a table: minutes, newest first, then marks. */
export function minutes(data) {
  const rows = new Map();
  for (const sample of data.samples) {
    const at = sample.at - (sample.at % 60);
    const row = rows.get(at) ?? { at, allowed: 0, denied: 0, shadow: 0, errors: 0, notes: [] };
    for (const name of ['allowed', 'denied', 'shadow', 'errors']) row[name] += sample[name];
    row.away ||= sample.degraded;
    rows.set(at, row);
  }
  for (const mark of data.marks) {
    rows.get(Math.floor(mark.at / 60) * 60)?.notes.push(`${clock(mark.at)} ${markText(mark)}`);
  }
  for (const row of rows.values()) if (row.away) row.notes.push('without the store');
  return [...rows.values()].reverse();
}

export const SHARES = [
  { name: 'q25', from: 0, to: 0.25, words: '0–25\u202f%' },
  { name: 'q50', from: 0.25, to: 0.5, words: '25–50\u202f%' },
  { name: 'q75', from: 0.5, to: 0.75, words: '50–75\u202f%' },
  { name: 'q100', from: 0.75, to: 1, words: '75–100\u202f%' },
];

/** How many clients use how much of a limit, small enough for a cell of a table. */
export class Columns {
  constructor() {
    this.bars = SHARES.map((share, index) => {
      const x = index * 15;
      return svg('rect', { class: share.name, x, width: 13, rx: 1 });
    });
    this.denied = svg('rect', { class: 'denied', x: 64, width: 13, rx: 1 });
    this.title = svg('title');
    const base = svg('path', { class: 'base', d: 'M0 27.5H58M64 27.5H77' });
    const box = { class: 'columns', viewBox: '0 0 78 28', width: 78, height: 28, role: 'img' };
    this.element = svg('svg', box, this.title, base, ...this.bars, this.denied);
  }

  draw(use) {
    const numbers = SHARES.map((share) => use?.[share.name] ?? 0);
    const denied = use?.denied ?? 0;
    const most = Math.max(...numbers, denied, 1);
    [...this.bars, this.denied].forEach((bar, index) => {
      const value = [...numbers, denied][index];
      // Few clients beside thousands must stay visible: the heights are square roots.
      const height = value > 0 ? Math.max(2, Math.sqrt(value / most) * 26) : 0;
      setAttr(bar, 'height', height.toFixed(1));
      setAttr(bar, 'y', (27 - height).toFixed(1));
    });
    const words = SHARES.map((share, index) => `${numbers[index]} at ${share.words}`);
    const list = `${words.join(', ')}; ${denied} denied`;
    const text = `Clients by the share of the limit that they use: ${list}`;
    setText(this.title, use ? text : 'The proxy knows no client of it yet');
  }
}
