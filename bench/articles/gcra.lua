-- GCRA, the bucket that leaks at the limit's rate and holds a whole window's worth: what many
-- limiters in a process do, and what `burst` means in some proxies; in a script, to stand beside
-- the others.
--
-- KEYS[1]  the client's name
-- ARGV     now (us), window (us), limit
-- reply    1 if it is allowed, else 0
--
-- The key holds when the bucket would be empty (the theoretical arrival time, us). Nothing here is
-- wrong: a bucket promises a rate over the long run and a burst, and no bound on a window. Who
-- comes with a full burst and goes on at the rate has twice the limit in his first window.

local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local step = window / limit
local empty = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if empty + step - now > window then
  return 0
end
redis.call('SET', KEYS[1], string.format('%d', empty + step))
return 1
