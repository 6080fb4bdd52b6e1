-- Adds a batch of usage to the lines of a day, once.
--
-- The lines of a day lie in 16 hashes. Fields: `r:NAME`, `t:NAME` and `m:NAME` are requests, tokens
-- and money of a client; `r?` .. those of unknown clients, `r+` .. those of clients beyond the bound;
-- `=clients` is the number of clients, and `=PROCESS` the last batch of a process.
--
-- KEYS: the hash; then the other hashes of the day, if they are on this server.
-- ARGV: process, number of the batch, when the hash expires (ms), most clients of a day, clients in
-- hashes that are no keys here; then for each line: its client (`:NAME`, `?` or `+`), requests,
-- tokens, money.
-- Answers: clients in the hash; requests, tokens and money that went to other clients.

local QUANTITIES = { 'r', 't', 'm' }
local FIRST_LINE = 6
local LEAST, MOST = '-9223372036854775808', '9223372036854775807'

local lines, sender, number = KEYS[1], '=' .. ARGV[1], tonumber(ARGV[2])
local clients = tonumber(redis.call('HGET', lines, '=clients') or 0)
local last = tonumber(redis.call('HGET', lines, sender) or 0)
if last >= number then
  return { clients, 0, 0, 0 }
end

local elsewhere = tonumber(ARGV[5])
for index = 2, #KEYS do
  elsewhere = elsewhere + tonumber(redis.call('HGET', KEYS[index], '=clients') or 0)
end
local most = tonumber(ARGV[4]) - elsewhere
local before = clients

local function has_line(client)
  for _, quantity in ipairs(QUANTITIES) do
    if redis.call('HEXISTS', lines, quantity .. client) == 1 then
      return true
    end
  end
  return false
end

-- A sum that does not fit becomes the greatest one. An error would end the script in the middle, and
-- the batch would come again and again.
local function add(field, amount)
  local done = redis.pcall('HINCRBY', lines, field, amount)
  local why = type(done) == 'table' and done.err
  if why and why:find('overflow', 1, true) then
    redis.call('HSET', lines, field, amount:sub(1, 1) == '-' and LEAST or MOST)
  elseif why then
    redis.call('HINCRBY', lines, field, amount)
  end
end

local other = { 0, 0, 0 }
for at = FIRST_LINE, #ARGV, 4 do
  local client = ARGV[at]
  local is_other = false
  if client:sub(1, 1) == ':' and not has_line(client) then
    is_other = clients >= most
    if not is_other then
      clients = clients + 1
    end
  end
  for index, quantity in ipairs(QUANTITIES) do
    local amount = ARGV[at + index]
    if amount ~= '0' then
      if is_other then
        other[index] = other[index] + tonumber(amount)
        add(quantity .. '+', amount)
      else
        add(quantity .. client, amount)
      end
    end
  end
end

if clients > before then
  redis.call('HSET', lines, '=clients', clients)
end
redis.call('HSET', lines, sender, number)
redis.call('PEXPIREAT', lines, ARGV[3])
return { clients, other[1], other[2], other[3] }
