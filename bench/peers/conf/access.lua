-- Asks Redis for each request, as one would do it with this module: pooled connections, one EVALSHA.
local connection = redis:new()
connection:set_timeout(1000)
if not connection:connect("127.0.0.1", @REDIS@) then
  return ngx.exit(503)
end
sequence = sequence + 1
local answer = connection:evalsha("@SHA@", 1, "limit:" .. (ngx.var.http_x_client or ""),
  @WINDOW_US@, @UNITS@, worker .. sequence)
if not answer then
  return ngx.exit(503)
end
connection:set_keepalive(60000, 256)
if answer[1] == 0 then
  ngx.header["Retry-After"] = math.ceil(answer[2] / 1000000)
  return ngx.exit(429)
end
