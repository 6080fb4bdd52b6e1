-- Counts the proxies that share this store, so that each knows its part of a limit when the store
-- is away. Every proxy says its name about once a second.
--
-- KEYS[1]  a sorted set of names, by when they were last heard of (us of the server's clock)
-- ARGV[1]  the name of the proxy that asks
-- ARGV[2]  how long a proxy that says nothing is counted, us
-- reply    {how many there are, how many of them have a smaller name}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - ARGV[2]))
-- Nor does one count that was heard of in the future: the clock has stepped back since.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
redis.call('EXPIRE', KEYS[1], 60)

local names, smaller = redis.call('ZRANGE', KEYS[1], 0, -1), 0
for _, name in ipairs(names) do
  if name < ARGV[1] then smaller = smaller + 1 end
end
return { #names, smaller }
