-- host notes in a bucket without a host name that its namespace is bound under
-- one.
--
-- KEYS  hosts
-- ARGV  host name, for how long in ms
-- Answer: 1.

local ms = math.floor(micros() / 1000)
local ends = ms + ARGV[2]
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
local bound = call('ZSCORE', KEYS[1], ARGV[1])
if tonumber(bound or 0) < ends then
  call('ZADD', KEYS[1], ends, ARGV[1])
end
-- A bucket without a generation has no sessions, and nobody goes by it.
local base = string.sub(KEYS[1], 1, -6)
if not bound and call('EXISTS', base .. 'generation') == 1 then
  turn(base)
end
hold(KEYS[1], tonumber(ARGV[2]))
return 1
