-- drop removes control messages, unless newer ones have replaced them.
--
-- KEYS  messages
-- ARGV  place and number of each
-- Answer: how many were removed.

local n = 0
for i = 1, #ARGV, 2 do
  local m = call('HGET', KEYS[1], ARGV[i])
  if m and string.match(m, '^%d+') == ARGV[i + 1] then
    n = n + call('HDEL', KEYS[1], ARGV[i])
  end
end
return n
