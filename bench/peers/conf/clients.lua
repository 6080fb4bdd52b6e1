-- For wrk: requests of so many clients in turn, made before. Arguments: how many clients, the path,
-- bytes of a body.
local requests, at = {}, 0

function init(arguments)
  local clients, path = tonumber(arguments[1]), arguments[2]
  local bytes = tonumber(arguments[3])
  local method = bytes > 0 and "POST" or "GET"
  local body = bytes > 0 and string.rep("b", bytes) or nil
  for client = 1, clients do
    requests[client] = wrk.format(method, path, { ["X-Client"] = "c" .. client }, body)
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end
