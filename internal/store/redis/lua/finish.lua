-- finish removes a session from the fleet. The client is remembered.
--
-- KEYS  session, live
-- ARGV  base, sid
-- Answer: 1, or 0 if the session was not there.

local s = call('HMGET', KEYS[1], 'url', 'classes')
if not s[1] then
  return 0
end
local url = ARGV[1] .. 'u:' .. s[1]
delist(ARGV[1], s[2], ARGV[2])
call('DEL', KEYS[1])
unlisted(ARGV[1], KEYS[2], ARGV[2])
if call('GET', url) == ARGV[2] then
  call('DEL', url)
end
return 1
