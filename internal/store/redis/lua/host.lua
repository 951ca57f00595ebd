-- host notes in a bucket without a host name that its namespace is bound under
-- one.
--
-- KEYS  hosts
-- ARGV  host name, for how long in ms
-- Answer: 1.

local ms = math.floor(micros() / 1000)
local ends = ms + ARGV[2]
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
if tonumber(call('ZSCORE', KEYS[1], ARGV[1]) or 0) < ends then
  call('ZADD', KEYS[1], ends, ARGV[1])
end
hold(KEYS[1], tonumber(ARGV[2]))
return 1
