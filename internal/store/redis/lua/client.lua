-- client reads what is remembered of a client.
--
-- KEYS  client
-- ARGV  base
-- Answer: {} if it is unknown, else {sid of its live session or '', namespaces
-- (by lines), drained, deadline left ms or -1}.

local c = call('HMGET', KEYS[1], 'gen', 'sid', 'namespaces')
if not c[1] then
  return {}
end
local sid = c[2]
if not sid or call('EXISTS', ARGV[1] .. 's:' .. sid) == 0 then
  sid = ''
end
return {sid, c[3], drain(KEYS[1], micros())}
