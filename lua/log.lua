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
--          newest                          the last entry's stamp: ahead of `last` after a lease
--          shift                           own time = the store's clock + shift, us: grows when the
--                                          clock steps back, so that ages are kept
--          expires                         the store's second before which the key cannot expire
--   entry  stamp in units of q modulo 2^32 (2^48 where W/q >= 1.8e9), running total after it
-- No stamp is further than 2W/q from the last one, so the modulus loses nothing. Units that are
-- given back leave an entry of none, unless it is the last: that one always has units.

local LOG_MAGIC, LOG_HEAD, LOG_SHIFT_AT = 0x4C55, 57, 46
local LOG_FORMAT = '<I2I4I4I4I4I4I4I6I7I7I7I4'
local LOG_START, LOG_SHRINK, LOG_GIVE_BACK = 4, 32, 4096

-- The first live entry past `bound`, by stamp or by units since the base; the first entry is not
-- past it and the last one is. Returns its place, stamp, total, and the total before it.
-- Steps double from the first entry, since seldom more than a few have expired. Where the value
-- ends before the entry the log is marked as cut, and all but the last entry count as not past.
local function log_search(log, by_stamp, bound)
  local low, low_total, step = log.skip, log.first_total, 1
  local high, high_stamp, high_total = log.count - 1, log.newest, log.total
  while high - low > 1 do
    local middle = low + math.min(step, math.floor((high - low) / 2))
    local at = LOG_HEAD + (log.head + middle) % log.capacity * log.size
    local entry = redis.call('GETRANGE', log.key, at, at + log.size - 1)
    if #entry < log.size then log.cut = true; break end
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

-- Reads a key and ages it: `used` units are live at `now`. Writes nothing, but deletes a log
-- that was cut.
local function log_look(key, units, window, precision, now)
  local value = redis.pcall('GETRANGE', key, 0, LOG_HEAD - 1)
  local magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires
  if type(value) == 'string' and #value == LOG_HEAD then
    magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires =
      struct.unpack(LOG_FORMAT, value)
  end
  if magic ~= LOG_MAGIC or head >= capacity or count > capacity then
    capacity, head, count, base, total, first_total = 0, 0, 0, 0, 0, 0
    first, last, newest, shift, expires = 0, 0, 0, 0, 0
  end
  local own = now + shift
  local stepped = own < last
  if stepped then own, shift = last, last - now end

  local wide = window / precision >= 1800000000
  local edge = (own - own % precision - window) / precision
  local modulus = wide and 281474976710656 or 4294967296
  local log = {
    key = key, units = units, window = window, precision = precision,
    own = own, last = last, shift = shift, stepped = stepped, expires = expires, edge = edge,
    size = wide and 10 or 8, format = wide and '<I6I4' or '<I4I4', modulus = modulus,
    capacity = capacity, head = head, count = count, skip = 0, base = base, total = total,
    first = newest - (newest - first) % modulus, first_total = first_total, newest = newest,
    used = 0, foreign = value ~= '' and magic ~= LOG_MAGIC and value,
  }
  if newest <= edge then
    log.count, log.head = 0, 0
  elseif count > 0 then
    if log.first <= edge then
      log.skip, log.first, log.first_total, log.base = log_search(log, true, edge)
    end
    if log.cut then
      -- Not what we wrote: begun anew like anything else that is not ours.
      local gone = redis.pcall('DEL', key)
      if type(gone) == 'table' then log.foreign = gone; return log end
      log = log_look(key, units, window, precision, now)
      log.foreign = value
      return log
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

-- The bytes of `count` entries from the `skip`th on.
local function log_entries(log, skip, count)
  local from, size = (log.head + skip) % log.capacity, log.size
  local straight = math.min(count, log.capacity - from)
  local at = LOG_HEAD + from * size
  local entries = redis.call('GETRANGE', log.key, at, at + straight * size - 1)
  if count > straight then
    local rest = LOG_HEAD + (count - straight) * size - 1
    entries = entries .. redis.call('GETRANGE', log.key, LOG_HEAD, rest)
  end
  return entries
end

local function log_top(log)
  return struct.pack(LOG_FORMAT, LOG_MAGIC, log.capacity, log.head, log.count, log.base, log.total,
    log.first_total, log.first % log.modulus, log.last, log.newest, log.shift, log.expires)
end

-- Admits units at `now`, stamped `ahead` us later: what is leased counts from the lease's end. No
-- stamp is before the newest. Returns the server's error if it refused to write.
local function log_charge(log, cost, now, ahead)
  local live, old = log.count - log.skip, log.capacity
  local at = log.own + ahead
  local stamp = (at + (-at) % log.precision) / log.precision
  if live == 0 then
    log.base, log.first = log.total, stamp
  elseif stamp < log.newest then
    stamp = log.newest
  end
  if live == 0 or stamp ~= log.newest then live = live + 1 end
  log.total = (log.total + cost) % 4294967296
  if live == 1 then log.first_total = log.total end

  -- The key must outlive every unit in it; renewed about once in a window, not at each write.
  local seconds = math.ceil((2 * log.window + log.precision + ahead) / 1000000) + 1
  local renew = log.expires * 1000000 <= now + log.window + log.precision + ahead
  local rewrite = live > old or (live == 1 and old > LOG_SHRINK)
  if renew or rewrite then log.expires = math.floor(now / 1000000) + seconds end

  local entry = struct.pack(log.format, stamp % log.modulus, log.total)
  local kept = ''
  if rewrite then
    if live > 1 then kept = log_entries(log, log.skip, live - 1) end
    local most = math.min(log.units, log.window / log.precision + 2)
    local wanted = live > old and math.max(2 * old, LOG_START) or LOG_START
    log.head, log.capacity = 0, math.max(math.min(wanted, most), live)
  else
    log.head = (log.head + log.skip) % old
  end
  log.count, log.skip, log.newest, log.last = live, 0, stamp, log.own
  log.used = log.used + cost

  local done
  if rewrite then
    local free = string.rep('\0', (log.capacity - live) * log.size)
    done = redis.pcall('SET', log.key, log_top(log) .. kept .. entry .. free, 'EX', seconds)
  else
    local place = LOG_HEAD + (log.head + live - 1) % log.capacity * log.size
    done = redis.pcall('SETRANGE', log.key, place, entry)
    if type(done) == 'number' then done = redis.pcall('SETRANGE', log.key, 0, log_top(log)) end
    if renew then redis.pcall('EXPIRE', log.key, seconds) end
  end
  return type(done) == 'table' and done.err
end

-- Takes back up to `cost` units of the entry stamped `stamp` (modulo 2^48): all totals from it on
-- sink. Nothing happens where it has expired, or where more than LOG_GIVE_BACK entries came since.
local function log_give_back(log, cost, stamp)
  stamp = log.newest - (log.newest - stamp) % 281474976710656
  if log.used == 0 or stamp < log.first then return end
  local place, found, before = log.skip, log.first, log.base
  if stamp ~= found then
    local _
    place, found, _, before = log_search(log, true, stamp - 1)
  end
  local count = log.count - place
  if found ~= stamp or count > LOG_GIVE_BACK then return end

  local bytes, entries, taken = log_entries(log, place, count), {}, nil
  if #bytes < count * log.size then return end
  for i = 1, count do
    local at, total = struct.unpack(log.format, bytes, (i - 1) * log.size + 1)
    taken = taken or math.min(cost, (total - before) % 4294967296)
    entries[i] = struct.pack(log.format, at, (total - taken) % 4294967296)
  end
  if taken == 0 then return end
  if place == log.skip then log.first_total = (log.first_total - taken) % 4294967296 end
  log.total, log.used = (log.total - taken) % 4294967296, log.used - taken

  local from = (log.head + place) % log.capacity
  local straight = math.min(count, log.capacity - from)
  local at = LOG_HEAD + from * log.size
  redis.call('SETRANGE', log.key, at, table.concat(entries, '', 1, straight))
  if count > straight then
    redis.call('SETRANGE', log.key, LOG_HEAD, table.concat(entries, '', straight + 1))
  end

  -- The last entry must have units: `reset` is told from it.
  local last_place, total, last = log.count - 1, log.total, nil
  while last_place >= log.skip do
    local from_last = last_place > log.skip and 1 or 0
    local pair = log_entries(log, last_place - from_last, from_last + 1)
    local previous = log.base
    if from_last == 1 then last, previous = struct.unpack(log.format, pair) end
    last = struct.unpack(log.format, pair, from_last * log.size + 1)
    if previous ~= total then break end
    last_place = last_place - 1
  end
  log.head, log.count, log.skip = (log.head + log.skip) % log.capacity, last_place + 1 - log.skip, 0
  if log.count > 0 then log.newest = log.newest - (log.newest - last) % log.modulus end
  redis.call('SETRANGE', log.key, 0, log_top(log))
end

-- Keeps the ages after a step back of the clock: the only write of a denial.
local function log_keep_ages(log)
  redis.pcall('SETRANGE', log.key, LOG_SHIFT_AT, struct.pack('<I7', log.shift))
end
