-- Shared by the fleet's scripts: prepended to each of them, after lib.lua.

-- takes returns 1 if the session may take placements as far as the fleet knows.
local function takes(session, client)
  local s = call('HMGET', session, 'active', 'draining', 'degraded', 'stopped')
  if s[1] == '1' and s[2] == '0' and s[3] == '0' and s[4] == '0' and call('HGET', client, 'drain') ~= '1' then
    return 1
  end
  return 0
end

-- revise gives the session's state a new version and returns it.
local function revise(session, now)
  local ver = rise(call('HGET', session, 'ver'), now)
  call('HSET', session, 'ver', ver)
  return ver
end

-- drain returns the operator's drain of a client: 0 or 1, and what is left of
-- its deadline in milliseconds, -1 without one.
local function drain(client, now)
  local d = call('HMGET', client, 'drain', 'deadline')
  if d[1] ~= '1' then
    return 0, -1
  end
  if not d[2] then
    return 1, -1
  end
  return 1, math.max(0, d[2] - math.floor(now / 1000))
end
