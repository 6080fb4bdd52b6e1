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

local COUNTER_MAGIC, COUNTER_FORMAT, COUNTER_SIZE = 0x4354, '<I2I7I4I4', 17

local function divide_up(number, by)
  local rest = number % by
  return (number - rest) / by + (rest > 0 and 1 or 0)
end

-- Units the estimate counts: the previous window's share, rounded up, and the current window's.
local function counter_used(counter)
  local share = counter.previous * (counter.window - counter.past)
  return counter.current + divide_up(share, counter.window)
end

-- Reads a key and moves it to the window of `now`. Writes nothing.
local function counter_look(key, units, window, now)
  local value = redis.pcall('GET', key)
  local magic, start, previous, current
  if type(value) == 'string' and #value == COUNTER_SIZE then
    magic, start, previous, current = struct.unpack(COUNTER_FORMAT, value)
  end
  if magic ~= COUNTER_MAGIC then start, previous, current = -1, 0, 0 end
  local past = now % window
  local begin, stepped = now - past, false
  local most = math.floor(9007199254740991 / window)
  if begin == start + window then
    previous, current = current, 0
  elseif begin > start then
    previous, current = 0, 0
  elseif begin < start then
    previous, current, stepped = 0, previous + current, true
  end
  local counter = {
    key = key, units = units, window = window, past = past, start = begin,
    fresh = begin ~= start, stepped = stepped,
    previous = math.min(previous, most), current = math.min(current, most, 4294967295),
    newest = begin / window, used = 0, foreign = value and magic ~= COUNTER_MAGIC and value,
  }
  counter.used = counter_used(counter)
  return counter
end

-- Microseconds until the estimate is at most `room` if nothing else is admitted.
local function counter_wait(counter, room)
  if counter.used <= room then return 0 end
  local previous, current, window = counter.previous, counter.current, counter.window
  if current <= room then
    return divide_up((previous - (room - current)) * window, previous) - counter.past
  end
  return window - counter.past + divide_up((current - room) * window, current)
end

-- Stores both counts; they expire with the next window. Returns the server's error, if any.
local function counter_store(counter)
  local value =
    struct.pack(COUNTER_FORMAT, COUNTER_MAGIC, counter.start, counter.previous, counter.current)
  local done
  if counter.fresh then
    local left = math.ceil((2 * counter.window - counter.past) / 1000) + 1
    done = redis.pcall('SET', counter.key, value, 'PX', left)
  else
    done = redis.pcall('SET', counter.key, value, 'KEEPTTL')
  end
  return done.err
end

-- Admits units.
local function counter_charge(counter, cost)
  counter.current = counter.current + cost
  counter.used = counter.used + cost
  return counter_store(counter)
end

-- Takes back up to `cost` units admitted in the window numbered `stamp` (modulo 2^48).
local function counter_give_back(counter, cost, stamp)
  local age = (counter.newest - stamp) % 281474976710656
  if age == 0 then
    counter.current = math.max(counter.current - cost, 0)
  elseif age == 1 then
    counter.previous = math.max(counter.previous - cost, 0)
  else
    return
  end
  counter_store(counter)
end
