-- Slots: requests under way at once. Twin of crates/core/src/limit/slots.rs; joined between counter.lua and
-- decide.lua.
--
-- A unit is held, not spent. One key is one STRING: for each holder (a worker of some proxy) its
-- name, how many units it holds and until when (us): its lease. Every call of a holder says how
-- many it holds (`held`), so that a lost answer or a lost release heals with the next one; a holder
-- that says nothing for a lease's length is forgotten with all it held. Released is what is not
-- said again: a charge of 0 says how many are left.

-- Slots look at one key, then at another, like a log, on behalf of `holder`.
-- `granted` has the units that this call granted to each key: the holder cannot have counted them
-- yet.
local function new_slots(holder, granted)
  local ENTRY, SIZE = '<c8I4I7', 19
  local key, others, held, last, now, till

  -- Reads a key: what live holders have, this one's own being `mine`. Writes nothing. Returns the
  -- units held; whether the clock has stepped back; and what stood there that is not ours.
  local function age(of, rule, at, mine)
    local value, used, stepped = redis_pcall('GET', of), 0, false
    key, now, till, others, last = of, at, at + rule.window, {}, 0
    held = mine + (granted[of] or 0)
    local is_ours = type(value) == 'string' and #value % SIZE == 0
    for place = 1, is_ours and #value or 0, SIZE do
      local name, has, lasts = unpack(ENTRY, value, place)
      if name ~= holder and lasts > now then
        -- No lease is longer than the window, also where the clock has stepped back since.
        if lasts > till then lasts, stepped = till, true end
        others[#others + 1] = pack(ENTRY, name, has, lasts)
        used, last = used + has, math.max(last, lasts)
      end
    end
    return held + used, stepped, not is_ours and value
  end

  -- Takes units (0: says what is held) and renews the lease. Returns the server's error, if any.
  local function charge(cost)
    held = held + cost
    granted[key] = (granted[key] or 0) + cost
    if held > 0 then
      others[#others + 1] = pack(ENTRY, holder, held, till)
      last = math.max(last, till)
    end
    if #others == 0 then
      local done = redis_pcall('DEL', key)
      return type(done) == 'table' and done.err
    end
    local left = math.ceil((last - now) / 1000) + 1
    return redis_pcall('SET', key, table.concat(others), 'PX', left).err
  end

  -- No one can say when a slot is let go of.
  local function ends() return 0, 0, 0 end

  -- What is given back is told by the next call.
  local function nothing() end
  -- Leases that were cut short must end also where all others are denied.
  local function keep_ages() charge(0) end
  local function seldom()
    return { refund = nothing, refund_oldest = nothing, keep_ages = keep_ages }
  end

  return { age = age, charge = charge, ends = ends, seldom = seldom }
end
