-- check says whether a registration would be refused for its secret.
--
-- KEYS  client
-- ARGV  base, digest of the secret
-- Answer: 1 if the client has a live session with another secret, else 0.

local known = call('HMGET', KEYS[1], 'sid', 'secret')
if known[1] and known[2] ~= ARGV[2] and call('EXISTS', ARGV[1] .. 's:' .. known[1]) == 1 then
  return 1
end
return 0
