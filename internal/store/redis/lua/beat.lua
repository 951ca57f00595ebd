-- beat takes in a heartbeat: it renews the session in the fleet, with what
-- belongs to it, records what the worker reports, and drops acked messages.
--
-- KEYS  session, live, layout
-- ARGV  base, sid, lease ms, memory ms, headroom, draining, layout, acks…
-- Answer: an error as apart tells it,
--         {} if the session is not there or is stopped,
--         {-1, epoch and clientId of who displaced it, version, namespaces} if
--         it was displaced, the last two 0 and '' where it has lapsed, else
--         {left of the lease ms, version, takes placements, clientId,
--          namespaces (by lines), degraded, draining, deadline left ms or -1,
--          and of each message: place, number, epoch, left ms or -1}

local session, live, layout = unpack(KEYS)
local wrong = apart(layout, ARGV[7])
if wrong then
  return wrong
end
local base, sid, lease, memory = unpack(ARGV, 1, 4)
lease, memory = tonumber(lease), tonumber(memory)
local s = call('HMGET', session, 'client', 'stopped', 'degraded', 'url', 'namespaces', 'classes', 'ver')
if not s[1] or s[2] == '1' then
  local epoch, by = string.match(call('GET', base .. 'x:' .. sid) or '', '^(%d+) (.*)$')
  return epoch and {-1, epoch, by, tonumber(s[7] or 0), s[5] or ''} or {}
end
local now = micros()
local ms = math.floor(now / 1000)
local client, messages, url = base .. 'c:' .. s[1], base .. 'w:' .. s[1], base .. 'u:' .. s[4]

local ver = rise(s[7], now)
call('HSET', session, 'active', 1, 'headroom', ARGV[5], 'draining', ARGV[6], 'ver', ver)
local lives = renew(session, lease)
keep(layout, ARGV[7], lives)
call('ZADD', live, ms + lives, sid)
enlist(base, s[6], sid, ms + lives, lives + memory)
hold(client, lives + memory)
-- Nobody else holds the URL, for then the session would be stopped.
call('SET', url, sid, 'PX', lives)

local draining, deadline = drain(client, now)
local a = {lives, ver, takes(session, client), s[1], s[5], tonumber(s[3]), draining, deadline}
if call('EXISTS', messages) == 0 then
  return a
end
hold(messages, lives + memory)
local acked = {}
for i = 8, #ARGV do
  acked[ARGV[i]] = true
end
local waiting = call('HGETALL', messages)
for i = 1, #waiting, 2 do
  local number, epoch, due = string.match(waiting[i + 1], '^(%d+) (%d+) (%S+)$')
  if acked[number] then
    call('HDEL', messages, waiting[i])
  else
    a[#a + 1] = waiting[i]
    a[#a + 1] = number
    a[#a + 1] = tonumber(epoch)
    a[#a + 1] = due == '-' and -1 or math.max(0, due - ms)
  end
end
return a
