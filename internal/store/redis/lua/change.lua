-- change sets one flag of a session.
--
-- KEYS  session
-- ARGV  base, flag ('active' or 'degraded'), 0 or 1
-- Answer: {} if the session is not there, else {changed, version, takes
-- placements, namespaces (by lines)}.

local s = call('HMGET', KEYS[1], 'client', ARGV[2], 'namespaces', 'ver')
local client = ARGV[1] .. 'c:' .. (s[1] or '')
if not s[1] then
  return {}
end
if s[2] == ARGV[3] then
  return {0, tonumber(s[4]), takes(KEYS[1], client), s[3]}
end
call('HSET', KEYS[1], ARGV[2], ARGV[3])
local ver = revise(KEYS[1], micros())
return {1, ver, takes(KEYS[1], client), s[3]}
