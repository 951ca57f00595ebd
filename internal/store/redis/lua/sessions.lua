-- sessions reads records of sessions, and takes those that are gone from the
-- list of live ones.
--
-- KEYS  live, none
-- ARGV  base, sids…
-- Answer: for each sid {} if it is not there, else {clientId, record (JSON),
-- namespaces (by lines), headroom, draining, degraded, active, stopped,
-- registered at (Unix ms), left of the lease ms, drained, deadline left or -1}.

local now = micros()
local all = {}
for i = 2, #ARGV do
  local session = ARGV[1] .. 's:' .. ARGV[i]
  local s = call('HMGET', session, 'client', 'record', 'namespaces', 'headroom', 'draining', 'degraded', 'active',
    'stopped', 'at')
  if s[1] then
    s[10] = left(session)
    s[11], s[12] = drain(ARGV[1] .. 'c:' .. s[1], now)
  else
    s = {}
    lapsed(ARGV[1], KEYS[1], ARGV[i])
  end
  all[#all + 1] = s
end
return all
