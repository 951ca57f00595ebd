-- register records a session in the fleet, with a full lease and not active. It
-- ends the client's former session there, and stops the session of another
-- client that holds the advertise URL. Run twice, it answers twice the same.
--
-- KEYS  session, client, messages, url, live, namespaces
-- ARGV  base, sid, clientId, digest of the secret, lease ms, memory ms,
--       headroom, draining, namespaces (one a line), record (JSON), url digest,
--       how many former sessions to remember
-- Answer: {'secret'}    the client is live with another secret
--         {'overtaken'} this session has been replaced already
--         {'ok', generation, lineage, draining, deadline left ms or -1,
--          sids of the client and secret (by spaces), namespaces in which
--          sessions of the client may be recorded (by lines), and, if there is
--          one, of the session stopped: sid, version, namespaces (by lines)}

local session, client, messages, url, live, namespaces = unpack(KEYS)
local base, sid, clientId, secret, lease, memory = unpack(ARGV, 1, 6)
lease, memory = tonumber(lease), tonumber(memory)
local now = micros()
local c = call('HMGET', client, 'sid', 'secret', 'gen', 'lineage', 'sids', 'spaces')

local function lines(...)
  local seen, all = {}, {}
  for _, text in ipairs({...}) do
    for line in string.gmatch(text, '[^\n]+') do
      if not seen[line] then
        seen[line] = true
        all[#all + 1] = line
      end
    end
  end
  return all
end

local function answer()
  local known = call('HMGET', client, 'gen', 'lineage', 'sids', 'spaces')
  local draining, due = drain(client, now)
  local a = {'ok', tonumber(known[1]), tonumber(known[2]), draining, due, known[3], known[4]}
  local stopped = call('HGET', session, 'stops')
  local other = stopped and call('HMGET', base .. 's:' .. stopped, 'ver', 'namespaces')
  if other and other[1] then
    a[8], a[9], a[10] = stopped, tonumber(other[1]), other[2]
  end
  return a
end

if call('EXISTS', session) == 1 then
  if c[1] ~= sid then
    return {'overtaken'}
  end
  return answer()
end

-- A session that was here before and is gone does not come back.
if c[5] and string.find(' ' .. c[5] .. ' ', ' ' .. sid .. ' ', 1, true) then
  return {'overtaken'}
end

if c[1] and c[2] ~= secret and call('EXISTS', base .. 's:' .. c[1]) == 1 then
  return {'secret'}
end

-- The sids include this one: to those that come later it is a former session.
local lineage, sids = c[4], sid
if c[2] == secret then
  local n = 1
  for former in string.gmatch(c[5], '%S+') do
    if n < tonumber(ARGV[12]) then
      sids = sids .. ' ' .. former
      n = n + 1
    end
  end
else
  lineage = int(rise(c[4], now))
end

if c[1] then
  call('DEL', base .. 's:' .. c[1])
  call('ZREM', live, c[1])
end

-- The client's own former session is gone by now: the holder is another's.
local stops = ''
local holder = call('GET', url)
if holder and call('EXISTS', base .. 's:' .. holder) == 1 then
  stops = holder
  call('HSET', base .. 's:' .. holder, 'stopped', 1)
  revise(base .. 's:' .. holder, now)
end

local own = lines(ARGV[9])
call('HSET', session, 'client', clientId, 'namespaces', ARGV[9], 'record', ARGV[10], 'url', ARGV[11], 'stops', stops,
  'headroom', ARGV[7], 'draining', ARGV[8], 'active', 0, 'degraded', 0, 'stopped', 0, 'ver', now,
  'at', math.floor(now / 1000))
call('PEXPIRE', session, lease)
call('SET', url, sid, 'PX', lease)
call('ZADD', live, math.floor(now / 1000) + lease, sid)
call('HSET', client, 'sid', sid, 'secret', secret, 'gen', rise(c[3], now), 'lineage', lineage, 'sids', sids,
  'namespaces', ARGV[9], 'spaces', table.concat(lines(c[6] or '', ARGV[9]), '\n'))
hold(client, lease + memory)
if call('EXISTS', messages) == 1 then
  hold(messages, lease + memory)
end
if #own > 0 then
  call('SADD', namespaces, unpack(own))
end
return answer()
