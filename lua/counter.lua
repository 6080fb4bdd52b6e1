-- The two-counter window: constant memory, approximate. Twin of crates/core/src/limit/counter.rs; joined
-- between log.lua and decide.lua.
--
-- Windows are aligned to multiples of W. With x = now mod W and P, C the counts of the previous and
-- the current window, a cost c is allowed if and only if P*(W - x) + (C + c)*W <= L*W.
-- Products stay below 2^53: the configuration sees to L*W, and counts are clamped when read.
--
-- One key is one STRING: magic, start of the current window (us), previous and current count.
-- When the clock steps back into an earlier window, both counts become that window's current one:
-- nothing is forgotten early.

-- A counter looks at one key, then at another, like a log.
local function new_counter()
  local MAGIC, FORMAT = 0x4354, '<I2I7I4I4'
  local key, window, units, past, start, fresh, previous, current, used

  local function divide_up(number, by)
    local rest = number % by
    return (number - rest) / by + (rest > 0 and 1 or 0)
  end

  -- Reads a key and moves it to the window of `now`. Writes nothing. Returns the units that the
  -- estimate counts; whether the clock has stepped back; and what stood there that is not ours.
  local function age(of, rule, now)
    local value, magic, begun = redis_pcall('GET', of), nil, nil
    key, window, units = of, rule.window, rule.units
    if type(value) == 'string' and #value == 17 then
      magic, begun, previous, current = unpack(FORMAT, value)
    end
    if magic ~= MAGIC then begun, previous, current = -1, 0, 0 end
    past = now % window
    start = now - past
    fresh = start ~= begun
    if start == begun + window then
      previous, current = current, 0
    elseif start > begun then
      previous, current = 0, 0
    elseif start < begun then
      previous, current = 0, previous + current
    end
    local most = math.floor(9007199254740991 / window)
    previous, current = math.min(previous, most), math.min(current, most, 4294967295)
    -- The previous window's share, rounded up, and the current window's.
    used = current + divide_up(previous * (window - past), window)
    return used, start < begun, value and magic ~= MAGIC and value
  end

  -- Microseconds until the estimate is at most `room` if nothing else is admitted.
  local function wait(room)
    if used <= room then return 0 end
    if current <= room then
      return divide_up((previous - (room - current)) * window, previous) - past
    end
    return window - past + divide_up((current - room) * window, current)
  end

  -- Stores both counts; they expire with the next window. Returns the server's error, if any.
  local function store()
    local value = pack(FORMAT, MAGIC, start, previous, current)
    if not fresh then return redis_pcall('SET', key, value, 'KEEPTTL').err end
    local left = math.ceil((2 * window - past) / 1000) + 1
    return redis_pcall('SET', key, value, 'PX', left).err
  end

  -- Admits units.
  local function charge(cost)
    current, used = current + cost, used + cost
    return store()
  end

  -- Microseconds until all is free, until something is, and what names the last admission.
  local function ends()
    -- Of what is counted above the limit nothing becomes free.
    local next = used > 0 and wait(math.max(math.min(used, units) - 1, 0)) or 0
    return wait(0), next, start / window
  end

  local function seldom()
    -- Takes back up to `cost` units admitted in the window numbered `stamp` (modulo 2^48). Returns
    -- the server's error, if any.
    local function refund(cost, stamp)
      local behind = (start / window - stamp) % 281474976710656
      if behind == 0 then
        current = math.max(current - cost, 0)
      elseif behind == 1 then
        previous = math.max(previous - cost, 0)
      else
        return
      end
      return store()
    end

    -- Takes back up to `cost` units, those of the previous window first. Returns the server's
    -- error, if any.
    local function refund_oldest(cost)
      if used == 0 or cost == 0 then return end
      local taken = math.min(cost, previous)
      previous, current = previous - taken, math.max(current - (cost - taken), 0)
      return store()
    end

    return { refund = refund, refund_oldest = refund_oldest, keep_ages = store }
  end

  return { age = age, wait = wait, charge = charge, ends = ends, seldom = seldom }
end
