-- The calendar window: all that was admitted since its start, in constant memory. Twin of
-- crates/core/src/limit/calendar.rs; joined between slots.lua and decide.lua.
--
-- A window ends at an instant that the proxy knows: the script knows no calendar. The proxy sends
-- the end of the window that holds the store's clock, as it last heard of it, and the end of the
-- next one. They only ever open a window: one that is under way goes on to the end it was opened
-- with, whatever is sent. So proxies with other zone data, a client with another anchor, or a clock
-- that steps can neither refill a window nor lock one.
--
-- One key is one STRING: magic, end (us) and units of the last window that was opened, and of the
-- one opened before it. The key outlives its window by a day, so that units may come back late.
--
-- Where neither end fits, the proxy's idea of the clock is wrong: it must ask again, and nothing is
-- written. An end fits if it is ahead, by no more than the longest window of its kind. Where an end
-- that is stored is further ahead, the clock has stepped back by more than a window: the units stay,
-- and count until the end that was sent.

-- A calendar window looks at one key, then at another, like a log.
local function new_calendar()
  local MAGIC, FORMAT, DAY_MS = 0x4341, '<I2I8I6I8I6', 86400000
  -- The last window and the one before, as they are stored; whether the last one is under way.
  local key, now, last, count, before, previous, goes_on, stepped
  -- The end of the window that is under way, or would be opened; the units that count.
  local till, used

  -- Reads a key. Writes nothing. Returns the units that count; whether the clock has stepped back by
  -- more than a window; what stood there that is not ours; and whether neither end fits.
  local function age(of, rule, at, _, _, first, second)
    local value, longest, magic = redis_pcall('GET', of), rule.window, nil
    key, now = of, at
    if type(value) == 'string' and #value == 30 then
      magic, last, count, before, previous = unpack(FORMAT, value)
    end
    if magic ~= MAGIC then last, count, before, previous = 0, 0, 0, 0 end
    stepped = last > now + longest
    goes_on = now < last and not stepped
    used = now < last and count or 0
    till = goes_on and last or first and (now < first and first or second) or 0
    return used, stepped, value and magic ~= MAGIC and value, till <= now or till > now + longest
  end

  -- Microseconds until no more than `room` units count if nothing else is admitted.
  local function wait(room)
    return used > room and till - now or 0
  end

  local function write(...)
    return redis_pcall('SET', key, pack(FORMAT, MAGIC, last, count, before, previous), ...).err
  end

  -- Stores the units, and opens the window if none is under way. Returns the server's error, if any.
  local function store()
    if goes_on then
      count = used
      return write('KEEPTTL')
    end
    if not stepped then before, previous = last, count end
    last, count = till, used
    return write('PX', math.ceil((till - now) / 1000) + DAY_MS)
  end

  -- Admits units.
  local function charge(cost)
    used = used + cost
    return store()
  end

  -- Microseconds until the window ends, until more is free, and what names the last admission.
  local function ends()
    return till - now, used > 0 and till - now or 0, till
  end

  local function seldom()
    -- Takes back up to `cost` units of the window whose end is `stamp` (modulo 2^48). Returns the
    -- server's error, if any.
    local function refund(cost, stamp)
      if last % 281474976710656 == stamp then
        count = math.max(count - cost, 0)
      elseif before % 281474976710656 == stamp then
        previous = math.max(previous - cost, 0)
      else
        return
      end
      return last > 0 and write('KEEPTTL')
    end

    -- Takes back up to `cost` of the units that count. Returns the server's error, if any.
    local function refund_oldest(cost)
      if used == 0 or cost == 0 then return end
      count = math.max(count - cost, 0)
      return write('KEEPTTL')
    end

    return { refund = refund, refund_oldest = refund_oldest, keep_ages = store }
  end

  return {
    age = age, wait = wait, charge = charge, ends = ends, seldom = seldom, most = 281474976710655,
  }
end
