-- A sliding window, exact: of each client a sorted set with a member for each request that was let
-- through, scored by Redis's clock.
-- KEYS: the client. ARGV: the window (us), how many requests it may hold, a name for this request.
-- Reply: 1 and how many are left, or 0 and how long until one is (us).
local client, window, units = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
redis.call("ZREMRANGEBYSCORE", client, 0, now - window)
local used = redis.call("ZCARD", client)
if used >= units then
  local oldest = redis.call("ZRANGE", client, 0, 0, "WITHSCORES")
  return { 0, oldest[2] + window - now }
end
redis.call("ZADD", client, now, ARGV[3])
redis.call("PEXPIRE", client, math.ceil(window / 1000))
return { 1, units - used - 1 }
