// The last quarter of an hour of one client of one limit: how much it used, and its denials.

import { clock, count, exact, percent, setAttr, setText, svg } from './dom.js';
import { textTable } from './table.js';
import { amount, usedOf } from './units.js';

const WIDTH = 600;
const HEIGHT = 96;
const TOP = 6;
const BOTTOM = 16;

/** Bars of the used share of the limit; denied requests are red marks above them. */
export class Timeline {
  /** `counts` is what the limit counts. */
  constructor(counts) {
    this.counts = counts;
    this.used = svg('path', { class: 'allowed' });
    this.denied = svg('path', { class: 'denied' });
    this.moment = svg('path', { class: 'moment' });
    this.labels = svg('g');
    const full = svg('path', { class: 'full', d: `M0 ${TOP + 0.5}H${WIDTH}` });
    const base = svg('path', { class: 'full', d: `M0 ${HEIGHT - BOTTOM + 0.5}H${WIDTH}` });
    const bars = svg('g', { 'aria-hidden': 'true' }, full, base, this.used, this.denied);
    bars.append(this.moment, this.labels);
    this.title = svg('title');
    const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', class: 'timeline' };
    this.element = svg('svg', box, this.title, bars);
  }

  /** `at` is the moment that the page shows; null for now. */
  draw(intervals, at) {
    const wide = WIDTH / Math.max(intervals.length, 1);
    const floor = HEIGHT - BOTTOM;
    const bar = (x, from, to) =>
      `M${x.toFixed(1)} ${from}h${(wide - 1).toFixed(1)}V${to}h-${wide - 1}z`;
    let [used, denied] = ['', ''];
    intervals.forEach((one, index) => {
      const x = index * wide;
      const y = (floor - one.used * (floor - TOP)).toFixed(1);
      if (one.used > 0) used += bar(x, floor, y);
      if (one.denied > 0) denied += bar(x, TOP, TOP + 8);
    });
    setAttr(this.used, 'd', used);
    setAttr(this.denied, 'd', denied);
    this.drawMoment(intervals, at);
    setText(this.title, words(intervals, this.counts));
  }

  drawMoment(intervals, at) {
    const [first, last] = [intervals[0]?.at, intervals.at(-1)?.at];
    const isSeen = at !== null && at >= first && at <= last + 15;
    const x = ((at - first) / (last + 15 - first)) * WIDTH;
    setAttr(this.moment, 'd', isSeen ? `M${x.toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}` : '');
    const label = (x, anchor, text) =>
      svg('text', { x, y: HEIGHT - 3, 'text-anchor': anchor, text });
    const labels = intervals.length
      ? [label(0, 'start', clock(first)), label(WIDTH, 'end', clock(last + 15))]
      : [];
    const units = fullest(intervals)?.units;
    // The height of a whole bar.
    if (units) labels.push(svg('text', { x: 0, y: TOP + 11, text: amount(units, this.counts) }));
    this.labels.replaceChildren(...labels);
  }
}

const busy = (intervals) => intervals.filter((one) => one.requests > 0 || one.denied > 0);

/** The interval in which the client used most of the limit; undefined without requests. */
const fullest = (intervals) =>
  busy(intervals).reduce((most, one) => (most && most.used >= one.used ? most : one), undefined);

function words(intervals, counts) {
  const seen = busy(intervals);
  if (seen.length === 0) return 'This proxy has no request of it in the last 15 minutes';
  const sum = (name) => seen.reduce((all, one) => all + one[name], 0);
  const most = fullest(seen);
  const used = `${percent(most.used)} of the limit was used`;
  const requests = `${count(sum('requests'), 'request')}, ${exact(sum('denied'))} denied`;
  const units = usedOf(most.used_units, most.units, counts);
  return `The last 15 minutes: ${requests}. At most ${used}: ${units}`;
}

/** The same as a table, newest first. */
export function timelineTable({ timeline, counts }) {
  const rows = busy(timeline)
    .reverse()
    .map((one) => [
      clock(one.at),
      exact(one.requests),
      exact(one.denied),
      usedOf(one.used_units, one.units, counts),
      percent(one.used),
    ]);
  const columns = ['From', 'Requests', 'Denied', 'Used', 'Share'];
  return textTable('By 15 seconds, newest first', columns, rows);
}
