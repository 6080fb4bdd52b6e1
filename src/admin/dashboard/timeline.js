// The last quarter of an hour of one client of one limit: how much it used, and its denials.

import { clock, count, exact, percent, setAttr, setText, svg } from './dom.js';
import { textTable } from './table.js';

const WIDTH = 600;
const HEIGHT = 96;
const TOP = 6;
const BOTTOM = 16;

/** Bars of the used share of the limit; denied requests are red marks above them. */
export class Timeline {
  constructor() {
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
    setText(this.title, words(intervals));
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
    this.labels.replaceChildren(...labels);
  }
}

const busy = (intervals) => intervals.filter((one) => one.requests > 0 || one.denied > 0);

function words(intervals) {
  const seen = busy(intervals);
  if (seen.length === 0) return 'This proxy has no request of it in the last 15 minutes';
  const sum = (name) => seen.reduce((all, one) => all + one[name], 0);
  const most = percent(Math.max(...seen.map((one) => one.used)));
  const requests = `${count(sum('requests'), 'request')}, ${exact(sum('denied'))} denied`;
  return `The last 15 minutes: ${requests}. At most ${most} of the limit was used`;
}

/** The same as a table, newest first. */
export function timelineTable(intervals) {
  const rows = busy(intervals)
    .reverse()
    .map((one) => [clock(one.at), exact(one.requests), exact(one.denied), percent(one.used)]);
  return textTable('By 15 seconds, newest first', ['From', 'Requests', 'Denied', 'Used'], rows);
}
