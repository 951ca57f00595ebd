-- drain sets or takes back an operator's drain of a client.
--
-- KEYS  client
-- ARGV  base, 1 or 0, deadline in ms from now or -1
-- Answer: {} if the client is unknown, else {deadline left ms or -1, and of its
-- live session, if it has one: sid, version, takes placements, namespaces (by
-- lines)}.

local client = KEYS[1]
local c = call('HMGET', client, 'gen', 'sid')
if not c[1] then
  return {}
end
local now = micros()
call('HSET', client, 'drain', ARGV[2])
call('HDEL', client, 'deadline')
if tonumber(ARGV[3]) >= 0 then
  call('HSET', client, 'deadline', math.floor(now / 1000) + ARGV[3])
end
local _, due = drain(client, now)
local session = ARGV[1] .. 's:' .. (c[2] or '')
if not c[2] or call('EXISTS', session) == 0 then
  return {due}
end
local ver = revise(session, now)
return {due, c[2], ver, takes(session, client), call('HGET', session, 'namespaces')}
