// Requests to the proxy: the token, JSON, problems, the stream of denials, and polls. Polls slow
// down when the proxy does not answer, and pause while the page is hidden.

const TOKEN_KEY = 'tidegate.token';
const LONGEST_WAIT_MS = 10_000;
/** A stream without data for so long is dead: the proxy sends a comment every 15 seconds. */
const SILENCE_MS = 45_000;
const ANSWER_MS = 8_000;

/** A failed request: `status` is 0 without an answer. */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let token = '';
/** The paths in the API document of this proxy; null if it was not read. */
let offered = null;

/** Reads the paths of the API, so that the page shows no button without an endpoint. */
export async function readPaths() {
  try {
    const answer = await fetch('openapi.json', { cache: 'no-store' });
    if (answer.ok) offered = new Set(Object.keys((await answer.json()).paths));
  } catch {
    offered = null;
  }
}

export const offers = (path) => offered === null || offered.has(`/api/v1/${path}`);

/** Takes `#token=` out of the address, so that it is not kept in the history and on the screen. */
export function takeToken() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (found) {
    keepToken(decodeURIComponent(found[1]));
    const rest = location.hash.replace(/([#&])token=[^&]*&?/, '$1').replace(/[#&]$/, '');
    history.replaceState(null, '', location.pathname + location.search + rest);
  } else {
    try {
      token = sessionStorage.getItem(TOKEN_KEY) ?? '';
    } catch {
      token = '';
    }
  }
  return Boolean(found);
}

/** Kept until this tab is closed. */
export function keepToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(TOKEN_KEY, token);
    else sessionStorage.removeItem(TOKEN_KEY);
  } catch {
    // Without storage the token is kept until the page is closed.
  }
}

export const hasToken = () => token !== '';

function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function request(path, options) {
  let answer;
  try {
    const signal = options.signal ?? AbortSignal.timeout(ANSWER_MS);
    answer = await fetch(`api/v1/${path}`, { cache: 'no-store', signal, ...options });
  } catch {
    throw new Problem(0, 'the proxy does not answer');
  }
  if (answer.ok) return answer;
  let detail = `${answer.status} ${answer.statusText}`;
  try {
    const problem = await answer.json();
    detail = problem.detail ?? problem.title ?? detail;
  } catch {
    // An answer without a problem document: its status is enough.
  }
  throw new Problem(answer.status, detail);
}

async function body(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Problem(0, "the proxy's answer was cut off");
  }
}

export const get = async (path) => body(await request(path, { headers: headers() }));

export async function getText(path) {
  const answer = await request(path, { headers: headers() });
  return answer.text();
}

export async function post(path, value) {
  const options = {
    method: 'POST',
    headers: headers({ 'Content-Type': 'application/json' }),
    body: JSON.stringify(value),
  };
  return body(await request(path, options));
}

/**
 * Calls `work` every `every` milliseconds, and at once when the page becomes visible again. After
 * each failure it waits longer, and calls `failed` with the wait.
 */
export class Poll {
  constructor(every, work, failed = () => {}) {
    Object.assign(this, { every, work, failed, failures: 0, timer: 0, busy: false });
    Object.assign(this, { hasWorked: false, isOver: false });
    document.addEventListener('visibilitychange', () => this.now());
    this.now();
  }

  async now() {
    clearTimeout(this.timer);
    this.again = this.busy;
    if (document.hidden || this.busy || this.isOver) return;
    this.busy = true;
    let wait = this.every;
    try {
      await this.work();
      this.failures = 0;
      this.hasWorked = true;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      wait = Math.min(this.every * 2 ** this.failures, LONGEST_WAIT_MS);
      this.failures += 1;
      // An endpoint that is missing now stays missing.
      this.isOver = error.status === 404 && !this.hasWorked;
      this.failed(error, wait);
    } finally {
      this.busy = false;
      if (this.again) wait = 0;
      if (!document.hidden && !this.isOver) this.timer = setTimeout(() => this.now(), wait);
    }
  }
}

/**
 * Server-sent events over fetch, because an EventSource cannot send a token. The stream opens again
 * after its end, and pauses while the page is hidden.
 */
export class Stream {
  constructor(path, onEvent, onState) {
    Object.assign(this, { path, onEvent, onState, stop: null, failures: 0, timer: 0 });
    document.addEventListener('visibilitychange', () => this.open());
    this.open();
  }

  close() {
    clearTimeout(this.timer);
    this.stop?.abort();
    this.stop = null;
  }

  isOpen() {
    return this.state === 'live';
  }

  setState(state) {
    this.state = state;
    this.onState(state);
  }

  async open() {
    this.close();
    if (document.hidden) return;
    const stop = new AbortController();
    this.stop = stop;
    try {
      const options = { headers: headers({ Accept: 'text/event-stream' }), signal: stop.signal };
      const answer = await request(this.path, options);
      this.setState('live');
      await this.read(answer.body.getReader(), stop);
    } catch (error) {
      if (stop.signal.aborted && this.stop !== stop) return;
      this.failures += 1;
      this.setState({ 401: 'locked', 404: 'none' }[error.status] ?? 'away');
      if (this.state === 'none') return;
    }
    if (this.stop === stop) {
      const wait = Math.min(1000 * 2 ** this.failures, LONGEST_WAIT_MS);
      this.timer = setTimeout(() => this.open(), wait);
    }
  }

  async read(reader, stop) {
    const decoder = new TextDecoder();
    let left = '';
    for (;;) {
      const silence = setTimeout(() => stop.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      this.failures = 0;
      left += decoder.decode(value, { stream: true });
      const events = left.split('\n\n');
      left = events.pop();
      events.forEach((text) => this.dispatch(text));
    }
  }

  dispatch(text) {
    let kind = 'message';
    const data = [];
    for (const line of text.split('\n')) {
      if (line.startsWith('event:')) kind = line.slice(6).trim();
      else if (line.startsWith('data:')) data.push(line.slice(5).trim());
    }
    if (data.length === 0) return;
    let value;
    try {
      value = JSON.parse(data.join('\n'));
    } catch {
      return; // Half an event of a stream that broke: the next one is whole.
    }
    this.onEvent(kind, value);
  }
}
