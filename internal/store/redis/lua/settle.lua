-- settle ends a registration: the client's former sessions have ended in every
-- bucket.
--
-- KEYS  session, client
-- ARGV  sid, namespaces (one a line)
-- Answer: what is left of the lease in ms; -1 if a later registration of the
-- client has won, -2 if the session has lapsed meanwhile.

if call('HGET', KEYS[2], 'sid') ~= ARGV[1] then
  return -1
end
local lives = left(KEYS[1])
if lives < 0 then
  return -2
end
call('HSET', KEYS[2], 'spaces', ARGV[2])
return lives
