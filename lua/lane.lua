-- The decision that nine of ten are, in one go: requests of cost 1 and one limit, which a log takes
-- all of or none. By the rules of log.lua, and of its twin; joined after it. All it needs are
-- locals, which are far cheaper than what log.lua keeps between its steps, and are there without
-- being made.
--
-- Returns the head as written, if all `many` are granted; else nothing, and how the log stands, if
-- none is; else nothing and nothing, and nothing was written: log.lua decides, from what was read.
-- Behind these: what was read, and why the server refused to write.
local function lane(key, rule, now, many)
  local value = redis_pcall('GETRANGE', key, '0', '312')
  local window, precision, size, modulus = rule.window, rule.precision, rule.size, rule.modulus
  local top, form, kept = rule.top, rule.head, nil
  local magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires
    = rule.magic, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if value ~= '' then
    if #value < top then return nil, nil, value end
    magic, capacity, head, count, base, total, first_total, first, last, newest, shift, expires,
      kept = unpack(form, value)
  end
  local own, whole = now + shift, top + capacity * size
  -- Behind a head without its precision stands where the head ends.
  if value ~= '' and (magic ~= rule.magic or top > 57 and kept ~= precision or head >= capacity
    or count > capacity or own < last or #value < whole and #value < 313) then
    return nil, nil, value
  end

  local edge = (own - own % precision - window) / precision
  if newest <= edge or count == 0 then
    head, count, base = 0, 0, total
  else
    first = newest - (newest - first) % modulus
    local reads = 0
    while first <= edge and count > 1 do
      base, head, count = first_total, (head + 1) % capacity, count - 1
      local at, bytes = top + head * size, value
      if at + size > #value then
        -- Where many have expired, the search in log.lua is shorter.
        reads = reads + 1
        if reads > 3 then return nil, nil, value end
        local format = string.format
        bytes = redis_pcall('GETRANGE', key, format('%d', at), format('%d', at + size - 1))
        if #bytes < size then return nil, nil, value end
        at = 0
      end
      first, first_total = unpack(rule.entry, bytes, at + 1)
      first = newest - (newest - first) % modulus
    end
    -- Units were given back, so the first entry is not the next to go; or this is not ours.
    if first_total == base or first <= edge then return nil, nil, value end
  end

  local used, units = (total - base) % 4294967296, rule.units
  if used >= units then
    local need, until_first = used - units + 1, first * precision + window - own
    if units < 1 or need > (first_total - base) % 4294967296 then return nil, nil, value end
    return nil, pack('<I1I2I6i7I7I7I6', 0, 0, used, until_first, newest * precision + window - own,
      until_first, newest % 281474976710656), value
  end

  local stamp = (own + (-own) % precision) / precision
  if count == 0 then
    first, count = stamp, 1
  elseif stamp > newest then
    count = count + 1
  else
    stamp = newest
  end
  local grows = count > capacity
  if used + many > units or grows and #value < whole or count == 1 and capacity > 32 then
    return nil, nil, value
  end
  total = (total + many) % 4294967296
  if count == 1 then first_total = total end

  local renews, seconds = expires * 1000000 <= now + window + precision, nil
  if renews or grows then
    seconds = math.ceil((2 * window + precision) / 1000000) + 1
    expires = math.floor(now / 1000000) + seconds
  end
  if renews and not grows then
    -- Before the write, which says that the key lives on.
    local renewed = redis_pcall('EXPIRE', key, seconds)
    if type(renewed) == 'table' then return '', nil, nil, renewed.err end
  end
  local place, between, done = top + (head + count - 1) % capacity * size, '', nil
  if grows then
    -- Every slot is live: the oldest are behind the head, the newest before it.
    local split, most = top + head * size, math.min(units, window / precision + 2)
    between = string.sub(value, split + 1, whole) .. string.sub(value, top + 1, split)
    head, capacity = 0, math.max(math.min(math.max(2 * capacity, 4), most), count)
  end
  local stands = pack(form, magic, capacity, head, count, base, total, first_total,
    first % modulus, own, stamp, shift, expires, precision)
  local entry = pack(rule.entry, stamp % modulus, total)
  if grows then
    local free = string.rep('\0', (capacity - count) * size)
    done = redis_pcall('SET', key, stands .. between .. entry .. free, 'EX', seconds)
  elseif place <= #value then
    if place > top then between = string.sub(value, top + 1, place) end
    done = redis_pcall('SETRANGE', key, '0', stands .. between .. entry)
  else
    done = redis_pcall('SETRANGE', key, string.format('%d', place), entry)
    if type(done) == 'number' then done = redis_pcall('SETRANGE', key, '0', stands) end
  end
  return stands, nil, nil, done ~= whole and type(done) == 'table' and done.err
end
