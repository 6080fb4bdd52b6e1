-- The sliding-window log: exact. Twin of src/limit/log.rs; joined before counter.lua and decide.lua.
--
-- A unit admitted at s counts at t if and only if t - W < s <= t. Admissions are stamped up to a
-- multiple of the precision q and now is rounded down before ageing, so the bound holds for every q.
--
-- One key is one STRING: a head and a ring of entries, oldest first, one for each stamp.
--   head   magic, capacity, head, count    entries the ring can hold, the oldest's slot, how many
--          base, total, first_total        running totals before the first entry, after the last,
--                                          after the first; all modulo 2^32
--          first                           the first entry's stamp, as in the entry
--          last                            own time of the last admission, us
--          shift                           own time = the store's clock + shift, us: grows when the
--                                          clock steps back, so that ages are kept
--          expires                         the store's second before which the key cannot expire
--   entry  stamp in units of q modulo 2^32 (2^48 where W/q >= 1.8e9), running total after it
-- No stamp is further than 2W/q from the last one, so the modulus loses nothing.

local LOG_MAGIC, LOG_HEAD, LOG_SHIFT_AT = 0x4C54, 50, 39
local LOG_FORMAT = '<I2I4I4I4I4I4I4I6I7I7I4'
local LOG_START, LOG_SHRINK = 4, 32

-- The first live entry past `bound`, by stamp or by units since the base; the first entry is not
-- past it and the last one is. Returns its place, stamp, total, and the total before it.
-- Steps double from the first entry, since seldom more than a few have expired.
local function log_search(log, by_stamp, bound)
  local low, low_total, step = log.skip, log.first_total, 1
  local high, high_stamp, high_total = log.count - 1, log.newest, log.total
  while high - low > 1 do
    local middle = low + math.min(step, math.floor((high - low) / 2))
    local at = LOG_HEAD + (log.head + middle) % log.capacity * log.size
    local entry = redis.call('GETRANGE', log.key, at, at + log.size - 1)
    local stamp, total = struct.unpack(log.format, entry)
    stamp = log.newest - (log.newest - stamp) % log.modulus
    if (by_stamp and stamp or (total - log.base) % 4294967296) > bound then
      high, high_stamp, high_total = middle, stamp, total
    else
      low, low_total = middle, total
    end
    step = step * 2
  end
  return high, high_stamp, high_total, low_total
end

-- Reads a key and ages it: `used` units are live at `now`. Writes nothing.
local function log_look(key, units, window, precision, cost, now)
  local value = redis.pcall('GETRANGE', key, 0, LOG_HEAD - 1)
  local magic, capacity, head, count, base, total, first_total, first, last, shift, expires
  if type(value) == 'string' and #value == LOG_HEAD then
    magic, capacity, head, count, base, total, first_total, first, last, shift, expires =
      struct.unpack(LOG_FORMAT, value)
  end
  if magic ~= LOG_MAGIC or head >= capacity or count > capacity then
    capacity, head, count, base, total, first_total = 0, 0, 0, 0, 0, 0
    first, last, shift, expires = 0, 0, 0, 0
  end
  local own = now + shift
  local stepped = own < last
  if stepped then own, shift = last, last - now end

  local wide = window / precision >= 1800000000
  local edge = (own - own % precision - window) / precision
  local newest = (last + (-last) % precision) / precision
  local modulus = wide and 281474976710656 or 4294967296
  local log = {
    charges_log = true, key = key, units = units, window = window, precision = precision,
    cost = cost, own = own, shift = shift, stepped = stepped, expires = expires,
    size = wide and 10 or 8, format = wide and '<I6I4' or '<I4I4', modulus = modulus,
    capacity = capacity, head = head, count = count, skip = 0, base = base, total = total,
    first = newest - (newest - first) % modulus, first_total = first_total, newest = newest,
    used = 0, retry = 0, foreign = value ~= '' and magic ~= LOG_MAGIC and value,
  }
  if newest <= edge then
    log.count, log.head = 0, 0
  elseif count > 0 then
    if log.first <= edge then
      log.skip, log.first, log.first_total, log.base = log_search(log, true, edge)
    end
    log.used = (total - log.base) % 4294967296
  end
  return log
end

-- Microseconds until no more than `room` units are live if nothing else is admitted.
local function log_wait(log, room)
  local need, stamp = log.used - room, log.first
  if need <= 0 then return 0 end
  if room == 0 then
    stamp = log.newest
  elseif need > (log.first_total - log.base) % 4294967296 then
    local _
    _, stamp = log_search(log, false, need - 1)
  end
  return stamp * log.precision + log.window - log.own
end

-- The bytes of `count` entries from the first live one on.
local function log_entries(log, count)
  local from, size = (log.head + log.skip) % log.capacity, log.size
  local straight = math.min(count, log.capacity - from)
  local at = LOG_HEAD + from * size
  local entries = redis.call('GETRANGE', log.key, at, at + straight * size - 1)
  if count > straight then
    local rest = LOG_HEAD + (count - straight) * size - 1
    entries = entries .. redis.call('GETRANGE', log.key, LOG_HEAD, rest)
  end
  return entries
end

-- Admits the cost at `now`. Returns the server's error if it refused to write.
local function log_charge(log, now)
  local live = log.count - log.skip
  local stamp = (log.own + (-log.own) % log.precision) / log.precision
  local total = (log.total + log.cost) % 4294967296
  if live == 0 then log.base, log.first = log.total, stamp end
  if live == 0 or stamp ~= log.newest then live = live + 1 end
  if live == 1 then log.first_total = total end

  -- The key must outlive every unit in it; renewed about once in a window, not at each write.
  local seconds = math.ceil((2 * log.window + log.precision) / 1000000) + 1
  local renew = log.expires * 1000000 <= now + log.window + log.precision
  local rewrite = live > log.capacity or (live == 1 and log.capacity > LOG_SHRINK)
  if renew or rewrite then log.expires = math.floor(now / 1000000) + seconds end

  local entry = struct.pack(log.format, stamp % log.modulus, total)
  local kept, head, capacity = '', 0, log.capacity
  if rewrite then
    if live > 1 then kept = log_entries(log, live - 1) end
    local most = math.min(log.units, log.window / log.precision + 2)
    local wanted = live > capacity and math.max(2 * capacity, LOG_START) or LOG_START
    capacity = math.max(math.min(wanted, most), live)
  else
    head = (log.head + log.skip) % capacity
  end
  local top = struct.pack(LOG_FORMAT, LOG_MAGIC, capacity, head, live, log.base, total,
    log.first_total, log.first % log.modulus, log.own, log.shift, log.expires)

  local done
  if rewrite then
    local free = string.rep('\0', (capacity - live) * log.size)
    done = redis.pcall('SET', log.key, top .. kept .. entry .. free, 'EX', seconds)
  else
    local at = LOG_HEAD + (head + live - 1) % capacity * log.size
    done = redis.pcall('SETRANGE', log.key, at, entry)
    if type(done) == 'number' then done = redis.pcall('SETRANGE', log.key, 0, top) end
    if renew then redis.pcall('EXPIRE', log.key, seconds) end
  end
  log.capacity, log.head, log.count, log.skip = capacity, head, live, 0
  log.total, log.newest, log.used = total, stamp, log.used + log.cost
  return type(done) == 'table' and done.err
end

-- Keeps the ages after a step back of the clock: the only write of a denial.
local function log_keep_ages(log)
  redis.pcall('SETRANGE', log.key, LOG_SHIFT_AT, struct.pack('<I7', log.shift))
end
