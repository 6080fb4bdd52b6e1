-- Decides a batch of groups of requests. Twin of crates/core/src/limit/decide.rs. The script is log.lua,
-- lane.lua, counter.lua, slots.lua, calendar.lua and this file, joined when it is loaded.
--
-- A group is one operation over its items, each a key:
--   charge (0)     `count` equal requests, all or nothing each: as many as fit are granted, the
--                  first ones; a cost of 0 writes nothing (but says what slots are held)
--   refund (1)     takes back what an earlier charge put there: of that entry only, nothing where
--                  it has expired
--   settle (2)     charges whatever is counted already: what was granted turned out to cost more
--   refund the oldest (3)
--                  takes back up to the cost of what is counted, oldest units first; slots stay
--   book (4)       charges one request, or holds it: where each item that denies it has a longest
--                  wait that is not shorter than its own, it is charged all the same. Logs stamp it
--                  with the instant at which all items allow it, the others with now
--
-- KEYS     every item's key, in the order of the items; a key may occur in several groups, and
--          the later ones see what the earlier ones wrote, but only once in one group
-- ARGV[1]  now, us since the Unix epoch; '' for the server's own clock (tests bring theirs)
-- ARGV[2]  who asks: the holder of slots (8 bytes)
-- ARGV[3]  the rules: how many (u16), then for each
--          algorithm (u8: 0 log, 1 counter, 2 slots, 3 calendar), units, window and precision (u48,
--          us); then for each group: operation (u8), items (u16), count (u16), then for each item
--          its rule, from 0 (u16), and 0 for a cost of 1 and an extra of 0; else 1, cost and extra
--          (u48); of a calendar window 2, cost (u56), extra (u48), the end of the window that holds
--          the clock as the proxy knows it, and of the next one (u56, us since the Unix epoch).
--          Extra is, to charge, how far ahead to stamp (us; log) or the units held now (slots); to
--          refund, the stamp. The window of a calendar rule is the longest of its kind.
-- reply    one string: now (u56); how many keys held something not ours and were begun anew (u16);
--          then for each group 0 denied or partly, 1 allowed, 2 the server refused to write, 4 the
--          ends that were sent do not fit the clock: ask again (u8)
--          and, for a charge, granted (u16); then, for the first granted request if there is one
--          and again for the first denied one if there is one, for each item: used before (u48),
--          retry (i56: -1 never, -2 when released), reset, next (u56, us), stamp (u48). Behind a 2
--          and a 4 only granted = 0 follows. Where all of `count` were granted and each item is a log: 3,
--          and for each item the head of the log as it was written, which says all that: 57
--          bytes by a rule whose precision is 1 us, else 63. A request that was booked is told like
--          a granted one, behind a 5: retry is how long each item makes it wait.
--          After the last group: the text of the server's refusal.
--
-- All numbers are little-endian and below 2^53. The clock is read once. A denial writes nothing
-- (but the ages, after a step back of the clock). Writes are never retried here, and their errors
-- are replies: one group that the server refuses to write (out of memory, read-only) must not
-- abort the others of the batch.

-- Does any group: made where a call has one that is not for the lane.
local function all_lanes(now, rules, replies)
  -- The items of the group at hand. Later groups fill the same tables anew.
  local items, granted, length, begun = {}, {}, 1, 0

  -- What counts the units of this item: its log, its counter, its slots, its calendar window.
  local function new_tally(kind)
    if kind == 'log' then return new_log() end
    if kind == 'counter' then return new_counter() end
    if kind == 'calendar' then return new_calendar() end
    return new_slots(ARGV[2], granted)
  end

  -- A key that holds something not ours is begun anew; returns why where it cannot be.
  local function begin_anew(key, foreign)
    if type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then
      return foreign.err
    end
    redis_pcall('DEL', key)
    begun = begun + 1
  end

  -- How long a denied request must wait for this item.
  local function retry(item)
    local cost, units = item.cost, item.rule.units
    if cost > units then return -1 end
    if item.used + cost <= units then return 0 end
    if item.rule.kind == 'slots' then return -2 end
    return item.tally.wait(units - cost)
  end

  local function tell(many, denied, booked)
    for i = 1, many do
      local item = items[i]
      local reset, next, newest = item.tally.ends()
      local waits = denied and retry(item) or booked and item.waits or 0
      replies[length + i] = pack('<I6i7I7I7I6', item.used, waits, reset, next,
        newest % 281474976710656)
    end
    length = length + many
  end

  -- A denial changes nothing but the ages. Returns the server's error, if any.
  local function deny(many)
    for i = 1, many do
      local item = items[i]
      if item.stepped and item.cost > 0 then item.tally.seldom().keep_ages() end
      if item.rule.kind == 'slots' and item.cost == 0 then
        -- What is held is said also where that is above the limit by now.
        local refused = item.tally.charge(0)
        if refused then return refused end
      end
    end
  end

  -- Charges as many of `count` requests as fit, and tells how the limits stand. Returns the
  -- server's error, if any.
  local function decide(many, count)
    local granted, first, refused, heads = count, length, nil, nil
    for i = 1, many do
      local item = items[i]
      local cost, room = item.cost, item.rule.units - item.used
      refused = refused or item.refused
      if cost > room then
        granted = 0
      elseif cost * granted > room then
        granted = (room - room % cost) / cost
      end
    end
    if granted > 0 and not refused then
      heads = granted == count
      for i = 1, many do
        local item, stands = items[i], nil
        local cost = item.cost
        if cost > 0 or item.rule.kind == 'slots' then
          refused, stands = item.tally.charge(cost * granted, item.extra)
          if refused then break end
        end
        replies[first + i] = stands
        heads = heads and stands
      end
      if heads and not refused then
        replies[first], length = '\3', first + many
        return
      end
      if not refused then tell(many) end
    end
    if granted < count and not refused then
      if granted == 0 then
        refused = deny(many)
      else
        for i = 1, many do items[i].used = items[i].used + items[i].cost * granted end
      end
      if not refused then tell(many, true) end
    end
    if refused then
      for i = first + 1, first + 2 * many do replies[i] = nil end
      length, granted = first, 0
    end
    replies[first] = pack('<I1I2', refused and 2 or granted == count and 1 or 0, granted)
    return refused
  end

  -- How long a request must be held, us: 0 where it is allowed, nothing where an item that denies
  -- it does not hold requests for so long, or holds too many already.
  local function wait_of(many)
    local wait, most = 0, math.huge
    for i = 1, many do
      local item = items[i]
      local waits = item.refused and -1 or retry(item)
      if waits ~= 0 then
        local longest = item.longest
        if waits < 0 or not longest then return end
        local cost = item.cost
        if item.tally.held() + cost > item.queue * math.max(cost, 1) then return end
        wait, most = math.max(wait, waits), math.min(most, longest)
      end
      item.waits = waits
    end
    return wait <= most and wait or nil
  end

  -- Charges a request that is held for `wait` us, and tells how the limits stand. Returns the
  -- server's error, if any.
  local function book(many, wait)
    local first, refused = length, nil
    for i = 1, many do
      local item = items[i]
      if item.cost > 0 then
        refused = item.tally.charge(item.cost, item.rule.kind == 'log' and wait or item.extra)
        if refused then break end
      end
    end
    if not refused then tell(many, false, true) end
    replies[first] = refused and '\2\0\0' or '\5\1\0'
    return refused
  end

  -- Takes back or charges more, and tells whether that was done.
  local function adjust(many, operation)
    local refused
    for i = 1, many do
      local item = items[i]
      local cost, room = item.cost, (item.tally.most or 4294967295) - item.used
      if item.refused then
        refused = item.refused
      elseif operation == 1 then
        refused = item.tally.seldom().refund(cost, item.extra) or refused
      elseif operation == 3 then
        refused = item.tally.seldom().refund_oldest(cost) or refused
      elseif item.rule.kind ~= 'slots' and cost > 0 and room > 0 then
        refused = item.tally.charge(math.min(cost, room), 0) or refused
      end
    end
    replies[length] = refused and '\2' or '\1'
    return refused
  end

  -- Does the group at `at`, whose first key is the `place`th, and answers from `from` on; of the
  -- first item `read` was read already. Returns the end of its answer, where the next group begins
  -- and which is its first key, how many keys were begun anew, and the server's error, if any.
  return function(at, place, from, read)
    local asked, byte = ARGV[3], string.byte
    local operation, many, many_high, low, high = byte(asked, at, at + 4)
    local refused, again = nil, false
    many = many + 256 * many_high
    at, length, begun = at + 5, from, 0
    for i = 1, many do
      local item, rule, rule_high, is_long = items[i], byte(asked, at, at + 2)
      local key, cost, extra, foreign, first, second, unfit = KEYS[place], 1, 0, nil, nil, nil, nil
      local longest, queue
      at, place = at + 3, place + 1
      if is_long == 1 then
        cost, extra, at = unpack('<I6I6', asked, at)
      elseif is_long == 2 then
        cost, extra, first, second, at = unpack('<I7I6I7I7', asked, at)
      elseif is_long == 3 then
        longest, queue, at = unpack('<I6I4', asked, at)
      elseif is_long == 4 then
        cost, longest, queue, at = unpack('<I6I6I4', asked, at)
      end
      if not item then
        item = { rule = 0, tally = 0, cost = 0, extra = 0, used = 0, stepped = 0, refused = 0 }
        items[i] = item
      end
      rule = rules[rule + 256 * rule_high]
      if item.rule ~= rule then
        -- One for each kind is kept.
        local kind = rule.kind
        item.rule, item[kind] = rule, item[kind] or new_tally(kind)
        item.tally = item[kind]
      end
      item.cost, item.extra = cost, extra
      if operation == 4 then item.longest, item.queue = longest, queue end
      item.used, item.stepped, foreign, unfit =
        item.tally.age(key, rule, now, extra, read, first, second)
      item.refused = foreign and begin_anew(key, foreign)
      read, again = nil, again or unfit
    end
    if again and operation % 2 == 0 then
      -- What is given back opens no window.
      replies[length] = operation == 2 and '\4' or '\4\0\0'
    elseif operation == 0 then
      refused = decide(many, low + 256 * high)
    elseif operation == 4 then
      local wait = wait_of(many)
      if wait and wait > 0 then
        refused = book(many, wait)
      else
        refused = decide(many, 1)
      end
    else
      refused = adjust(many, operation)
    end
    return length, at, place, begun, refused
  end
end

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local rules, asked = {}, ARGV[3]
local how_many, at = unpack('<I2', asked)
for i = 0, how_many - 1 do
  local algorithm, units, window, precision
  algorithm, units, window, precision, at = unpack('<I1I6I6I6', asked, at)
  local kind = algorithm == 0 and 'log' or algorithm == 1 and 'counter' or algorithm == 2 and 'slots'
    or 'calendar'
  rules[i] = new_rule(kind, units, window, precision)
end

local replies, length, place, begun, refusal, other = { '' }, 1, 1, 0, nil, nil
local KEYS, byte, size = KEYS, string.byte, #asked
while at <= size do
  local operation, many, many_high, low, high, rule, rule_high, is_long = byte(asked, at, at + 7)
  local heads, stands, read, refused
  if many == 1 and many_high == 0 and (operation == 0 and is_long == 0 or is_long == 3) then
    rule = rules[rule + 256 * rule_high]
    if rule.kind == 'log' then
      heads, stands, read, refused = lane(KEYS[place], rule, now, low + 256 * high)
      -- What the lane denies may be held.
      if is_long == 3 then stands = nil end
    end
  end
  if heads or stands then
    at, place = at + (is_long == 3 and 18 or 8), place + 1
    if refused then
      length = length + 1
      replies[length] = '\2\0\0'
    elseif heads then
      replies[length + 1], replies[length + 2], length = '\3', heads, length + 2
    else
      length = length + 1
      replies[length] = stands
    end
  else
    local anew
    other = other or all_lanes(now, rules, replies)
    length, at, place, anew, refused = other(at, place, length + 1, read)
    begun = begun + anew
  end
  refusal = refused or refusal
end

replies[1] = pack('<I7I2', now, math.min(begun, 65535))
replies[length + 1] = refusal
return table.concat(replies)
