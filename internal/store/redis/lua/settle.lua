-- settle ends a registration: the client's former sessions have ended in every
-- bucket. From here on the fleet's layout is that of the node that registered it: not
-- before, for a bucket may have refused it.
--
-- KEYS  session, client, layout
-- ARGV  sid, namespaces (one a line), layout
-- Answer: an error as apart tells it, or what is left of the lease in ms; -1 if a later registration of the
-- client has won, -2 if the session has lapsed meanwhile.

local wrong = apart(KEYS[3], ARGV[3])
if wrong then
  return wrong
end
if call('HGET', KEYS[2], 'sid') ~= ARGV[1] then
  return -1
end
local lives = left(KEYS[1])
if lives < 0 then
  return -2
end
keep(KEYS[3], ARGV[3], lives)
call('HSET', KEYS[2], 'spaces', ARGV[2])
return lives
