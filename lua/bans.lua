-- The denials of some keys that one proxy has seen, and the bans that they begin. The twin of
-- `DenialRecord` in crates/core/src/limit/ban.rs.
--
-- A ban is a block among the overrides. It begins, and is counted, here alone: so two proxies that
-- tell the last denial at once begin one ban.
--
-- KEYS[1]  HASH of what is in force, as in overrides.lua
-- KEYS[2]  the version of it, as there
-- KEYS[3]  ZSET of the fields that end, as there
-- KEYS[4..]  for each key that was denied: HASH of a limit to `<number of the last ban> <until when
--          it is remembered (us)>`, then ` <us> <denials>` for each time of denials, oldest first
-- ARGV[1]  now, us since the Unix epoch; '' for the server's own clock (tests bring theirs)
-- ARGV[2]  how many fields KEYS[1] may have when a ban begins
-- ARGV[3..]  for each key, nine: the limit; the field `b:<tag>`; denials; `after`; its window (us);
--          `for` (us); `again`; `max_for` (us); lines for the record, as in overrides.lua
-- reply    the version, or 0 if no ban began; now (us); then for each key three: 0 counted, 1 a ban
--          begins, 2 the key is blocked already, 3 there are too many blocks; until when it is
--          blocked (us; 0 for ever, or if it is not); and the number of the ban that begins

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local most = tonumber(ARGV[2])
local MAX_LEVEL, REMEMBERED = 64, 10

local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)
for _, name in ipairs(ended) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[3], name)
end

local reply, has_begun = { 0, now }, false
for index = 4, #KEYS do
  local from = 3 + (index - 4) * 9
  local limit, field, count = ARGV[from], ARGV[from + 1], tonumber(ARGV[from + 2])
  local after, window = tonumber(ARGV[from + 3]), tonumber(ARGV[from + 4])
  local first, again = tonumber(ARGV[from + 5]), tonumber(ARGV[from + 6])
  local longest, words = tonumber(ARGV[from + 7]), ARGV[from + 8]
  local state, till, number = 0, 0, 0
  local block = redis.call('HGET', KEYS[1], field)
  if block then till = tonumber(string.match(block, '^until (%d+)')) or 0 end
  if block and (till == 0 or till > now) then
    -- Other proxies learn of a ban a little later: what they still deny counts for no other ban.
    state = 2
  else
    till = 0
    local text = redis.call('HGET', KEYS[index], limit) or '0 0'
    local level, remembered, rest = string.match(text, '^(%d+) (%d+)(.*)$')
    level, remembered = tonumber(level) or 0, tonumber(remembered) or 0
    local kept, total = '', count
    for at, denials in string.gmatch(rest or '', ' (%d+) (%d+)') do
      if tonumber(at) + window > now then
        kept, total = kept .. ' ' .. at .. ' ' .. denials, total + tonumber(denials)
      end
    end
    if total < after then
      kept = string.format('%s %.0f %.0f', kept, now, count)
    elseif redis.call('HLEN', KEYS[1]) >= most then
      state = 3
    else
      state, kept, has_begun = 1, '', true
      level = now < remembered and math.min(level + 1, MAX_LEVEL) or 1
      number = level
      if level > 1 then words = words .. string.format('note number %.0f in a row\n', level) end
      till = now + math.min(first * again ^ (level - 1), longest)
      remembered = till + REMEMBERED * first
      local head = string.format('until %.0f\nat %.0f\n', till, now)
      redis.call('HSET', KEYS[1], field, head .. words)
      redis.call('ZADD', KEYS[3], string.format('%.0f', till), field)
    end
    if state ~= 3 then
      text = string.format('%.0f %.0f', level, remembered) .. kept
      redis.call('HSET', KEYS[index], limit, text)
      local lasts = math.ceil(math.max(window, remembered - now) / 1000)
      lasts = math.max(lasts, redis.call('PTTL', KEYS[index]))
      redis.call('PEXPIRE', KEYS[index], string.format('%.0f', lasts))
    end
  end
  reply[#reply + 1] = state
  reply[#reply + 1] = till
  reply[#reply + 1] = number
end

if has_begun then
  local version = math.max(now, (tonumber(redis.call('GET', KEYS[2])) or 0) + 1)
  redis.call('SET', KEYS[2], string.format('%.0f', version))
  reply[1] = version
end
return reply
