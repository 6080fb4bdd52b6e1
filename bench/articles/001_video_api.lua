-- The video-API script: a ZSET with one random member for each unit of cost.
--
-- Described in: "001", the article of a video API; rewritten from its description, not copied.
--
-- KEYS[1]  the client's name
-- ARGV     now (seconds, the client's clock), window (seconds), limit, cost, random text
-- reply    { allowed, remaining, retry (whole seconds; 0 if allowed) }
--
-- Faults kept on purpose: the retry is the oldest entry's, which is wrong as soon as more than one
-- unit has to go; a cost above the limit gets a retry as if it could ever pass; a cost of n is n
-- members and n ZADDs. (Its client's faults, such as taking every error for a missing script, are
-- not measured.)

local key, now, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local limit, cost = tonumber(ARGV[3]), tonumber(ARGV[4])

redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
local used = redis.call('ZCARD', key)

if used + cost <= limit then
  for unit = 1, cost do
    redis.call('ZADD', key, ARGV[1], ARGV[1] .. '-' .. ARGV[5] .. unit)
  end
  redis.call('EXPIRE', key, window + 1)
  return { 1, limit - used - cost, 0 }
end

local oldest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
local retry = oldest and math.ceil(tonumber(oldest) + window - now) or 1
return { 0, math.max(limit - used, 0), math.max(retry, 1) }
