-- counts reads how many rows sessions have.
--
-- KEYS  sessions, candidates
-- ARGV  base, sids…
-- Answer: {number of each; 0 if it is not there}

local a = {}
for i = 2, #ARGV do
  local s = call('HMGET', ARGV[1] .. 's:' .. ARGV[i], 'rows', 'taken', 'headroom')
  a[i - 1] = s[1] and math.max(0, s[1] + taken(KEYS[2], ARGV[i], s[3], s[2])) or 0
end
return a
