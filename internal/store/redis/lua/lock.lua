-- lock lets one node sweep for a while, and cleans the list of live sessions.
--
-- KEYS  sweep, live, namespaces
-- ARGV  base, token, for how long in ms, the most lapsed sids to look at
-- Answer: {} if another node sweeps, else {{namespaces to sweep…}}.

if not call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) and call('GET', KEYS[1]) ~= ARGV[2] then
  return {}
end
local ms = math.floor(micros() / 1000)
for _, sid in ipairs(call('ZRANGEBYSCORE', KEYS[2], '-inf', ms, 'LIMIT', 0, ARGV[4])) do
  local lives = call('PTTL', ARGV[1] .. 's:' .. sid)
  if lives < 0 then
    lapsed(ARGV[1], KEYS[2], sid)
  else
    call('ZADD', KEYS[2], ms + lives, sid)
  end
end
return {call('SMEMBERS', KEYS[3])}
