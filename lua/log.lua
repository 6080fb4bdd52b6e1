-- The sliding-window log: exact. Twin of crates/core/src/limit/log.rs; joined before counter.lua, slots.lua and
-- decide.lua.
--
-- A unit admitted at s counts at t if and only if t - W < s <= t. Admissions are stamped up to a
-- multiple of the precision q and now is rounded down before ageing, so the bound holds for every q.
--
-- One key is one STRING: a head and a ring of entries, oldest first, one for each stamp.
--   head   magic                           of a ring whose precision is 1 us, or of another
--          capacity, head, count           entries the ring can hold, the oldest's slot, how many
--          base, total, first_total        running totals before the first entry, after the last,
--                                          after the first; all modulo 2^32
--          first                           the first entry's stamp, as in the entry
--          last                            own time of the last admission, us
--          newest                          the last entry's stamp: ahead of `last` after a lease
--          shift                           own time = the store's clock + shift, us: grows when the
--                                          clock steps back, so that ages are kept
--          expires                         the store's second before which the key cannot expire
--          precision                       us; only in a ring whose precision is not 1
--   entry  stamp in units of q modulo 2^32 (2^48 where W/q >= 1.8e9), running total after it
-- A stamp may be ahead of the clock: a request that is held counts from the time at which it will
-- be forwarded. Units that are admitted meanwhile get the newest stamp, since stamps never go back.
-- A ring keeps its precision while units are live, whatever the rule says by now: finer than the
-- rule's until the next charge, which then rewrites it in the rule's (no stamp gets earlier), and
-- coarser than the rule's until it is empty. So a limit keeps its count where its precision changes,
-- and proxies with both rules on one store do not rewrite each other's ring again and again.
--
-- No stamp that counts is further than 2W/q and the longest wait (half an hour) from the last one,
-- so the modulus loses nothing. Units that are given back leave an entry of none, unless it is the
-- last: that one always has units. The oldest units take their entries with them.
--
-- What a decision costs is its redis.call()s and the numbers in them (each is printed: offsets that
-- do not change are strings), strings by their length, tables and closures. So a look reads the
-- head and the first 32 entries at once: in a ring of no more that is all there is to read, and a
-- charge writes the head, what lies between, and its entry in one go.

local unpack, pack, redis_pcall = struct.unpack, struct.pack, redis.pcall

-- A rule, with the form of a log's ring under it.
local function new_rule(kind, units, window, precision)
  local is_wide = kind == 'log' and window / precision >= 1800000000
  local is_exact = precision == 1
  return {
    kind = kind, units = units, window = window, precision = precision,
    size = is_wide and 10 or 8, entry = is_wide and '<I6I4' or '<I4I4',
    modulus = is_wide and 281474976710656 or 4294967296,
    magic = is_exact and 0x4C55 or 0x4C56, top = is_exact and 57 or 63,
    head = is_exact and '<I2I4I4I4I4I4I4I6I7I7I7I4' or '<I2I4I4I4I4I4I4I6I7I7I7I4I6',
  }
end

-- A log looks at one key, then at another; what it knows of the one at hand are its locals, which
-- are far cheaper than a table's fields. Made once for each place that an item has in its group.
local function new_log()
  -- The rule by which the ring is kept, and the one that was asked by.
  local key, rule, asked, now, value
  local capacity, head, count, base, total, first_total, first, last, newest, shift, expires
  -- Own time now; how many entries have expired since the last charge; the units that are live; and
  -- whether the value ends before the ring does.
  local own, skip, used, cut

  -- The first live entry past `bound`, by stamp or by units since the base; the first entry is not
  -- past it and the last one is. Returns its place, stamp, total, and the total before it.
  -- Steps double from the first entry, since seldom more than a few have expired. Where the value
  -- ends before the entry the log is marked as cut, and all but the last entry count as not past.
  local function search(by_stamp, bound)
    local size, modulus, entry = rule.size, rule.modulus, rule.entry
    local low, low_total, step = skip, first_total, 1
    local high, high_stamp, high_total = count - 1, newest, total
    while high - low > 1 do
      local middle, between = low + step, high - low
      if step + step > between then middle = low + (between - between % 2) / 2 end
      local at = rule.top + (head + middle) % capacity * size
      local bytes, from = value, at + 1
      if at + size > #bytes then
        local format = string.format
        bytes = redis.call('GETRANGE', key, format('%d', at), format('%d', at + size - 1))
        from = 1
        if #bytes < size then cut = true; break end
      end
      local stamp, through = unpack(entry, bytes, from)
      stamp = newest - (newest - stamp) % modulus
      if (by_stamp and stamp or (through - base) % 4294967296) > bound then
        high, high_stamp, high_total = middle, stamp, through
      else
        low, low_total = middle, through
      end
      step = step * 2
    end
    return high, high_stamp, high_total, low_total
  end

  -- Reads a key and ages it. Writes nothing, but deletes a log that was cut. Returns how many units
  -- are live at `at`; whether the clock has stepped back; and what stood there that is not ours.
  -- What was `read` already is not read again.
  local function age(of, by, at, _, read)
    key, rule, asked, now = of, by, by, at
    value = read or redis_pcall('GETRANGE', key, '0', '312')
    local magic, kept
    if #value >= 57 then
      magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires =
        unpack('<I2I4I4I4I4I4I4I6I7I7I7I4', value)
      kept = magic == 0x4C55 and 1 or magic == 0x4C56 and #value >= 63 and unpack('<I6', value, 58)
    end
    if not kept or kept == 0 or head >= capacity or count > capacity then
      kept = nil
      capacity, head, count, base, total, first_total = 0, 0, 0, 0, 0, 0
      first, last, newest, shift, expires = 0, 0, 0, 0, 0
    end
    local stepped = now + shift < last
    if stepped then shift = last - now end
    own, skip, used, cut = now + shift, 0, 0, false

    local precision = kept or by.precision
    if precision ~= by.precision then rule = new_rule('log', by.units, by.window, precision) end
    local edge = (own - own % precision - rule.window) / precision
    if newest <= edge or count == 0 then
      count, head = 0, 0
      -- Nothing of the old form is left to keep: the next charge begins a ring by its own rule.
      if rule ~= by then rule, capacity = by, 0 end
    else
      first = newest - (newest - first) % rule.modulus
      if first <= edge then
        skip, first, first_total, base = search(true, edge)
      end
      if cut then
        -- Not what we wrote: begun anew like anything else that is not ours.
        local was, gone = value, redis_pcall('DEL', key)
        count, head = 0, 0
        if type(gone) == 'table' then return 0, stepped, gone end
        local _, again = age(key, by, now)
        return 0, again, was
      end
      used = (total - base) % 4294967296
    end
    return used, stepped, not kept and value ~= '' and value
  end

  -- Microseconds until no more than `room` units are live if nothing else is admitted.
  local function wait(room)
    local need, stamp = used - room, first
    if need <= 0 then return 0 end
    if room == 0 then
      stamp = newest
    elseif need > (first_total - base) % 4294967296 then
      local _
      _, stamp = search(false, need - 1)
    end
    return stamp * rule.precision + rule.window - own
  end

  local function top()
    return pack(rule.head, rule.magic, capacity, head, count, base, total, first_total,
      first % rule.modulus, last, newest, shift, expires, rule.precision)
  end

  -- What is seldom done, and not made where it is not.
  local function seldom()
    -- The bytes of `many` entries from the `from`th on.
    local function entries_of(from, many)
      local size = rule.size
      from = (head + from) % capacity
      local straight = math.min(many, capacity - from)
      local top = rule.top
      local at = top + from * size
      local entries = redis.call('GETRANGE', key, at, at + straight * size - 1)
      if many > straight then
        local rest = top + (many - straight) * size - 1
        entries = entries .. redis.call('GETRANGE', key, top, rest)
      end
      return entries
    end

    -- Goes over to the coarser precision of the rule that was asked by: no stamp gets earlier, and
    -- the units of stamps that are one by now are in one entry. Returns the entries, which are not
    -- written yet.
    local function coarsen()
      local many, from, to = count - skip, rule, asked
      local bytes, entries, last_total = entries_of(skip, many), {}, nil
      local filled, stamp = 0, nil
      for i = 1, many do
        local at, through = unpack(from.entry, bytes, (i - 1) * from.size + 1)
        at = (newest - (newest - at) % from.modulus) * from.precision
        at = (at + (-at) % to.precision) / to.precision
        if at ~= stamp then
          if stamp then entries[filled] = pack(to.entry, stamp % to.modulus, last_total) end
          filled, stamp = filled + 1, at
        end
        if filled == 1 then first, first_total = at, through end
        last_total = through
      end
      entries[filled] = pack(to.entry, stamp % to.modulus, last_total)
      rule, newest, count, skip, head, capacity = to, stamp, filled, 0, 0, 0
      return table.concat(entries)
    end

    -- Writes a ring of another size or form: the live entries, which are `entries` where they were
    -- read already, and the new one as the last of `live`.
    local function rewrite(live, entry, seconds, entries)
      local kept = ''
      if entries then
        kept = string.sub(entries, 1, (live - 1) * rule.size)
      elseif live > 1 then
        kept = entries_of(skip, live - 1)
      end
      local most = math.min(rule.units, rule.window / rule.precision + 2)
      -- Requests that are held need entries beyond that.
      if live > most then most = live + 15 end
      local wanted = live > capacity and math.max(2 * capacity, 4) or 4
      head, capacity, count, skip = 0, math.max(math.min(wanted, most), live), live, 0
      local stands = top()
      value = stands .. kept .. entry .. string.rep('\0', (capacity - live) * rule.size)
      return redis_pcall('SET', key, value, 'EX', seconds), stands
    end

    -- Takes back up to `cost` units of the entry stamped `stamp` (modulo 2^48): all totals from it
    -- on sink. Nothing happens where it has expired, or where more than 4096 entries came since.
    -- Returns the server's error, if any.
    local function refund(cost, stamp)
      stamp = newest - (newest - stamp) % 281474976710656
      if used == 0 or stamp < first then return end
      local place, found, before = skip, first, base
      if stamp ~= found then
        local _
        place, found, _, before = search(true, stamp - 1)
      end
      local many = count - place
      if found ~= stamp or many > 4096 then return end

      local size, format = rule.size, rule.entry
      local bytes, entries, taken = entries_of(place, many), {}, nil
      if #bytes < many * size then return end
      for i = 1, many do
        local at, through = unpack(format, bytes, (i - 1) * size + 1)
        taken = taken or math.min(cost, (through - before) % 4294967296)
        entries[i] = pack(format, at, (through - taken) % 4294967296)
      end
      if taken == 0 then return end
      if place == skip then first_total = (first_total - taken) % 4294967296 end
      total, used = (total - taken) % 4294967296, used - taken

      local from = (head + place) % capacity
      local straight = math.min(many, capacity - from)
      local top_bytes = rule.top
      local written = table.concat(entries, '', 1, straight)
      local done = redis_pcall('SETRANGE', key, top_bytes + from * size, written)
      -- A server that refuses to write refuses the first write of a script.
      if type(done) == 'table' then return done.err end
      if many > straight then
        redis.call('SETRANGE', key, top_bytes, table.concat(entries, '', straight + 1))
      end

      -- The last entry must have units: `reset` is told from it.
      local last_place, stamp_there = count - 1, nil
      while last_place >= skip do
        local pairs = last_place > skip and 1 or 0
        local pair, previous = entries_of(last_place - pairs, pairs + 1), base
        if pairs == 1 then stamp_there, previous = unpack(format, pair) end
        stamp_there = unpack(format, pair, pairs * size + 1)
        if previous ~= total then break end
        last_place = last_place - 1
      end
      head, count, skip = (head + skip) % capacity, last_place + 1 - skip, 0
      if count > 0 then newest = newest - (newest - stamp_there) % rule.modulus end
      redis.call('SETRANGE', key, '0', top())
    end

    -- Takes back up to `cost` units, oldest first. The head says where the live entries begin and
    -- what came before them, so the entries stay as they are. Returns the server's error, if any.
    local function refund_oldest(cost)
      local taken = math.min(cost, used)
      if taken == 0 then return end
      local place, stamp, through = skip, first, first_total
      if taken == used then
        place, stamp, through = count, newest, total
      elseif (first_total - base) % 4294967296 <= taken then
        place, stamp, through = search(false, taken)
        if cut then return end
      end
      base, first, first_total = (base + taken) % 4294967296, stamp, through
      head, count, skip, used = (head + place) % capacity, count - place, 0, used - taken
      local done = redis_pcall('SETRANGE', key, '0', top())
      return type(done) == 'table' and done.err
    end

    -- Keeps the ages after a step back of the clock: the only write of a denial.
    local function keep_ages()
      redis_pcall('SETRANGE', key, 46, pack('<I7', shift))
    end

    return {
      coarsen = coarsen, rewrite = rewrite, refund = refund,
      refund_oldest = refund_oldest, keep_ages = keep_ages,
    }
  end

  -- Admits units at `now`, stamped `ahead` us later: what is leased counts from the lease's end, and
  -- what is held from the end of its wait. No stamp is before the newest. Returns the server's error
  -- if it refused to write; then the head as written, which tells how the log stands where the first
  -- entry is the next to go.
  local function charge(cost, ahead)
    local entries, renewed
    if rule ~= asked and rule.precision < asked.precision and count - skip <= 65536 then
      renewed = seldom()
      entries = renewed.coarsen()
    end
    local precision, window, live = rule.precision, rule.window, count - skip
    local stamp = own + ahead
    stamp = (stamp + (-stamp) % precision) / precision
    if live == 0 then
      base, first, live = total, stamp, 1
    elseif stamp > newest then
      live = live + 1
    else
      stamp = newest
    end
    total, newest, last, used = (total + cost) % 4294967296, stamp, own, used + cost
    if live == 1 then first_total = total end

    -- The key must outlive every unit in it; renewed about once in a window, not at each write.
    local rewrites = live > capacity or (live == 1 and capacity > 32)
    local renews = expires * 1000000 <= now + window + precision + ahead
    local seconds
    if renews or rewrites then
      seconds = math.ceil((2 * window + precision + ahead) / 1000000) + 1
      expires = math.floor(now / 1000000) + seconds
    end

    local entry, done, stands = pack(rule.entry, stamp % rule.modulus, total), nil, nil
    if rewrites then
      done, stands = (renewed or seldom()).rewrite(live, entry, seconds, entries)
    else
      if renews then
        -- Before the write, which says that the key lives on.
        local alive = redis_pcall('EXPIRE', key, seconds)
        if type(alive) == 'table' then return alive.err end
      end
      head, count, skip = (head + skip) % capacity, live, 0
      stands = top()
      local start = rule.top
      local at = start + (head + live - 1) % capacity * rule.size
      if at == start then
        done = redis_pcall('SETRANGE', key, '0', stands .. entry)
      elseif at <= #value then
        local between = string.sub(value, start + 1, at)
        done = redis_pcall('SETRANGE', key, '0', stands .. between .. entry)
      else
        done = redis_pcall('SETRANGE', key, string.format('%d', at), entry)
        if type(done) == 'number' then done = redis_pcall('SETRANGE', key, '0', stands) end
      end
    end
    if done ~= rule.top + capacity * rule.size and type(done) == 'table' and done.err then
      return done.err
    end
    -- The head is read by the rule that was asked by.
    return nil, first_total ~= base and rule.precision == asked.precision and stands
  end

  -- Microseconds until all is free, until something is, and what names the last admission.
  local function ends()
    -- Of what is counted above the limit nothing becomes free.
    return wait(0), used > 0 and wait(math.max(math.min(used, rule.units) - 1, 0)) or 0, newest
  end

  -- The units that are held: their stamps are after that of a unit admitted now.
  local function held()
    local edge = (own + (-own) % rule.precision) / rule.precision
    if used == 0 or newest <= edge then return 0 end
    if first > edge then return used end
    local _, _, _, before = search(true, edge)
    return (total - before) % 4294967296
  end

  return {
    age = age, wait = wait, charge = charge, ends = ends, seldom = seldom, held = held,
  }
end
