-- taken reads how many placements sessions got since their last heartbeats.
--
-- KEYS  sessions, candidates
-- ARGV  base, sids…
-- Answer: {number of each; 0 if it is not there}

local a = {}
for i = 2, #ARGV do
  local s = call('HMGET', ARGV[1] .. 's:' .. ARGV[i], 'headroom', 'taken')
  a[i - 1] = s[1] and taken(KEYS[2], ARGV[i], s[1], s[2]) or 0
end
return a
