-- Requests for wrk. Arguments: how many clients, the path, bytes of a body, and "same" or "varied".
-- "same": one request for each client, made before, the clients in turn.
-- "varied": each request has its own path, query and request id, and the client is drawn at random.
local requests, at = {}, 0
local head, tail, clients

local agents = {
  "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15",
  "okhttp/5.1.0",
  "python-requests/2.32.5",
  "axios/1.12.2",
  "Go-http-client/1.1",
}
local kinds = { "/orders/", "/users/", "/api/v2/items/", "/search/", "/files/" }
local random, format = math.random, string.format

local function varied()
  return head .. kinds[random(#kinds)] .. random(1000000)
    .. "?page=" .. random(200) .. "&since=" .. random(1700000000, 1800000000)
    .. tail .. agents[random(#agents)]
    .. format("\r\nX-Request-Id: %08x%08x\r\nX-Client: c", random(0, 4294967295), random(0, 4294967295))
    .. random(clients) .. "\r\n\r\n"
end

local function same()
  at = at % #requests + 1
  return requests[at]
end

function init(arguments)
  clients = tonumber(arguments[1])
  local path, bytes = arguments[2], tonumber(arguments[3])
  if arguments[4] == "varied" then
    math.randomseed(os.time())
    head = "GET "
    tail = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"]
      .. "\r\nAccept: application/json\r\nUser-Agent: "
    request = varied
    return
  end
  local method = bytes > 0 and "POST" or "GET"
  local body = bytes > 0 and string.rep("b", bytes) or nil
  for client = 1, clients do
    requests[client] = wrk.format(method, path, { ["X-Client"] = "c" .. client }, body)
  end
end

-- wrk asks whether this is there before it calls init.
request = same
