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
-- Answers: clients in the hash; requests, tokens and money that went to other clients; amounts that
-- were left out, because their field has no integer.

local QUANTITIES = { 'r', 't', 'm' }
local FIRST_LINE = 6
local LEAST, MOST = '-9223372036854775808', '9223372036854775807'

local lines, sender, number = KEYS[1], '=' .. ARGV[1], tonumber(ARGV[2])
local clients = tonumber(redis.call('HGET', lines, '=clients') or 0) or 0
local last = tonumber(redis.call('HGET', lines, sender) or 0)
if last >= number then
  return { clients, 0, 0, 0, 0 }
end

local elsewhere = tonumber(ARGV[5])
for index = 2, #KEYS do
  -- Another hash that cannot be read must not hold up this one.
  elsewhere = elsewhere + (tonumber(redis.pcall('HGET', KEYS[index], '=clients')) or 0)
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

-- An error would end the script in the middle, so none is raised. A sum that does not fit becomes
-- the greatest one. A field that has no integer stays as it is.
local left_out = 0
local function add(field, amount)
  local done = redis.pcall('HINCRBY', lines, field, amount)
  local why = type(done) == 'table' and done.err
  if why and why:find('overflow', 1, true) then
    redis.call('HSET', lines, field, amount:sub(1, 1) == '-' and LEAST or MOST)
  elseif why then
    left_out = left_out + 1
  end
end

-- First of all: whatever fails later, the batch never counts twice. HINCRBY shows before the lines
-- change that this server lets the script write them.
redis.call('HINCRBY', lines, sender, number - last)

-- A correction downwards is of a request that counted already. Without a line of its client, that
-- request is in the line of other clients.
local function is_correction(at)
  for index = 1, #QUANTITIES do
    if ARGV[at + index]:sub(1, 1) == '-' then
      return true
    end
  end
  return false
end

local other = { 0, 0, 0 }
for at = FIRST_LINE, #ARGV, 4 do
  local client = ARGV[at]
  local is_other = false
  if client:sub(1, 1) == ':' and not has_line(client) then
    is_other = clients >= most or is_correction(at)
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
redis.call('PEXPIREAT', lines, ARGV[3])
return { clients, other[1], other[2], other[3], left_out }
