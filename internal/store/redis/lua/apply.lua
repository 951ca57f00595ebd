-- apply brings a session's record in a bucket up to the fleet's. A state that
-- comes later than a newer one is ignored.
--
-- KEYS  meta, sessions, candidates, session; of one that is stopped, generation
-- ARGV  sid, version of the state, takes placements, stopped, and for a
--       heartbeat: lease ms, headroom
-- Answer: what is left of the lease in ms; -1 if the session is not there, or
-- if it is stopped and was to be renewed. Of a heartbeat: {left of the lease ms,
-- time us}

local meta, sessions, candidates, session = unpack(KEYS)
local sid, ver, takes, stop, lease, headroom = unpack(ARGV)
local s = call('HMGET', session, 'ver', 'headroom', 'stopped', 'taken', 'rows')
if not s[1] then
  return -1
end
if tonumber(ver) > tonumber(s[1]) then
  local n, rows, score = taken(candidates, sid, s[2], s[4]), tonumber(s[5])
  if headroom then
    n, rows = 0, rows + n
  end
  local reported = headroom or s[2]
  if takes ~= '0' then
    score, n = spend(tonumber(reported), n)
  end
  call('HSET', session, 'ver', ver, 'takes', takes, 'headroom', reported, 'taken', n, 'rows', rows)
  if stop == '1' then
    call('HSET', session, 'stopped', 1)
    turn(string.sub(meta, 1, -5))
  end
  if score then
    list(meta, candidates, sid, score)
  else
    unlist(meta, candidates, sid)
  end
end
if not lease then
  return left(session)
end
if s[3] == '1' then
  return -1
end
local lives, now = renew(session, tonumber(lease)), micros()
call('ZADD', sessions, math.floor(now / 1000) + lives, sid)
return {lives, now}
