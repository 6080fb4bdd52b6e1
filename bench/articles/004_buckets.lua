-- The HASH of buckets: a window is cut into blocks of `precision` seconds, each with a count, and
-- a running sum of those that still count.
--
-- Described in: "004", the article on sliding windows with precision; rewritten from its
-- description, not copied.
--
-- KEYS     the client's names, each of them limited
-- ARGV     limits as JSON [[seconds, limit, precision]], now (whole seconds, the client's clock),
--          weight
-- reply    0 allowed, 1 denied; no retry
-- fields   D:P: the sum, D:P:o the oldest block that may be there, D:P:B the count of block B
--
-- Faults kept on purpose: the window is cut at D/P blocks, so it holds only the last D - P to D
-- seconds; an early return leaves `o` where it was, so every denial walks the missed blocks again;
-- a block's number is compared with seconds; whole seconds only; the clock is the client's; two
-- limits of one duration share their fields; the JSON is decoded at each call.

local now, weight = tonumber(ARGV[2]), tonumber(ARGV[3])
local plans, longest = {}, 0

for place, limit in ipairs(cjson.decode(ARGV[1])) do
  local seconds, most = limit[1], limit[2]
  local precision = math.min(limit[3] or seconds, seconds)
  local blocks = math.ceil(seconds / precision)
  local plan = { sum = seconds .. ':' .. precision .. ':', block = math.floor(now / precision) }
  plan.first = plan.block - blocks + 1
  plan.oldest = plan.sum .. 'o'
  plans[place] = plan
  longest = math.max(longest, seconds)

  for _, key in ipairs(KEYS) do
    local oldest = tonumber(redis.call('HGET', key, plan.oldest) or plan.first)
    if oldest > now then return 1 end

    local gone, fields = 0, {}
    for block = oldest, math.min(plan.first, oldest + blocks) - 1 do
      local count = redis.call('HGET', key, plan.sum .. block)
      if count then
        gone = gone + tonumber(count)
        fields[#fields + 1] = plan.sum .. block
      end
    end
    local used
    if #fields > 0 then
      redis.call('HDEL', key, unpack(fields))
      used = redis.call('HINCRBY', key, plan.sum, -gone)
    else
      used = redis.call('HGET', key, plan.sum)
    end
    if tonumber(used or 0) + weight > most then return 1 end
  end
end

for _, plan in ipairs(plans) do
  for _, key in ipairs(KEYS) do
    redis.call('HSET', key, plan.oldest, plan.first)
    redis.call('HINCRBY', key, plan.sum, weight)
    redis.call('HINCRBY', key, plan.sum .. plan.block, weight)
  end
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, longest) end
return 0
