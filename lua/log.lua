-- The sliding-window log: exact. Twin of src/limit/log.rs; joined before counter.lua, slots.lua and
-- decide.lua.
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
--
-- What a decision costs is its redis.call()s and the numbers in them (each is printed: offsets that
-- do not change are strings), closures and tables. So a look reads the head and the first LOG_READ
-- bytes at once: in a ring of up to 64 entries that is all there is to read, and a charge writes
-- the head, what lies between, and its entry in one go.

local unpack, pack, sub, format = struct.unpack, struct.pack, string.sub, string.format
local redis_call, redis_pcall, type = redis.call, redis.pcall, type

-- The functions that decide about logs; made where a call has one.
local function log_kind()
  local MAGIC, HEAD, HEAD_FORMAT = 0x4C55, 57, '<I2I4I4I4I4I4I4I6I7I7I7I4'
  local START, SHRINK = 4, 32

  -- The first live entry past `bound`, by stamp or by units since the base; the first entry is not
  -- past it and the last one is. Returns its place, stamp, total, and the total before it.
  -- Steps double from the first entry, since seldom more than a few have expired. Where the value
  -- ends before the entry the log is marked as cut, and all but the last entry count as not past.
  local function search(log, by_stamp, bound)
    local size, modulus, entry = log.rule.size, log.rule.modulus, log.rule.entry
    local low, low_total, step = log.skip, log.first_total, 1
    local high, high_stamp, high_total, newest = log.count - 1, log.newest, log.total, log.newest
    while high - low > 1 do
      local middle, between = low + step, high - low
      if step + step > between then middle = low + (between - between % 2) / 2 end
      local at = HEAD + (log.head + middle) % log.capacity * size
      local value, from = log.value, at + 1
      if at + size > #value then
        value = redis_call('GETRANGE', log.key, format('%d', at), format('%d', at + size - 1))
        from = 1
        if #value < size then log.cut = true; break end
      end
      local stamp, total = unpack(entry, value, from)
      stamp = newest - (newest - stamp) % modulus
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
  local function look(log, key, rule, now)
    local value = redis_pcall('GETRANGE', key, '0', '312')
    local magic, capacity, head, count, base, total
    local first_total, first, last, newest, shift, expires
    if #value >= HEAD then
      magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires =
        unpack(HEAD_FORMAT, value)
    end
    if magic ~= MAGIC or head >= capacity or count > capacity then
      capacity, head, count, base, total, first_total = 0, 0, 0, 0, 0, 0
      first, last, newest, shift, expires = 0, 0, 0, 0, 0
    end
    local own, stepped = now + shift, false
    if own < last then own, shift, stepped = last, last - now, true end

    local precision = rule.precision
    local edge = (own - own % precision - rule.window) / precision
    log.key, log.rule, log.value, log.now = key, rule, value, now
    log.own, log.last, log.shift, log.stepped, log.expires = own, last, shift, stepped, expires
    log.capacity, log.head, log.count, log.skip = capacity, head, count, 0
    log.base, log.total, log.first_total, log.newest = base, total, first_total, newest
    log.used, log.cut = 0, false
    log.foreign = magic ~= MAGIC and value ~= '' and value
    if newest <= edge then
      log.count, log.head = 0, 0
    elseif count > 0 then
      first = newest - (newest - first) % rule.modulus
      if first <= edge then
        log.skip, first, log.first_total, base = search(log, true, edge)
        log.base = base
      end
      if log.cut then
        -- Not what we wrote: begun anew like anything else that is not ours.
        local gone = redis_pcall('DEL', key)
        if type(gone) == 'table' then log.foreign = gone; return end
        look(log, key, rule, now)
        log.foreign = value
        return
      end
      log.used = (total - base) % 4294967296
    end
    log.first = first
  end

  -- Microseconds until no more than `room` units are live if nothing else is admitted.
  local function wait(log, room)
    local need, stamp, rule = log.used - room, log.first, log.rule
    if need <= 0 then return 0 end
    if room == 0 then
      stamp = log.newest
    elseif need > (log.first_total - log.base) % 4294967296 then
      local _
      _, stamp = search(log, false, need - 1)
    end
    return stamp * rule.precision + rule.window - log.own
  end

  local function top(log)
    return pack(HEAD_FORMAT, MAGIC, log.capacity, log.head, log.count, log.base, log.total,
      log.first_total, log.first % log.rule.modulus, log.last, log.newest, log.shift, log.expires)
  end

  -- The bytes of `count` entries from the `skip`th on.
  local function entries_of(log, skip, count)
    local from, size = (log.head + skip) % log.capacity, log.rule.size
    local straight = math.min(count, log.capacity - from)
    local at = HEAD + from * size
    local entries = redis_call('GETRANGE', log.key, at, at + straight * size - 1)
    if count > straight then
      local rest = HEAD + (count - straight) * size - 1
      entries = entries .. redis_call('GETRANGE', log.key, HEAD, rest)
    end
    return entries
  end

  -- Writes a ring of another size: the live entries, and the new one as the last of `live`.
  local function rewrite(log, live, entry, seconds)
    local rule, old = log.rule, log.capacity
    local kept = live > 1 and entries_of(log, log.skip, live - 1) or ''
    local most = math.min(rule.units, rule.window / rule.precision + 2)
    local wanted = live > old and math.max(2 * old, START) or START
    log.head, log.capacity = 0, math.max(math.min(wanted, most), live)
    log.count, log.skip = live, 0
    local stands = top(log)
    log.value = stands .. kept .. entry .. string.rep('\0', (log.capacity - live) * rule.size)
    return redis_pcall('SET', log.key, log.value, 'EX', seconds), stands
  end

  -- Admits units at `now`, stamped `ahead` us later: what is leased counts from the lease's end. No
  -- stamp is before the newest. Returns the server's error if it refused to write.
  local function charge(log, cost, ahead)
    local rule, capacity, own, skip = log.rule, log.capacity, log.own, log.skip
    local live, total, at = log.count - skip, (log.total + cost) % 4294967296, own + ahead
    local precision = rule.precision
    local stamp = (at + (-at) % precision) / precision
    if live == 0 then
      log.base, log.first = log.total, stamp
    elseif stamp < log.newest then
      stamp = log.newest
    end
    if live == 0 or stamp ~= log.newest then live = live + 1 end
    if live == 1 then log.first_total = total end
    log.total, log.newest, log.last, log.used = total, stamp, own, log.used + cost

    -- The key must outlive every unit in it; renewed about once in a window, not at each write.
    local rewrites = live > capacity or (live == 1 and capacity > SHRINK)
    local renews = log.expires * 1000000 <= log.now + rule.window + precision + ahead
    local seconds
    if renews or rewrites then
      seconds = math.ceil((2 * rule.window + precision + ahead) / 1000000) + 1
      log.expires = math.floor(log.now / 1000000) + seconds
    end

    local entry, done, stands = pack(rule.entry, stamp % rule.modulus, total), nil, nil
    if rewrites then
      done, stands = rewrite(log, live, entry, seconds)
    else
      local key, head = log.key, (log.head + skip) % capacity
      log.head, log.count, log.skip = head, live, 0
      stands = top(log)
      local place = HEAD + (head + live - 1) % capacity * rule.size
      if place <= #log.value then
        local between = place > HEAD and sub(log.value, HEAD + 1, place) or ''
        done = redis_pcall('SETRANGE', key, '0', stands .. between .. entry)
      else
        done = redis_pcall('SETRANGE', key, format('%d', place), entry)
        if type(done) == 'number' then done = redis_pcall('SETRANGE', key, '0', stands) end
      end
      if renews then redis_pcall('EXPIRE', key, seconds) end
    end
    -- What a charge says of itself is its head, where the first entry is the next to go.
    log.stands = log.first_total ~= log.base and stands
    if done == HEAD + log.capacity * rule.size then return end
    return type(done) == 'table' and done.err
  end

  -- Takes back up to `cost` units of the entry stamped `stamp` (modulo 2^48): all totals from it on
  -- sink. Nothing happens where it has expired, or where more than MOST_GIVEN_BACK entries came
  -- since.
  local function give_back(log, cost, stamp)
    local rule = log.rule
    stamp = log.newest - (log.newest - stamp) % 281474976710656
    if log.used == 0 or stamp < log.first then return end
    local place, found, before = log.skip, log.first, log.base
    if stamp ~= found then
      local _
      place, found, _, before = search(log, true, stamp - 1)
    end
    local count = log.count - place
    if found ~= stamp or count > 4096 then return end

    local bytes, entries, taken = entries_of(log, place, count), {}, nil
    if #bytes < count * rule.size then return end
    for i = 1, count do
      local at, total = unpack(rule.entry, bytes, (i - 1) * rule.size + 1)
      taken = taken or math.min(cost, (total - before) % 4294967296)
      entries[i] = pack(rule.entry, at, (total - taken) % 4294967296)
    end
    if taken == 0 then return end
    if place == log.skip then log.first_total = (log.first_total - taken) % 4294967296 end
    log.total, log.used = (log.total - taken) % 4294967296, log.used - taken

    local from = (log.head + place) % log.capacity
    local straight = math.min(count, log.capacity - from)
    local at = HEAD + from * rule.size
    redis_call('SETRANGE', log.key, at, table.concat(entries, '', 1, straight))
    if count > straight then
      redis_call('SETRANGE', log.key, HEAD, table.concat(entries, '', straight + 1))
    end

    -- The last entry must have units: `reset` is told from it.
    local last_place, total, last = log.count - 1, log.total, nil
    while last_place >= log.skip do
      local from_last = last_place > log.skip and 1 or 0
      local pair = entries_of(log, last_place - from_last, from_last + 1)
      local previous = log.base
      if from_last == 1 then last, previous = unpack(rule.entry, pair) end
      last = unpack(rule.entry, pair, from_last * rule.size + 1)
      if previous ~= total then break end
      last_place = last_place - 1
    end
    log.head = (log.head + log.skip) % log.capacity
    log.count, log.skip = last_place + 1 - log.skip, 0
    if log.count > 0 then log.newest = log.newest - (log.newest - last) % rule.modulus end
    redis_call('SETRANGE', log.key, '0', top(log))
  end

  -- Keeps the ages after a step back of the clock: the only write of a denial.
  local function keep_ages(log)
    redis_pcall('SETRANGE', log.key, 46, pack('<I7', log.shift))
  end

  return { look = look, wait = wait, charge = charge, give_back = give_back, keep_ages = keep_ages }
end
