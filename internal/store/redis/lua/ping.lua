-- ping writes something small: a server that answers may take no writes, as a
-- replica does, or one that is full.
--
-- KEYS  ping, layout
-- ARGV  for how long it stays in ms, layout
-- Answer: 1, or an error as apart tells it.

local wrong = apart(KEYS[2], ARGV[2])
if wrong then
  return wrong
end
call('SET', KEYS[1], '', 'PX', ARGV[1])
return 1
