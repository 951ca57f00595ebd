-- register records a session in the fleet, with a full lease and not active. It
-- ends the client's former session there, stops the session of another client
-- that holds the advertise URL, displaces those of lower worker epochs and
-- drains those of another env. Run twice, it answers twice the same.
--
-- KEYS  session, client, messages, url, live, namespaces, floor, layout
-- ARGV  base, sid, clientId, digest of the secret, lease ms, memory ms,
--       headroom, draining, namespaces (one a line), record (JSON), url digest,
--       how many former sessions to remember, classes, deadline of a takeover
--       in ms or 0, for how long to remember displaced sessions (ms), the most
--       sessions to displace and to drain, the text of the event that it has lapsed,
--       layout
-- Answer: an error as apart tells it
--         {'secret'}    the client is live with another secret
--         {'lower' or 'env', …} as conflict tells it
--         {'overtaken'} this session has been replaced already
--         {'ok', generation, lineage, draining, deadline left ms or -1,
--          sids of the client and secret (by spaces), namespaces in which
--          sessions of the client may be recorded (by lines), the epoch above
--          which buckets begin, and of each session that gives way: sid,
--          version, 'displaced', 'stopped' or 'drained', namespaces (by lines)}
--         {'more', and the same of sessions that give way} to be asked again:
--          there are more of them, and nothing else was done

local session, client, messages, url, live, namespaces = unpack(KEYS)
local wrong = apart(KEYS[8], ARGV[18])
if wrong then
  return wrong
end
local base, sid, clientId, secret, lease, memory = unpack(ARGV, 1, 6)
lease, memory = tonumber(lease), tonumber(memory)
local now = micros()
local c = call('HMGET', client, 'sid', 'secret', 'gen', 'lineage', 'sids', 'spaces', 'drain')
local classes, takeover = ARGV[13], tonumber(ARGV[14])

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

-- others appends to an answer what became of sessions.
local function others(a, sids)
  for one in string.gmatch(sids, '%S+') do
    local s = call('HMGET', base .. 's:' .. one, 'ver', 'namespaces', 'stopped')
    if s[1] then
      local why = s[3] == '0' and 'drained' or call('EXISTS', base .. 'x:' .. one) == 1 and 'displaced' or 'stopped'
      for _, v in ipairs({one, tonumber(s[1]), why, s[2]}) do
        a[#a + 1] = v
      end
    end
  end
  return a
end

local function answer()
  local known = call('HMGET', client, 'gen', 'lineage', 'sids', 'spaces')
  local draining, due = drain(client, now)
  local a = {'ok', tonumber(known[1]), tonumber(known[2]), draining, due, known[3], known[4],
    tonumber(call('GET', KEYS[7]) or 0)}
  return others(a, call('HGET', session, 'gaveway'))
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

local competes = c[7] ~= '1'
local refusal = conflict(base, classes, c[1], competes and takeover == 0, now)
if refusal then
  return refusal
end

-- displace stops a session in all its bindings. It stays a member of its
-- classes, behind an x, for it is live until its lease ends.
local function displace(one)
  local record, moved = base .. 's:' .. one, {}
  each(call('HGET', record, 'classes'), function(binding, class)
    moved[#moved + 1] = binding .. ' x' .. class
  end)
  moved = table.concat(moved, '\n')
  local lives = left(record)
  delist(base, call('HGET', record, 'classes'), one)
  enlist(base, moved, one, math.floor(now / 1000) + lives, lives + memory)
  call('HSET', record, 'stopped', 1, 'classes', moved)
  revise(record, now)
  local epoch = rank(string.match(classes, ' (%S+)'))
  call('SET', base .. 'x:' .. one, epoch .. ' ' .. clientId, 'PX', lives + ARGV[15])
  return true
end

-- windDown drains the client of a session, unless it is drained already, and no
-- longer than that.
local function windDown(one)
  local record = base .. 's:' .. one
  local theirs = base .. 'c:' .. call('HGET', record, 'client')
  local draining, due = drain(theirs, now)
  if draining == 1 and due >= 0 and due <= takeover then
    return false
  end
  call('HSET', theirs, 'drain', 1, 'deadline', math.floor(now / 1000) + takeover)
  revise(record, now)
  return true
end

-- What gives way does so before the session is there: whoever dies in between
-- has not let two of them serve.
local gaveway, most = {}, tonumber(ARGV[16])
local more = false
each(classes, function(binding, class)
  local epoch, env = rank(class)
  for _, other in ipairs(call('SMEMBERS', base .. 'g:' .. binding)) do
    local theirs, their, displaced = rank(other)
    local what
    if not displaced and above(epoch, theirs) then
      what = displace
    elseif not displaced and theirs == epoch and their ~= env and competes then
      what = windDown
    end
    for _, one in ipairs(what and call('ZRANGE', members(base, binding, other), 0, -1) or {}) do
      if one ~= c[1] and call('EXISTS', base .. 's:' .. one) == 1 then
        if #gaveway == most then
          more = true
          return
        end
        if what(one) then
          gaveway[#gaveway + 1] = one
        end
      end
    end
  end
end)
if more then
  return others({'more'}, table.concat(gaveway, ' '))
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
  delist(base, call('HGET', base .. 's:' .. c[1], 'classes') or '', c[1])
  call('DEL', base .. 's:' .. c[1])
  unlisted(base, live, c[1])
end

-- The client's own former session is gone by now: the holder is another's.
local holder = call('GET', url)
if holder and call('EXISTS', base .. 's:' .. holder) == 1 then
  gaveway[#gaveway + 1] = holder
  call('HSET', base .. 's:' .. holder, 'stopped', 1)
  revise(base .. 's:' .. holder, now)
end

local own = lines(ARGV[9])
call('HSET', session, 'client', clientId, 'namespaces', ARGV[9], 'record', ARGV[10], 'url', ARGV[11],
  'classes', classes, 'gaveway', table.concat(gaveway, ' '),
  'headroom', ARGV[7], 'draining', ARGV[8], 'active', 0, 'degraded', 0, 'stopped', 0, 'ver', now, 'lease', lease,
  'at', math.floor(now / 1000))
call('PEXPIRE', session, lease)
call('SET', url, sid, 'PX', lease)
call('ZADD', live, math.floor(now / 1000) + lease, sid)
call('HSET', base .. 'lapses', sid, ARGV[17])
call('HSET', client, 'sid', sid, 'secret', secret, 'gen', rise(c[3], now), 'lineage', lineage, 'sids', sids,
  'namespaces', ARGV[9], 'spaces', table.concat(lines(c[6] or '', ARGV[9]), '\n'))
enlist(base, classes, sid, math.floor(now / 1000) + lease, lease + memory)
hold(client, lease + memory)
if call('EXISTS', messages) == 1 then
  hold(messages, lease + memory)
end
if #own > 0 then
  call('SADD', namespaces, unpack(own))
end
return answer()
