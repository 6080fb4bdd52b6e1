-- Decides a batch of groups of requests. Twin of src/limit/decide.rs. The script is log.lua,
-- counter.lua, slots.lua and this file, joined when it is loaded.
--
-- A group is one deed over its items, each a key:
--   charge (0)     `count` equal requests, all or nothing each: as many as fit are granted, the
--                  first ones; a cost of 0 is a look and writes nothing (but says what slots are
--                  held)
--   give back (1)  takes back what an earlier charge put there: of that entry only, nothing where
--                  it has expired
--   settle (2)     charges whatever is counted already: what was granted turned out to cost more
--
-- KEYS     every item's key, in the order of the items; a key may occur in several groups, and
--          the later ones see what the earlier ones wrote, but only once in one group
-- ARGV[1]  now, us since the Unix epoch; '' for the server's own clock (tests bring theirs)
-- ARGV[2]  who asks: the holder of slots (8 bytes)
-- ARGV[3]  for each group: deed (u8), number of items (u8), count (u16), then for each item
--          algorithm (u8: 0 log, 1 counter, 2 slots), units (u32), window, precision (us), cost
--          and extra (u48). Extra is, to charge, how far ahead to stamp (us; log) or the units
--          held now (slots); to give back, the stamp.
-- reply    one string: now (u56); how many keys held something not ours and were begun anew (u16);
--          then for each group 0 denied or partly, 1 allowed, 2 the server refused to write (u8)
--          and, for a charge, granted (u16); then, for the first granted request if there is one
--          and again for the first denied one if there is one, for each item: used before (u48),
--          retry (i56: -1 never, -2 when released), reset, next (u56, us), stamp (u48). Behind a 2
--          only granted = 0 follows. After the last group: the text of the server's refusal.
--
-- All numbers are little-endian and below 2^53. The clock is read once. A denial writes nothing
-- (but the ages, after a step back of the clock). Writes are never retried here, and their errors
-- are replies: one group that the server refuses to write (out of memory, read-only) must not
-- abort the others of the batch.

local GROUP, ITEM, VERDICT = '<I1I1I2', '<I1I4I6I6I6I6', '<I6i7I7I7I6'

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local holder, asked, at, place, begun, refusal = ARGV[2], ARGV[3], 1, 0, 0, ''
local replies, length = { '' }, 1
local wait = { [0] = log_wait, counter_wait, slots_wait }

-- One item by itself. A key that holds something not ours is begun anew.
local function look()
  local algorithm, units, window, precision, cost, extra
  algorithm, units, window, precision, cost, extra, at = struct.unpack(ITEM, asked, at)
  place = place + 1
  local key, state = KEYS[place], nil
  if algorithm == 0 then
    state = log_look(key, units, window, precision, now)
  elseif algorithm == 1 then
    state = counter_look(key, units, window, now)
  else
    state = slots_look(key, units, window, now, extra, holder)
  end
  state.algorithm, state.cost, state.extra = algorithm, cost, extra
  local foreign = state.foreign
  if foreign then
    if type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then
      state.refused = foreign.err
    else
      redis.pcall('DEL', key)
      begun = begun + 1
    end
  end
  return state
end

-- How many of `count` equal requests fit, as far as this item goes.
local function fitting(state, count)
  if state.used + state.cost > state.units then return 0 end
  if state.cost == 0 then return count end
  return math.min(count, math.floor((state.units - state.used) / state.cost))
end

local function charge(state, cost)
  if state.algorithm == 0 then return log_charge(state, cost, now, state.extra) end
  if state.algorithm == 1 then return counter_charge(state, cost) end
  return slots_charge(state, cost)
end

-- What a denial changes: nothing but the ages.
local function keep_ages(state)
  if not state.stepped or state.cost == 0 then return end
  if state.algorithm == 0 then log_keep_ages(state) else counter_store(state) end
end

local function tell(state, used, retry)
  local wait = wait[state.algorithm]
  length = length + 1
  replies[length] = struct.pack(VERDICT, used, retry, wait(state, 0),
    state.used > 0 and wait(state, state.used - 1) or 0, state.newest % 281474976710656)
end

local function retry(state)
  if state.cost > state.units then return -1 end
  if state.used + state.cost <= state.units then return 0 end
  if state.algorithm == 2 then return -2 end
  return wait[state.algorithm](state, state.units - state.cost)
end

-- Charges as many of `count` requests as fit, and tells how the limits stand.
local function decide(states, count)
  local granted, refused, first = count, nil, length + 1
  length = first
  for _, state in ipairs(states) do
    refused = refused or state.refused
    granted = fitting(state, granted)
  end
  if granted > 0 and not refused then
    for _, state in ipairs(states) do
      local used = state.used
      if state.cost > 0 or state.algorithm == 2 then
        refused = charge(state, state.cost * granted)
        if refused then break end
      end
      tell(state, used, 0)
    end
  end
  if granted < count and not refused then
    for _, state in ipairs(states) do
      if granted == 0 then keep_ages(state) end
      if granted == 0 and state.algorithm == 2 and state.cost == 0 then
        -- What is held is said also where that is above the limit by now.
        refused = slots_charge(state, 0)
        if refused then break end
      end
      tell(state, state.used, retry(state))
    end
  end
  if refused then
    for i = first + 1, length do replies[i] = nil end
    length, granted = first, 0
  end
  replies[first] = struct.pack('<I1I2', refused and 2 or granted == count and 1 or 0, granted)
  return refused
end

while at <= #asked do
  local deed, items, count
  deed, items, count, at = struct.unpack(GROUP, asked, at)
  local states, refused = {}, nil
  for i = 1, items do states[i] = look() end
  if deed == 0 then
    refused = decide(states, count)
  else
    for _, state in ipairs(states) do
      local cost, room = state.cost, 4294967295 - state.used
      if state.refused then
        refused = state.refused
      elseif deed == 1 and state.algorithm == 0 then
        log_give_back(state, cost, state.extra)
      elseif deed == 1 and state.algorithm == 1 then
        counter_give_back(state, cost, state.extra)
      elseif deed == 2 and state.algorithm ~= 2 and cost > 0 and room > 0 then
        state.extra = 0
        refused = charge(state, math.min(cost, room)) or refused
      end
    end
    length = length + 1
    replies[length] = string.char(refused and 2 or 1)
  end
  refusal = refused or refusal
end

replies[1] = struct.pack('<I7I2', now, math.min(begun, 65535))
replies[length + 1] = refusal
return table.concat(replies)
