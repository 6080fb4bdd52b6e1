// Typical mistakes in a proxy.toml. Each has the line that is marked, and the message there.

const LIMIT =
  '"a key of `[limit.NAME]` (algorithm, ban, calendar, candidate, concurrent, cost, counts, delay, delay_queue, ' +
  'enforce, exempt, exempt_file, hold, key, lease, missing, on_error, precision, rate, shadow, slot, status, tiers, values)" was expected';
const ROUTE =
  '"a key of `[[route]]` (access, access_logs, add_prefix, bandwidth, bandwidth_after, body_limit, body_read, case, cost, error_pages, ' +
  'expires, expires_from, headers, headers_down, headers_success, headers_up, host, limits, location_base, method_up, methods, name, pass_body, pass_headers, path, port, query, redirect, refund, replace_prefix, require_client_certificate, respond, rewrite_down, settle, ' +
  'strip_prefix, timeout, trailers_down, trailing_slash, upstream, usage)" was expected';
const SERVER =
  '"a key of `[server]` (body_memory, body_timeout, connection_age, connection_requests, control, drain_idle, ' +
  'drain_timeout, handover_timeout, header_timeout, http2, https_port, idle_timeout, max_body, max_connections, ' +
  'max_connections_per_ip, max_header_bytes, max_headers, max_streams, pid_file, ' +
  'underscores_in_headers, waiting, workers)" was ' +
  'expected';
const TOP =
  '"a key of the top (access, access_log, admin, admin_hosts, admin_token_file, api_key, auth, bypass, case, client_ip, ' +
  'decide, deny, descriptor, error_page, headers, ledger, limit, listen, log, prices, proxy_protocol, route, server, ' +
  'status, store, tier, tls, tracing, trusted_proxies, upstream, usage)" was expected';
const RATE =
  '"COUNT/WINDOW in ms, s, min, h, d, week, month or year, such as 100/min; or unlimited" was ' +
  'expected';
const KEY =
  '"ip, api_key, header:NAME, query:NAME, cookie:NAME, path, path:NAME, method, host, route, global, ' +
  'tier, jwt:NAME, tls:NAME, entry:NAME, body:NAME, mcp:NAME, graphql:NAME, or several with ` or ` ' +
  'between them" was expected';
const ON_ERROR = '"open" is not one of ["local","allow","deny"]';

/** The text, the line, the message. */
export const MISTAKES = [
  // Misspelt names.
  ['lisen = ":8080"', 1, TOP],
  ['[limits.a]\nrate = "1/s"', 1, TOP],
  ['[sever]\nhttp2 = true', 1, TOP],
  ['[[bypas]]\npath = "/"', 1, TOP],
  ['[limit.a]\nrate = "1/s"\nkye = "ip"', 3, LIMIT],
  ['[[route]]\npath = "/*"\nlimtis = ["a"]', 3, ROUTE],
  ['[server]\nheader_timeot = "1s"', 2, SERVER],
  ['[[route]]\npath = "/"\nrespond = { status = 404, boddy = "x" }', 3,
    '"a key of `route.respond` (body, content_type, status, variables)" was expected'],
  ['[upstream.a]\nservers = [{ url = "http://a", wieght = 2 }]', 2,
    '"a key of `[[upstream.NAME.servers]]` (backup, max_connections, url, weight)" was expected'],
  ['[upstream.a]\nservers = "http://a"\n[upstream.a.health]\npath = "/"\nevry = "1s"', 5,
    '"a key of `[upstream.NAME.health]` (every, healthy, host, path, status, timeout, unhealthy)" ' +
      'was expected'],
  ['[limit.a]\nrate = "1/month"\n[limit.a.calendar]\nzon = "UTC"', 4,
    '"a key of `[limit.NAME.calendar]` (anchor, day, week, zone)" was expected'],
  ['[[tls.certificates]]\ncert = "a"\nkey = "b"\nkeyy = "c"', 4,
    '"a key of `[[tls.certificates]]` (cert, key)" was expected'],
  ['[limit."A b"]\nrate = "1/s"', 1,
    '"a name of 1 to 64 of `a-z`, `0-9`, `_` and `-`" was expected'],
  // Values of another type.
  ['[limit.a]\nrate = "1/s"\nshadow = "yes"', 3, '"yes" is not of type "boolean"'],
  ['[limit.a]\nrate = 100', 2, '100 is not of types "array", "string"'],
  ['[limit.a]\nrate = ["1/s", 5]', 2, '5 is not of type "string"'],
  ['[limit.a]\nrate = "1/s"\ntiers = { pro = 5 }', 3, '5 is not of types "array", "string"'],
  ['[[route]]\npath = "/*"\nlimits = [5]', 3, '5 is not of type "string"'],
  ['[server]\nheader_timeout = 10', 2, '10 is not of type "string"'],
  ['upstream = 5', 1, '5 is not of types "object", "string"'],
  ['[limit]\nrate = "1/s"', 2, '"1/s" is not of type "object"'],
  ['[route]\npath = "/*"', 1, '{"path":"/*"} is not of type "array"'],
  ['[upstream.a]\nservers = "http://a"\neject = true', 3, 'false was expected'],
  // Texts of another form, and numbers.
  ['[limit.a]\nrate = "100 per minute"', 2, RATE],
  ['[limit.a]\nrate = "100/mintes"', 2, RATE],
  ['[limit.a]\nrate = "1/s"\ntiers = { pro = ["5/s", "9"] }', 3, RATE],
  ['[limit.a]\nrate = "1/s"\nkey = "ipp"', 3, KEY],
  ['[limit.a]\nrate = "1/s"\nkey = ["ip", "header"]', 3, KEY],
  ['[server]\nheader_timeout = "10"', 2,
    '"a number and a unit of ms, s, min, h or d, such as 10s" was expected'],
  ['[server]\nmax_body = "10 megs"', 2,
    '"unlimited, or a number of bytes, or one with a unit, such as 64KiB or 10MB" was expected'],
  ['[[route]]\npath = "/*"\nrefund = ["6xx"]', 3, '"a status such as 503 or 5xx" was expected'],
  ['[server]\nworkers = -1', 2, '-1 is less than the minimum of 0'],
  ['[log]\nsample_allowed = 5', 2, '5 is greater than the maximum of 1'],
  // Words that are none.
  ['[limit.a]\nrate = "1/s"\non_error = "open"', 3, ON_ERROR],
  ['[store]\non_error = "open"', 2, ON_ERROR],
  ['[store]\nfleet = "many"', 2, '"many" is not one of ["auto"]'],
  ['[upstream.a]\nservers = "http://a"\n[upstream.a.retries]\non = ["closd"]', 4,
    '"closed, or timeout, or a status such as 503 or 5xx" was expected'],
  // Settings that lack, and settings that exclude each other.
  ['[limit.a]\nkey = "ip"', 1, '"rate" is a required property'],
  ['[[route]]\npath = "/a"\n[[route]]\nlimits = []', 3, '"path" is a required property'],
  ['[upstream.a]\nbalance = "p2c"', 1, '"servers" is a required property'],
  ['[[route]]\npath = "/*"\nredirect = { status = 301 }', 3, '"to" is a required property'],
  ['[limit.a]\nrate = "1/s"\nconcurrent = 5', 2, '"`rate` without `concurrent`" was expected'],
  ['[store]\nurl = "memory:"\nurls = ["memory:"]', 3, '"`urls` without `url`" was expected'],
];

/** Mistakes that only `tidegate check` finds. */
export const NOT_MARKED = [
  '[[route]]\npath = "/*"\nlimits = ["no-such-limit"]',
  '[limit.a]\nrate = "0/s"',
];
