-- taken reads how many placements sessions got since their last heartbeats.
--
-- KEYS  sessions
-- ARGV  base, sids…
-- Answer: {number of each; 0 if it is not there}

local a = {}
for i = 2, #ARGV do
  a[i - 1] = tonumber(call('HGET', ARGV[1] .. 's:' .. ARGV[i], 'taken') or 0)
end
return a
