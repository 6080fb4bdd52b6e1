-- The two-counter window: constant memory, approximate. Twin of src/limit/counter.rs; joined
-- between log.lua and decide.lua.
--
-- Windows are aligned to multiples of W. With x = now mod W and P, C the counts of the previous and
-- the current window, a cost c is allowed if and only if P*(W - x) + (C + c)*W <= L*W.
-- Products stay below 2^53: the configuration sees to L*W, and counts are clamped when read.
--
-- One key is one STRING: magic, start of the current window (us), previous and current count.
-- When the clock steps back into an earlier window, both counts become that window's current one:
-- nothing is forgotten early.

-- The functions that decide about counters; made where a call has one.
local function counter_kind()
  local MAGIC, FORMAT, SIZE = 0x4354, '<I2I7I4I4', 17

  local function divide_up(number, by)
    local rest = number % by
    return (number - rest) / by + (rest > 0 and 1 or 0)
  end

  -- Reads a key and moves it to the window of `now`. Writes nothing.
  local function look(counter, key, rule, now)
    local value, window = redis_pcall('GET', key), rule.window
    local magic, start, previous, current
    if type(value) == 'string' and #value == SIZE then
      magic, start, previous, current = unpack(FORMAT, value)
    end
    if magic ~= MAGIC then start, previous, current = -1, 0, 0 end
    local past = now % window
    local begin, stepped = now - past, false
    if begin == start + window then
      previous, current = current, 0
    elseif begin > start then
      previous, current = 0, 0
    elseif begin < start then
      previous, current, stepped = 0, previous + current, true
    end
    local most = math.floor(9007199254740991 / window)
    previous, current = math.min(previous, most), math.min(current, most, 4294967295)
    counter.key, counter.rule, counter.window, counter.past = key, rule, window, past
    counter.start, counter.fresh, counter.stepped = begin, begin ~= start, stepped
    counter.previous, counter.current, counter.newest = previous, current, begin / window
    counter.foreign = value and magic ~= MAGIC and value
    -- Units the estimate counts: the previous window's share, rounded up, and the current's.
    counter.used = current + divide_up(previous * (window - past), window)
  end

  -- Microseconds until the estimate is at most `room` if nothing else is admitted.
  local function wait(counter, room)
    if counter.used <= room then return 0 end
    local previous, current, window = counter.previous, counter.current, counter.window
    if current <= room then
      return divide_up((previous - (room - current)) * window, previous) - counter.past
    end
    return window - counter.past + divide_up((current - room) * window, current)
  end

  -- Stores both counts; they expire with the next window. Returns the server's error, if any.
  local function store(counter)
    local value = pack(FORMAT, MAGIC, counter.start, counter.previous, counter.current)
    if not counter.fresh then return redis_pcall('SET', counter.key, value, 'KEEPTTL').err end
    local left = math.ceil((2 * counter.window - counter.past) / 1000) + 1
    return redis_pcall('SET', counter.key, value, 'PX', left).err
  end

  -- Admits units.
  local function charge(counter, cost)
    counter.current = counter.current + cost
    counter.used = counter.used + cost
    return store(counter)
  end

  -- Takes back up to `cost` units admitted in the window numbered `stamp` (modulo 2^48).
  local function give_back(counter, cost, stamp)
    local age = (counter.newest - stamp) % 281474976710656
    if age == 0 then
      counter.current = math.max(counter.current - cost, 0)
    elseif age == 1 then
      counter.previous = math.max(counter.previous - cost, 0)
    else
      return
    end
    store(counter)
  end

  return { look = look, wait = wait, charge = charge, give_back = give_back, keep_ages = store }
end
