-- lapsed clears a session that was met and is gone, and others that have lapsed.
--
-- KEYS  meta, sessions, candidates, none
-- ARGV  base, sid, the most of the others to clear
-- Answer: 1.

local meta, sessions, candidates = unpack(KEYS)
local base, sid, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
expire(base, meta, sessions, candidates, most)
if call('EXISTS', base .. 's:' .. sid) == 0 then
  lapse(meta, sessions, candidates, sid)
end
-- After a failover, leases may have ended earlier than the list tells.
for _, last in ipairs(call('ZREVRANGE', sessions, 0, most - 1)) do
  if call('EXISTS', base .. 's:' .. last) == 1 then
    break
  end
  lapse(meta, sessions, candidates, last)
end
return 1
