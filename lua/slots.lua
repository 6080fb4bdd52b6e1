-- Slots: requests under way at once. Twin of src/limit/slots.rs; joined between counter.lua and
-- decide.lua.
--
-- A unit is held, not spent. One key is one STRING: for each holder (a worker of some proxy) its
-- name, how many units it holds and until when (us): its lease. Every call of a holder says how
-- many it holds (`held`), so that a lost answer or a lost release heals with the next one; a holder
-- that says nothing for a lease's length is forgotten with all it held. Released is what is not
-- said again: a charge of 0 says how many are left.

-- The functions that decide about slots on behalf of `holder`; made where a call has some.
local function slots_kind(holder)
  local ENTRY, SIZE = '<c8I4I7', 19
  -- Units granted to each key in this call: the holder cannot have counted them yet.
  local granted = {}

  -- Reads a key: what live holders have, this one's own being `held`. Writes nothing.
  local function look(slots, key, rule, now, held)
    local value, others, used, last = redis_pcall('GET', key), {}, 0, 0
    held = held + (granted[key] or 0)
    local ours = type(value) == 'string' and #value % SIZE == 0
    for at = 1, ours and #value or 0, SIZE do
      local name, has, till = unpack(ENTRY, value, at)
      if name ~= holder and till > now then
        -- No lease is longer than the window, also where the clock has stepped back since.
        till = math.min(till, now + rule.window)
        others[#others + 1] = pack(ENTRY, name, has, till)
        used, last = used + has, math.max(last, till)
      end
    end
    slots.key, slots.rule, slots.now, slots.foreign = key, rule, now, not ours and value
    slots.held, slots.others, slots.used, slots.last = held, others, held + used, last
    slots.newest, slots.stepped = 0, false
  end

  -- No one can say when a slot is let go of.
  local function wait() return 0 end

  -- Takes units (0: says what is held) and renews the lease. Returns the server's error, if any.
  local function charge(slots, cost)
    slots.held, slots.used = slots.held + cost, slots.used + cost
    granted[slots.key] = (granted[slots.key] or 0) + cost
    local entries = slots.others
    if slots.held > 0 then
      local till = slots.now + slots.rule.window
      entries[#entries + 1] = pack(ENTRY, holder, slots.held, till)
      slots.last = math.max(slots.last, till)
    end
    if #entries == 0 then
      local done = redis_pcall('DEL', slots.key)
      return type(done) == 'table' and done.err
    end
    local left = math.ceil((slots.last - slots.now) / 1000) + 1
    return redis_pcall('SET', slots.key, table.concat(entries), 'PX', left).err
  end

  -- What is given back is told by the next call's `held`.
  local function nothing() end

  return { look = look, wait = wait, charge = charge, give_back = nothing, keep_ages = nothing }
end
