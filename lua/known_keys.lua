-- One change of the API keys that all proxies know: a key is set, or removed.
--
-- KEYS[1]  HASH of the known keys: SHA-256 of the key (64 hexadecimal digits), to its words
-- KEYS[2]  the version: the time of the last change (us), or one more than the one before if the
--          clock has not moved on; so none comes back after a flush or a failover
-- KEYS[3]  LIST of the last changes, newest first: the version, the version before, the field, and
--          its words, which are empty if the key was removed; a newline after each of the first three
-- ARGV[1]  'set' or 'remove'
-- ARGV[2]  the field
-- ARGV[3]  words: lines of a name, a space and a value; the time of the change is put before them
-- ARGV[4]  how many keys there may be
-- ARGV[5]  how many changes are kept
-- reply    1 done, 0 nothing there to remove, -1 full; then how many keys there are

local kind, field, words = ARGV[1], ARGV[2], ARGV[3]
local most, kept = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if kind == 'set' then
  local is_new = redis.call('HEXISTS', KEYS[1], field) == 0
  local count = redis.call('HLEN', KEYS[1])
  if is_new and count >= most then return { -1, count } end
  words = string.format('at %.0f\n', now) .. words
  redis.call('HSET', KEYS[1], field, words)
else
  words = ''
  if redis.call('HDEL', KEYS[1], field) == 0 then return { 0, redis.call('HLEN', KEYS[1]) } end
end

local before = tonumber(redis.call('GET', KEYS[2])) or 0
local version = math.max(now, before + 1)
redis.call('SET', KEYS[2], string.format('%.0f', version))
redis.call('LPUSH', KEYS[3], string.format('%.0f\n%.0f\n%s\n', version, before, field) .. words)
redis.call('LTRIM', KEYS[3], 0, kept - 1)
return { 1, redis.call('HLEN', KEYS[1]) }
