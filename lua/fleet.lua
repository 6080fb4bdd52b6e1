-- Counts the proxies that share this store, and tells each what it must know after an outage:
-- whether the store still has its memory, and which proxies owe it nothing any more.
-- Every proxy says its name about twice a second.
--
-- KEYS[1]  a sorted set of names, by when they were last heard of (us of the server's clock)
-- KEYS[2]  the same of the proxies that owe the store nothing
-- KEYS[3]  when the store's memory began, us: who finds it missing writes it anew
-- ARGV[1]  the name of the proxy that asks, 16 bytes
-- ARGV[2]  how long a proxy that says nothing is counted, us
-- ARGV[3]  when the store's memory began, as the proxy knows it; '' if it does not
-- ARGV[4]  '1' if the proxy owes the store nothing
-- ARGV[5]  from when on a proxy that owes nothing is to be told, us
-- reply    {how many there are, how many of them have a smaller name, now, when the memory began,
--           all names joined, the names of those that owe nothing joined}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
local began = redis.pcall('GET', KEYS[3])
if type(began) ~= 'string' or not string.find(began, '^%d+$') or #began > 16 then
  began = stamp
  redis.call('SET', KEYS[3], began)
end
-- The names are ours: what is no sorted set there is begun anew.
for i = 1, 2 do
  if redis.pcall('ZRANGE', KEYS[i], 0, 0).err then redis.call('DEL', KEYS[i]) end
end

local function say(key)
  redis.call('ZADD', key, stamp, ARGV[1])
  redis.call('EXPIRE', key, 60)
end

-- A proxy that owes nothing to another memory may owe everything to this one.
if ARGV[4] == '1' and ARGV[3] == began then say(KEYS[2]) end
say(KEYS[1])
for i = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', string.format('(%.0f', now - ARGV[2]))
  -- Nor does one count that was heard of in the future: the clock has stepped back since.
  redis.call('ZREMRANGEBYSCORE', KEYS[i], string.format('(%.0f', now), '+inf')
end

local names, smaller = redis.call('ZRANGE', KEYS[1], 0, -1), 0
for _, name in ipairs(names) do
  if name < ARGV[1] then smaller = smaller + 1 end
end
local clear, scored = {}, redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #scored, 2 do
  if tonumber(scored[i + 1]) >= tonumber(ARGV[5]) then clear[#clear + 1] = scored[i] end
end
return { #names, smaller, stamp, began, table.concat(names), table.concat(clear) }
