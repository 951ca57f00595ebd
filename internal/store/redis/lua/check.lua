-- check says whether a registration would be refused.
--
-- KEYS  client, layout
-- ARGV  base, digest of the secret, classes, 1 if another env is taken over, layout
-- Answer: an error as apart tells it, {'ok'}, {'secret'}, or {'lower' or 'env', …} as conflict tells it.

local wrong = apart(KEYS[2], ARGV[5])
if wrong then
  return wrong
end
local known = call('HMGET', KEYS[1], 'sid', 'secret', 'drain')
if known[1] and known[2] ~= ARGV[2] and call('EXISTS', ARGV[1] .. 's:' .. known[1]) == 1 then
  return {'secret'}
end
local competes = known[3] ~= '1' and ARGV[4] == '0'
return conflict(ARGV[1], ARGV[3], known[1], competes, micros()) or {'ok'}
