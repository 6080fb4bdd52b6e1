-- One change of what operators say of single keys: an override, a block, the end of one, a reset.
--
-- KEYS[1]  HASH of what is in force: `o:<limit>:<tag>` or `b:<tag>`, to its words
-- KEYS[2]  the version: the time of the last change (us), or one more than the one before if the
--          clock has not moved on; so none comes back after a flush or a failover
-- KEYS[3]  LIST of the last changes, newest first
-- KEYS[4]  ZSET of the fields that end, by when (us)
-- KEYS[5]  of the end of a block: HASH of the key's denials and bans, as in bans.lua; deleted too
-- ARGV[1]  now, us since the Unix epoch; '' for the server's own clock (tests bring theirs)
-- ARGV[2]  'set', 'remove' or 'reset' (which is told, and changes nothing here)
-- ARGV[3]  the field: of a reset, `r:<limit>:<tag>`
-- ARGV[4]  how long it holds (us); 0 until it is removed
-- ARGV[5]  words: lines of a name, a space and a value; `until` and `at` are put before them
-- ARGV[6]  how many fields there may be
-- ARGV[7]  how many changes are kept
-- reply    1 done, 0 nothing there to remove, -1 full; then until when it holds (us; 0 until it is
--          removed) and the version
--
-- What has ended is taken out first, a thousand fields at a time.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local kind, field, lasts, words = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local most, kept = tonumber(ARGV[6]), tonumber(ARGV[7])

local ended = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 1000)
for _, name in ipairs(ended) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[4], name)
end

local till = lasts > 0 and now + lasts or 0
words = string.format('until %.0f\nat %.0f\n', till, now) .. words
if kind == 'set' then
  local is_new = redis.call('HEXISTS', KEYS[1], field) == 0
  if is_new and redis.call('HLEN', KEYS[1]) >= most then return { -1, 0, 0 } end
  redis.call('HSET', KEYS[1], field, words)
  if till > 0 then
    redis.call('ZADD', KEYS[4], string.format('%.0f', till), field)
  else
    redis.call('ZREM', KEYS[4], field)
  end
elseif kind == 'remove' then
  local forgotten = KEYS[5] and redis.call('DEL', KEYS[5]) or 0
  if redis.call('HDEL', KEYS[1], field) + forgotten == 0 then return { 0, 0, 0 } end
  redis.call('ZREM', KEYS[4], field)
end

local version = math.max(now, (tonumber(redis.call('GET', KEYS[2])) or 0) + 1)
redis.call('SET', KEYS[2], string.format('%.0f', version))
local head = string.format('version %.0f\ndeed %s\nfield %s\n', version, kind, field)
redis.call('LPUSH', KEYS[3], head .. words)
redis.call('LTRIM', KEYS[3], 0, kept - 1)
return { 1, till, version }
