-- Decides a batch of independent requests, each all or nothing over its items. Twin of
-- src/limit/decide.rs. The script is log.lua, counter.lua and this file, joined when it is loaded.
--
-- KEYS     every item's key, in the order of the items; a key may occur in several requests, and
--          the later ones see what the earlier ones wrote, but only once in one request
-- ARGV[1]  now, us since the Unix epoch; '' for the server's own clock (tests bring theirs)
-- ARGV[2]  for each request: its number of items (u8), then for each item
--          algorithm (u8: 0 log, 1 counter), units (u32), window, precision (us) and cost (u48)
-- reply    one string: now (u56); how many keys held something not ours and were begun anew (u16);
--          then for each request 0 denied, 1 allowed, 2 the server refused to write (u8) and,
--          unless 2, for each item: used before, remaining (u48), retry (i56, -1 never), reset,
--          next (u56, us). After the last request: the text of the server's refusal, if any.
--
-- All numbers are little-endian and below 2^53. The clock is read once. A denied request writes
-- nothing (but the ages, after a step back of the clock); a cost of 0 is a look and writes nothing.
-- Writes are never retried here, and their errors are replies: one request that the server refuses
-- to write (out of memory, read-only) must not abort the others of the batch.

local REQUEST, ITEM, VERDICT = '<I1', '<I1I4I6I6I6', '<I6I6i7I7I7'

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local asked, at, place, begun, refusal = ARGV[2], 1, 0, 0, ''
local replies, length = { '' }, 1

-- What one limit says by itself: its state, with `retry` set when it denies.
local function look(algorithm, units, window, precision, cost)
  local key, state, foreign = KEYS[place], nil, nil
  if algorithm == 0 then
    state = log_look(key, units, window, precision, cost, now)
  else
    state = counter_look(key, units, window, cost, now)
  end
  foreign = state.foreign
  if foreign then
    if type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then
      state.refused = foreign.err
    else
      redis.pcall('DEL', key)
      begun = begun + 1
    end
  end
  if cost > units then
    state.retry = -1
  elseif state.used + cost > units then
    state.retry = (algorithm == 0 and log_wait or counter_wait)(state, units - cost)
  end
  return state
end

-- Second pass over one item: charges it if the whole request is allowed.
local function settle(state, allowed)
  if state.cost == 0 then return nil end
  if allowed then
    if state.charges_log then return log_charge(state, now) end
    return counter_charge(state)
  end
  if state.stepped then
    if state.charges_log then log_keep_ages(state) else counter_store(state) end
  end
end

while at <= #asked do
  local items, allowed, refused, states = nil, true, nil, {}
  items, at = struct.unpack(REQUEST, asked, at)
  for i = 1, items do
    local algorithm, units, window, precision, cost
    algorithm, units, window, precision, cost, at = struct.unpack(ITEM, asked, at)
    place = place + 1
    local state = look(algorithm, units, window, precision, cost)
    allowed = allowed and state.retry == 0
    refused = refused or state.refused
    states[i] = state
  end

  local first = length + 1
  length = first
  for i = 1, items do
    local state = states[i]
    local used, wait = state.used, state.charges_log and log_wait or counter_wait
    refused = refused or settle(state, allowed)
    if refused then break end
    length = length + 1
    replies[length] = struct.pack(VERDICT, used, math.max(state.units - state.used, 0),
      state.retry, wait(state, 0), state.used > 0 and wait(state, state.used - 1) or 0)
  end
  if refused then
    refusal = refused
    for i = first + 1, length do replies[i] = nil end
    length = first
  end
  replies[first] = string.char(refused and 2 or allowed and 1 or 0)
end

replies[1] = struct.pack('<I7I2', now, math.min(begun, 65535))
replies[length + 1] = refusal
return table.concat(replies)
