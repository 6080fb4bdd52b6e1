'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const page = document.getElementById('page');
  const SVG = 'http://www.w3.org/2000/svg';

  // Everything of a log gets into the page here, as text.
  function put(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    for (const child of [children].flat(3)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  }
  const el = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
  const draw = (name, attributes, ...children) =>
    put(document.createElementNS(SVG, name), attributes, children);

  const whole = (n) => Math.round(n).toLocaleString('en-US');
  const counted = (n, what) => `${whole(n)} ${what}${n === 1 ? '' : 's'}`;
  function percent(part, all) {
    if (!part || !all) return '0 %';
    const share = part / all * 100;
    if (part === all) return '100 %';
    if (share < 0.01) return '<0.01 %';
    return `${share < 1 ? share.toFixed(2) : Math.min(share, 99.9).toFixed(1)} %`;
  }
  const utc = (s) => new Date(s * 1000).toISOString();
  const when = (s) => utc(s).slice(0, 19).replace('T', ' ');
  const minute = (s) => utc(s).slice(0, 16).replace('T', ' ');
  function span(s) {
    for (const [unit, length] of [['day', 86400], ['hour', 3600], ['minute', 60]]) {
      if (s >= 2 * length) return `${(s / length).toFixed(1).replace('.0', '')} ${unit}s`;
    }
    return counted(s, 'second');
  }
  const compact = (n) => {
    for (const [letter, unit] of [['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
      if (n >= unit) return `${+(n / unit).toPrecision(3)}${letter}`;
    }
    return String(+n.toPrecision(3));
  };
  const setting = (limit, units) =>
    limit.per === ' at once' ? `concurrent = ${units}` : `rate = "${units}${limit.per}"`;

  // A drawing is as wide as its place; what is in it is drawn again when that changes.
  const drawings = [];
  function chart(height, label, render) {
    const svg = draw('svg', { role: 'img', 'aria-label': label });
    const box = el('div', {}, svg);
    let last = 0;
    const paint = () => {
      const width = Math.max(240, Math.floor(box.clientWidth));
      if (width === last) return;
      last = width;
      svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
      svg.replaceChildren();
      render(svg, width, height);
    };
    drawings.push(paint);
    return box;
  }

  function ticksOfTime(start, end, most) {
    const steps = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
      172800, 604800, 1209600, 2592000, 7776000, 31536000];
    const step = steps.find((s) => (end - start) / s <= most) || 31536000;
    const ticks = [];
    for (let t = Math.ceil(start / step) * step; t <= end; t += step) ticks.push(t);
    const text = (t) => step >= 86400 || (t % 86400 === 0 && end - start > 86400)
      ? utc(t).slice(5, 10) : utc(t).slice(11, step < 60 ? 19 : 16);
    return ticks.map((t) => [t, text(t)]);
  }
  function ceiling(most) {
    const unit = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
    return [1, 2, 2.5, 5, 10].map((n) => n * unit).find((n) => n >= most) || most;
  }

  // Columns of counts over time; `over` in front of `under`.
  function overTime(under, over, height, words) {
    const { start, step } = data.timeline;
    const steps = under.length;
    const read = el('p', { class: 'read', 'aria-live': 'off' });
    const rest = () => read.replaceChildren(
      el('span', { class: 'key' + (words[0] ? '' : ' bad') }, el('i'), words[0] || words[1]),
      words[0] ? el('span', { class: 'key bad' }, el('i'), words[1]) : '',
      el('span', {}, `each step ${span(step)}`));
    rest();
    const box = chart(height, `${words.filter(Boolean).join(' and ')} over time`, (svg, width) => {
      const left = 44, bottom = height - 22, top = 8, right = width - 6;
      const most = ceiling(Math.max(1, ...under));
      const x = (i) => left + (right - left) * i / Math.max(1, steps);
      const y = (n) => bottom - (bottom - top) * n / most;
      for (const n of [0, most / 2, most]) {
        svg.append(draw('line', { class: 'axis', x1: left, x2: right, y1: y(n), y2: y(n) }));
        svg.append(draw('text', { x: left - 6, y: y(n) + 4, 'text-anchor': 'end' }, compact(n)));
      }
      for (const [t, text] of ticksOfTime(start, start + steps * step, Math.max(2, width / 90))) {
        const at = x((t - start) / step);
        if (at > right - 16 || at < left) continue;
        svg.append(draw('line', { class: 'axis', x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
        svg.append(draw('text', { x: at, y: height - 5, 'text-anchor': 'middle' }, text));
      }
      const area = (counts) => {
        let path = `M${x(0)} ${bottom}`;
        counts.forEach((n, i) => { path += `L${x(i).toFixed(1)} ${y(n).toFixed(1)}H${x(i + 1).toFixed(1)}`; });
        return `${path}V${bottom}Z`;
      };
      svg.append(draw('path', { class: words[0] ? 'fill-calm' : 'fill-bad', d: area(under) }));
      if (over) svg.append(draw('path', { class: 'fill-bad', d: area(over) }));
      const hair = draw('line', { class: 'hair', y1: top, y2: bottom, visibility: 'hidden' });
      svg.append(hair);
      svg.onpointermove = (event) => {
        const at = (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * width;
        const i = Math.max(0, Math.min(steps - 1, Math.floor((at - left) / (right - left) * steps)));
        hair.setAttribute('x1', x(i + 0.5)); hair.setAttribute('x2', x(i + 0.5));
        hair.setAttribute('visibility', 'visible');
        read.replaceChildren(el('b', {}, minute(start + i * step)), ' UTC: ',
          over ? [counted(under[i], 'request'), ', ', `${whole(over[i])} denied`] : `${whole(under[i])} denied`);
      };
      svg.onpointerleave = () => { hair.setAttribute('visibility', 'hidden'); rest(); };
    });
    return [box, read];
  }

  // The scale of peaks: logarithmic, so that a client at 3 and one at 3000 both have their place.
  function scale(limit) {
    const peaks = limit.peaks;
    const highest = Math.max(peaks.length ? peaks[peaks.length - 1][0] : 1, limit.units.twice, 2);
    return { low: Math.log(0.8), high: Math.log(highest * 1.25), highest };
  }
  const share = (limit, units) => {
    let hit = 0;
    for (const [peak, count] of limit.peaks) if (peak > units) hit += count;
    return hit;
  };
  function logAxis(svg, range, x, bottom, width) {
    const marks = [];
    for (let unit = 1; unit <= range.highest * 1.25; unit *= 10) {
      for (const n of [1, 2, 5]) if (n * unit <= range.highest * 1.25) marks.push(n * unit);
    }
    const every = Math.ceil(marks.length / Math.max(3, width / 46));
    marks.forEach((n, i) => {
      svg.append(draw('line', { class: 'axis', x1: x(n), x2: x(n), y1: bottom, y2: bottom + 4 }));
      if (i % every === 0) {
        svg.append(draw('text', { x: x(n), y: bottom + 17, 'text-anchor': 'middle' }, compact(n)));
      }
    });
  }
  // Lines of the three rates, their words one below the other where they would meet.
  function marks(svg, limit, x, top, bottom) {
    const lines = [[limit.units.half, '½×', ''], [limit.units.own, 'limit', 'own'], [limit.units.twice, '2×', '']];
    lines.forEach(([units, text, kind], i) => {
      if (kind === '' && units === limit.units.own) return;
      const at = x(units);
      svg.append(draw('line', { class: `mark ${kind}`, x1: at, x2: at, y1: top, y2: bottom }));
      const anchor = ['end', 'middle', 'start'][i];
      svg.append(draw('text', { class: kind, x: at + [-3, 0, 3][i], y: top - 5, 'text-anchor': anchor }, text));
    });
  }

  function histogram(limit) {
    const range = scale(limit);
    const label = `How many clients have which peak of ${limit.name}`;
    return chart(210, label, (svg, width, height) => {
      const left = 44, right = width - 8, top = 24, bottom = height - 22;
      const x = (n) => left + (right - left) * (Math.log(Math.max(n, 0.8)) - range.low) / (range.high - range.low);
      // Columns of one width where numbers are large, one for each number where they are small.
      const factor = Math.exp((range.high - range.low) * 9 / (right - left));
      const columns = [];
      for (const [peak, count] of limit.peaks) {
        const last = columns[columns.length - 1];
        if (last && (peak <= last.from * factor) && (peak > limit.units.own) === last.over) {
          last.to = peak; last.count += count;
        } else {
          columns.push({ from: Math.max(peak, 1), to: Math.max(peak, 1), count, over: peak > limit.units.own });
        }
      }
      const most = Math.max(1, ...columns.map((c) => c.count));
      // Few clients out of many must still be seen: the height is logarithmic too.
      const y = (n) => bottom - (bottom - top) * Math.log1p(n) / Math.log1p(most);
      for (let n = 1; n <= most; n *= 10) {
        svg.append(draw('line', { class: 'axis', x1: left, x2: right, y1: y(n), y2: y(n) }));
        svg.append(draw('text', { x: left - 6, y: y(n) + 4, 'text-anchor': 'end' }, compact(n)));
      }
      svg.append(draw('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
      for (const c of columns) {
        const at = (x(c.from) + x(c.to)) / 2;
        const wide = Math.max(5, Math.min(14, x(c.to) - x(c.from) + 7));
        const peak = c.from === c.to ? whole(c.from) : `${whole(c.from)} to ${whole(c.to)}`;
        svg.append(draw('rect', { class: c.over ? 'bar over' : 'bar', x: at - wide / 2, width: wide,
          y: y(c.count), height: Math.max(1, bottom - y(c.count)), rx: 1.5 },
        draw('title', {}, `${counted(c.count, 'client')} with a peak of ${peak}${limit.per}`)));
      }
      logAxis(svg, range, x, bottom, right - left);
      marks(svg, limit, x, top, bottom);
    });
  }

  function curve(limit) {
    const range = scale(limit);
    const clients = limit.clients;
    const highest = Math.max(1, Math.ceil(range.highest));
    const slots = 1000;
    const toUnits = (v) => Math.max(1, Math.min(highest, Math.round(Math.exp(Math.log(highest) * v / slots))));
    const toSlot = (units) => highest > 1 ? Math.log(units) / Math.log(highest) * slots : 0;
    const chosen = limit.suggested ? limit.suggested.units : limit.units.own;
    const output = el('code', {});
    const says = el('span', { class: 'soft' });
    let move = () => {};
    const choose = (units) => {
      const hit = share(limit, units);
      output.textContent = setting(limit, units);
      says.textContent = `by itself hits ${whole(hit)} of ${counted(clients, 'client')} (${percent(hit, clients)})`;
      move(units, hit);
    };
    const slider = el('input', { type: 'range', min: 0, max: slots, step: 1, value: Math.round(toSlot(chosen)),
      'aria-label': `Try another rate for ${limit.name}` });
    let shown = chosen;
    slider.addEventListener('input', () => { shown = toUnits(Number(slider.value)); choose(shown); });
    const label = `Share of clients that ${limit.name} hits at each rate`;
    const box = chart(210, label, (svg, width, height) => {
      const left = 54, right = width - 8, top = 24, bottom = height - 22;
      const x = (n) => left + (right - left) * (Math.log(Math.max(n, 0.8)) - range.low) / (range.high - range.low);
      // One client in a hundred thousand and one in two must both be seen: the height is logarithmic.
      const least = Math.max(1e-6, 0.5 / clients);
      const y = (part) => part <= least ? bottom : bottom - (bottom - top) * Math.log(part / least) / Math.log(1 / least);
      for (let part = 1; part > least * 1.5; part /= 10) {
        svg.append(draw('line', { class: 'axis', x1: left, x2: right, y1: y(part), y2: y(part) }));
        svg.append(draw('text', { x: left - 6, y: y(part) + 4, 'text-anchor': 'end' }, `${+(part * 100).toPrecision(1)} %`));
      }
      svg.append(draw('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
      let hit = share(limit, 1);
      let path = `M${x(1)} ${y(hit / clients).toFixed(1)}`;
      for (const [peak, count] of limit.peaks) {
        if (peak <= 1) continue;
        path += `H${x(peak).toFixed(1)}`;
        hit -= count;
        path += `V${y(hit / clients).toFixed(1)}`;
      }
      path += `H${right}`;
      svg.append(draw('path', { class: 'line-calm', d: path }));
      logAxis(svg, range, x, bottom, right - left);
      marks(svg, limit, x, top, bottom);
      const hair = draw('line', { class: 'mark good', y1: top, y2: bottom });
      const dot = draw('circle', { class: 'dot', r: 4.5 });
      svg.append(hair, dot);
      move = (units, hits) => {
        hair.setAttribute('x1', x(units)); hair.setAttribute('x2', x(units));
        dot.setAttribute('cx', x(units)); dot.setAttribute('cy', y(hits / clients));
      };
      choose(shown);
      svg.onpointerdown = svg.onpointermove = (event) => {
        if (event.type === 'pointermove' && event.buttons === 0) return;
        const at = (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * width;
        const part = (at - left) / (right - left);
        shown = Math.max(1, Math.min(highest, Math.round(Math.exp(range.low + part * (range.high - range.low)))));
        slider.value = Math.round(toSlot(shown));
        choose(shown);
      };
    });
    return [box, slider, el('div', { class: 'write' }, output, says)];
  }

  function figures(limit) {
    const row = (at, text) => el('tr', { class: at === 'own' ? 'own' : null },
      el('td', {}, text, ' ', el('code', {}, limit.rates[at])),
      el('td', { class: limit.denied[at] ? 'bad' : null }, whole(limit.denied[at]),
        el('span', { class: 'share' }, percent(limit.denied[at], limit.requests))),
      el('td', { class: limit.clients_hit[at] ? 'bad' : null }, whole(limit.clients_hit[at]),
        el('span', { class: 'share' }, percent(limit.clients_hit[at], limit.clients))));
    return el('table', {},
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Rate'),
        el('th', { scope: 'col' }, 'Requests denied'), el('th', { scope: 'col' }, 'Clients hit'))),
      el('tbody', {}, row('half', 'half'), row('own', 'this'), row('twice', 'twice')));
  }

  function clients(limit) {
    if (!limit.worst_clients.length) return null;
    return el('div', {}, el('h3', {}, limit.denied.own ? 'Clients denied most' : 'Clients that came closest'),
      el('table', {},
        el('thead', {}, el('tr', {}, ['Client', 'Requests', 'Denied', 'Peak'].map((t) => el('th', { scope: 'col' }, t)))),
        el('tbody', {}, limit.worst_clients.map((one) => el('tr', {},
          el('td', {}, el('code', {}, one.key)), el('td', {}, whole(one.requests)),
          el('td', { class: one.denied ? 'bad' : null }, whole(one.denied)),
          el('td', {}, whole(one.peak)))))));
  }

  function minutes(limit) {
    if (!limit.worst_minutes.length) return null;
    return el('div', {}, el('h3', {}, 'Worst minutes'),
      el('table', {},
        el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'UTC'), el('th', { scope: 'col' }, 'Denied'))),
        el('tbody', {}, limit.worst_minutes.map((one) => el('tr', {},
          el('td', {}, minute(one.at)), el('td', { class: 'bad' }, whole(one.denied)))))));
  }

  function card(limit) {
    const mode = { shadow: 'shadow: denies nothing yet', candidate: 'candidate: denies nothing' }[limit.mode];
    const title = el('div', { class: 'title' }, el('h2', {}, limit.name),
      el('code', {}, `${limit.rate}${limit.spent === null ? '' : ` ${limit.counts}`} by ${limit.key}${limit.tier ? `, tier ${limit.tier}` : ''}`),
      mode ? el('span', { class: 'badge' }, mode) : null);
    if (!limit.requests) {
      return el('section', { class: 'card' }, title, el('p', { class: 'soft' }, 'No request asked it.'));
    }
    const asked = `${counted(limit.requests, 'request')} of ${counted(limit.clients, 'client')} asked it.`;
    return el('section', { class: 'card' }, title,
      el('p', { class: 'soft' }, asked),
      el('div', { class: 'grid' },
        el('div', {}, figures(limit)),
        el('div', {}, limit.denied.own ? [el('h3', {}, 'Denied over time'), overTime(limit.over_time, null, 130, ['', 'denied'])]
          : el('p', { class: 'soft' }, 'It would have denied nothing.')),
        el('div', {}, el('h3', {}, `Clients by their peak${limit.per === ' at once' ? ' of requests at once' : `, ${limit.spent === null ? 'requests' : limit.counts}${limit.per}`}`), histogram(limit)),
        el('div', {}, el('h3', {}, 'Share of clients hit at another rate: pull it'), curve(limit)),
        clients(limit), minutes(limit)));
  }

  function unread() {
    if (!data.unread.lines) return null;
    return el('section', { class: 'card' },
      el('div', { class: 'title' }, el('h2', {}, `${counted(data.unread.lines, 'line')} could not be read`),
        el('span', { class: 'soft' }, percent(data.unread.lines, data.lines))),
      data.unread.kinds.map((kind) => el('div', { class: 'lines' },
        el('p', {}, `${whole(kind.lines)} ${kind.reason}`),
        kind.examples.map((one) => el('code', {}, `${one.log}:${one.line}  ${one.text}`)))));
  }

  const outsideWords = { bypassed: 'bypassed', unlimited: 'on routes without limits', no_route: 'without a route',
    refused: 'refused for their address, path, host or method', no_key: 'refused for want of a key' };
  const denied = data.denied.own;
  const share1 = percent(denied, data.requests);
  const figure = (kind, number, text) => el('div', { class: `figure ${kind}` }, el('b', {}, number), el('span', {}, text));
  const outside = Object.entries(data.outside).map(([kind, n]) => `${whole(n)} ${outsideWords[kind] || kind}`);
  page.replaceChildren(...[
    el('h1', {}, 'What these limits would have done'),
    el('p', { class: 'soft' }, data.from === null ? 'No line could be read.'
      : `${when(data.from)} to ${when(data.to)} UTC (${span(data.to - data.from)}), `
        + `${data.logs.length === 1 ? data.logs[0].name : counted(data.logs.length, 'log')}`),
    el('div', { class: 'figures' },
      figure('', whole(data.requests), 'requests'),
      figure(denied ? 'bad' : 'good', whole(denied), `would be denied (${share1})`),
      figure('', whole(data.denied.half), 'at half the rates'),
      figure('', whole(data.denied.twice), 'at twice the rates'),
      data.unread.lines ? figure('warn', whole(data.unread.lines), 'lines not read') : null),
    outside.length ? el('p', { class: 'soft' }, `Asked no limit: ${outside.join(', ')}.`) : null,
    data.requests ? el('section', { class: 'card' }, el('h3', {}, 'Requests'),
      overTime(data.timeline.requests, data.timeline.denied, 220, ['requests', 'would be denied'])) : null,
    ...data.limits.map(card),
    data.bans && data.bans.begun ? el('section', { class: 'card' }, el('h3', {}, 'Bans'),
      el('p', {}, `${counted(data.bans.begun, 'ban')} of ${counted(data.bans.keys, 'key')} would have denied `
        + `${counted(data.bans.denied, 'request')}.`),
      el('table', {}, el('thead', {}, el('tr', {}, ['Key', 'Limit', 'Bans', 'Denied'].map((t) => el('th', { scope: 'col' }, t)))),
        el('tbody', {}, data.bans.worst.map((one) => el('tr', {}, el('td', {}, one.key), el('td', {}, one.limit),
          el('td', {}, whole(one.bans)), el('td', { class: 'bad' }, whole(one.denied))))))) : null,
    data.limits.length ? null : el('section', { class: 'card' }, 'No route has a limit: nothing would be denied.'),
    data.notes.length ? el('section', { class: 'card' }, el('h3', {}, 'Worth knowing'),
      el('ul', {}, data.notes.map((note) => el('li', {}, note)))) : null,
    unread(),
    data.logs.length > 1 ? el('section', { class: 'card' }, el('h3', {}, 'Logs'), el('table', {},
      el('thead', {}, el('tr', {}, ['Log', 'Format', 'Lines', 'Not read'].map((t) => el('th', { scope: 'col' }, t)))),
      el('tbody', {}, data.logs.map((log) => el('tr', {}, el('td', {}, log.name), el('td', {}, log.format || '-'),
        el('td', {}, whole(log.lines)), el('td', {}, whole(log.unread))))))) : null,
  ].filter(Boolean));
  const paint = () => drawings.forEach((one) => one());
  paint();
  window.addEventListener('resize', paint);
})();
