-- unlock ends a node's turn to sweep, if it is still its own.
--
-- KEYS  sweep
-- ARGV  token
-- Answer: 1, or 0 if the turn was over.

if call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return call('DEL', KEYS[1])
