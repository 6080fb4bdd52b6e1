-- The "production-ready" script: a ZSET whose members are timestamps of the server.
--
-- Described in: "003", the article of that name; rewritten from its description, not copied.
--
-- KEYS[1]  the client's name
-- ARGV     limit, window (seconds), now (us; '' for the server's clock, which is what the article
--          uses; the benchmark brings its own)
-- reply    { allowed, units counted }; no retry, although the article promises one
--
-- Faults kept on purpose: member = timestamp, so requests of one microsecond count once (a script
-- in a MULTI on Valkey 8, a clock that steps back); EXPIRE on every denial, a write that is
-- replicated; a clock that steps back locks out until it has caught up. (Its lock in Redis around
-- the loading of the script is not measured.)

local key, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window * 1000000)
local used = redis.call('ZCARD', key)

if used < limit then
  redis.call('ZADD', key, now, now)
  redis.call('EXPIRE', key, window)
  return { 1, used + 1 }
end
redis.call('EXPIRE', key, window)
return { 0, used }
