-- join records a session in a bucket, with a full lease and not a candidate.
-- The client's earlier sessions are no candidates any more; they keep their
-- rows. A client's entry in clients is its newest generation, when it came (ms),
-- and the sids that may be recorded here, the newest first.
--
-- KEYS  meta, sessions, candidates, clients, session
-- ARGV  base, sid, clientId, generation, lineage, lease ms, headroom, the epoch
--       above which a bucket begins, layout
-- Answer: an error if sessions of another layout live here; else 1, or 0 if a later generation of the client has been here, or this
-- session was and is gone.

local meta, sessions, candidates, clients, session = unpack(KEYS)
local base, sid, client, gen, lineage, lease, headroom, floor, layout = unpack(ARGV)
local kept = call('HGET', meta, 'layout')
if kept and kept ~= layout then
  for _, other in ipairs(call('ZRANGE', sessions, 0, -1)) do
    if call('EXISTS', base .. 's:' .. other) == 1 then
      return {err = 'LAYOUT ' .. kept .. ' ' .. layout}
    end
  end
end
if call('EXISTS', session) == 1 then
  return 1
end
local ms = math.floor(micros() / 1000)
local entry = call('HGET', clients, client)
local sids = sid
if entry then
  local newest, former = string.match(entry, '^(%d+) %d+(.*)$')
  if tonumber(newest) >= tonumber(gen) then
    return 0
  end
  for earlier in string.gmatch(former, '%S+') do
    local record = base .. 's:' .. earlier
    local s = call('HMGET', record, 'headroom', 'taken')
    if s[1] then
      sids = sids .. ' ' .. earlier
      call('HSET', record, 'takes', 0, 'ver', frozen, 'taken', taken(candidates, earlier, s[1], s[2]))
      unlist(meta, candidates, earlier)
    end
  end
end
if floor ~= '0' then
  call('HSETNX', meta, 'epoch', floor)
end
if kept ~= layout then
  call('HSET', meta, 'layout', layout)
end
-- What placements read comes first: a packed hash is searched from its beginning.
call('HSET', session, 'takes', 0, 'headroom', headroom, 'taken', 0, 'lease', lease,
  'client', client, 'lineage', lineage, 'ver', 0, 'stopped', 0, 'rows', 0)
call('PEXPIRE', session, lease)
call('ZADD', sessions, ms + lease, sid)
call('HSET', clients, client, gen .. ' ' .. int(ms) .. ' ' .. sids)
if call('EXISTS', base .. 'generation') == 0 then
  turn(base)
end
return 1
