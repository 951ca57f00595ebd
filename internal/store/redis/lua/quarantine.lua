-- quarantine reads what is left of a bucket's quarantine.
--
-- KEYS  meta
-- Answer: ms; 0 if none is running.

local m = call('HMGET', KEYS[1], 'quarantine', 'quarantined')
if not m[1] or m[1] == '0' then
  return 0
end
return math.max(0, math.min(m[2], m[1] - math.floor(micros() / 1000)))
