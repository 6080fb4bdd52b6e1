-- Slots: requests under way at once. Twin of src/limit/slots.rs; joined between counter.lua and
-- decide.lua.
--
-- A unit is held, not spent. One key is one STRING: for each holder (a worker of some proxy) its
-- name, how many units it holds and until when (us): its lease. Every call of a holder says how
-- many it holds (`held`), so that a lost answer or a lost release heals with the next one; a holder
-- that says nothing for a lease's length is forgotten with all it held. Released is what is not
-- said again: a charge of 0 says how many are left.

local SLOTS_ENTRY, SLOTS_SIZE = '<c8I4I7', 19
-- Units granted to each key in this call: the holder cannot have counted them yet.
local slots_granted = {}

-- Reads a key: what live holders have, this one's own being `held`. Writes nothing.
local function slots_look(key, units, window, now, held, holder)
  local value = redis.pcall('GET', key)
  held = held + (slots_granted[key] or 0)
  local slots = {
    key = key, units = units, window = window, held = held, holder = holder, others = {},
    used = held, said = 0, last = 0, newest = 0, now = now,
  }
  if type(value) ~= 'string' then
    slots.foreign = value
    return slots
  end
  if #value % SLOTS_SIZE ~= 0 then slots.foreign = value; return slots end
  for at = 1, #value, SLOTS_SIZE do
    local name, has, till = struct.unpack(SLOTS_ENTRY, value, at)
    if name == holder then
      slots.said = has
    elseif till > now then
      -- No lease is longer than the window, also where the clock has stepped back since.
      till = math.min(till, now + window)
      slots.others[#slots.others + 1] = struct.pack(SLOTS_ENTRY, name, has, till)
      slots.used, slots.last = slots.used + has, math.max(slots.last, till)
    end
  end
  return slots
end

-- No one can say when a slot is let go of.
local function slots_wait() return 0 end

-- Takes units (0: says what is held) and renews the lease. Returns the server's error, if any.
local function slots_charge(slots, cost)
  slots.held, slots.used = slots.held + cost, slots.used + cost
  slots_granted[slots.key] = (slots_granted[slots.key] or 0) + cost
  local entries = slots.others
  if slots.held > 0 then
    local till = slots.now + slots.window
    entries[#entries + 1] = struct.pack(SLOTS_ENTRY, slots.holder, slots.held, till)
    slots.last = math.max(slots.last, till)
  end
  if #entries == 0 then
    local done = redis.pcall('DEL', slots.key)
    return type(done) == 'table' and done.err
  end
  local left = math.ceil((slots.last - slots.now) / 1000) + 1
  return redis.pcall('SET', slots.key, table.concat(entries), 'PX', left).err
end
