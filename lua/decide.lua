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
-- ARGV[3]  the rules: how many (u16), then for each
--          algorithm (u8: 0 log, 1 counter, 2 slots), units (u32), window and precision (u48, us);
--          then for each group: deed (u8), number of items (u8), count (u16), then for each item
--          its rule, from 0 (u16), and 0 for a cost of 1 and an extra of 0; else 1, cost and extra
--          (u48). Extra is, to charge, how far ahead to stamp (us; log) or the units held now
--          (slots); to give back, the stamp.
-- reply    one string: now (u56); how many keys held something not ours and were begun anew (u16);
--          then for each group 0 denied or partly, 1 allowed, 2 the server refused to write (u8)
--          and, for a charge, granted (u16); then, for the first granted request if there is one
--          and again for the first denied one if there is one, for each item: used before (u48),
--          retry (i56: -1 never, -2 when released), reset, next (u56, us), stamp (u48). Behind a 2
--          only granted = 0 follows. Where all of `count` were granted and each item is a log: 3,
--          and for each item the head of the log as it was written, which says all that.
--          After the last group: the text of the server's refusal.
--
-- All numbers are little-endian and below 2^53. The clock is read once. A denial writes nothing
-- (but the ages, after a step back of the clock). Writes are never retried here, and their errors
-- are replies: one group that the server refuses to write (out of memory, read-only) must not
-- abort the others of the batch.

local now = tonumber(ARGV[1])
if not now then
  local time = redis_call('TIME')
  now = time[1] * 1000000 + time[2]
end

local KEYS, byte, asked, place, begun, refusal = KEYS, string.byte, ARGV[3], 0, 0, ''
local replies, length = { '' }, 1
-- How the items of a group stand. Later groups fill the same tables anew: making one costs as much
-- as a look.
local states = {}

local rules, kinds = {}, {}
local how_many, at = unpack('<I2', asked)
for i = 1, how_many do
  local algorithm, units, window, precision
  algorithm, units, window, precision, at = unpack('<I1I4I6I6', asked, at)
  local kind = kinds[algorithm]
  if not kind then
    kind = algorithm == 0 and log_kind() or algorithm == 1 and counter_kind()
      or slots_kind(ARGV[2])
    kinds[algorithm] = kind
  end
  -- Entries of a log: see log.lua.
  local wide = algorithm == 0 and window / precision >= 1800000000
  rules[i - 1] = {
    kind = kind, look = kind.look, wait = kind.wait, slots = algorithm == 2,
    units = units, window = window, precision = precision,
    size = wide and 10 or 8, entry = wide and '<I6I4' or '<I4I4',
    modulus = wide and 281474976710656 or 4294967296,
  }
end

-- A table that has room for all that is said of a log, and does not grow field by field.
local function state_with_room()
  return {
    rule = 0, key = 0, cost = 0, extra = 0, refused = 0, foreign = 0, used = 0, before = 0,
    stands = 0, stepped = 0, newest = 0, value = 0, now = 0, own = 0, last = 0, shift = 0,
    expires = 0, capacity = 0, head = 0, count = 0, skip = 0, base = 0, total = 0, first = 0,
    first_total = 0, cut = 0,
  }
end

-- A key that holds something not ours is begun anew; returns why where it cannot be.
local function begin_anew(state)
  local foreign = state.foreign
  if type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then
    return foreign.err
  end
  redis_pcall('DEL', state.key)
  begun = begun + 1
end

local function tell(state, used, retry)
  local wait, left = state.rule.wait, state.used
  length = length + 1
  replies[length] = pack('<I6i7I7I7I6', used, retry, wait(state, 0),
    left > 0 and wait(state, left - 1) or 0, state.newest % 281474976710656)
end

local function retry(state)
  local rule = state.rule
  if state.cost > rule.units then return -1 end
  if state.used + state.cost <= rule.units then return 0 end
  if rule.slots then return -2 end
  return rule.wait(state, rule.units - state.cost)
end

-- Charges as many of `count` requests as fit, and tells how the limits stand. Returns the server's
-- error, if any.
local function decide(items, count)
  local granted, first, refused = count, length, nil
  for i = 1, items do
    local state = states[i]
    refused = refused or state.refused
    local cost, room = state.cost, state.rule.units - state.used
    if cost > room then
      granted = 0
    elseif cost * granted > room then
      granted = (room - room % cost) / cost
    end
  end
  if granted > 0 and not refused then
    -- Told in heads, unless something else is to be told as well or is no log.
    local plain = granted < count
    for i = 1, items do
      local state = states[i]
      local cost, rule = state.cost, state.rule
      state.before, state.stands = state.used, nil
      if cost > 0 or rule.slots then
        refused = rule.kind.charge(state, cost * granted, state.extra)
        if refused then break end
      end
      plain = plain or not state.stands
    end
    if not (plain or refused) then
      replies[first] = '\3'
      for i = 1, items do replies[first + i] = states[i].stands end
      length = first + items
      return
    end
    for i = 1, refused and 0 or items do tell(states[i], states[i].before, 0) end
  end
  if granted < count and not refused then
    for i = 1, items do
      local state = states[i]
      if granted == 0 then
        if state.stepped and state.cost > 0 then state.rule.kind.keep_ages(state) end
        if state.rule.slots and state.cost == 0 then
          -- What is held is said also where that is above the limit by now.
          refused = state.rule.kind.charge(state, 0)
          if refused then break end
        end
      end
      tell(state, state.used, retry(state))
    end
  end
  if refused then
    for i = first + 1, length do replies[i] = nil end
    length, granted = first, 0
  end
  replies[first] = pack('<I1I2', refused and 2 or granted == count and 1 or 0, granted)
  return refused
end

-- Takes back or charges more, and tells whether that was done.
local function adjust(items, deed)
  local refused
  for i = 1, items do
    local state = states[i]
    local kind, cost, room = state.rule.kind, state.cost, 4294967295 - state.used
    if state.refused then
      refused = state.refused
    elseif deed == 1 then
      kind.give_back(state, cost, state.extra)
    elseif not state.rule.slots and cost > 0 and room > 0 then
      refused = kind.charge(state, math.min(cost, room), 0) or refused
    end
  end
  replies[length] = refused and '\2' or '\1'
  return refused
end

while at <= #asked do
  local deed, items, low, high = byte(asked, at, at + 3)
  at, length = at + 4, length + 1
  for i = 1, items do
    local state, rule, rule_high, whole = states[i], byte(asked, at, at + 2)
    local cost, extra = 1, 0
    at, place = at + 3, place + 1
    if whole == 1 then cost, extra, at = unpack('<I6I6', asked, at) end
    if not state then
      state = state_with_room()
      states[i] = state
    end
    state.cost, state.extra = cost, extra
    rule = rules[rule + 256 * rule_high]
    rule.look(state, KEYS[place], rule, now, extra)
    state.refused = state.foreign and begin_anew(state)
  end
  local refused
  if deed == 0 then
    refused = decide(items, low + 256 * high)
  else
    refused = adjust(items, deed)
  end
  refusal = refused or refusal
end

replies[1] = pack('<I7I2', now, math.min(begun, 65535))
replies[length + 1] = refusal
return table.concat(replies)
