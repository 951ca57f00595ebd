-- finish removes a session from the fleet. The client is remembered.
--
-- KEYS  session, live
-- ARGV  base, sid
-- Answer: 1, or 0 if the session was not there.

local s = call('HMGET', KEYS[1], 'client', 'url')
if not s[1] then
  return 0
end
local client, url = ARGV[1] .. 'c:' .. s[1], ARGV[1] .. 'u:' .. s[2]
call('DEL', KEYS[1])
call('ZREM', KEYS[2], ARGV[2])
if call('GET', url) == ARGV[2] then
  call('DEL', url)
end
if call('HGET', client, 'sid') == ARGV[2] then
  call('HDEL', client, 'sid')
end
return 1
