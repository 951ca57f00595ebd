-- sweep removes a bounded number of what dead sessions left in a bucket: rows,
-- entries of sessions that lapsed, and clients' entries without a session. Rows
-- are looked for only after a session has ended that may have left some, in
-- passes over all leaves, which take many calls.
--
-- KEYS  meta, sessions, candidates, clients, leaves, none
-- ARGV  base, how much to look at (rows, and two for each hash of them), the
--       most lapsed sessions to look at, how long clients' entries are kept (ms)
-- Answer: {removed rows, how much was looked at, 1 if more is left, the last epoch if
-- nothing but the memory of the bucket is left, else -1}

local meta, sessions, candidates, clients, leaves = unpack(KEYS)
local base, most, lapsed, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ms = math.floor(micros() / 1000)

local due = expire(base, meta, sessions, candidates, lapsed)
local m = call('HMGET', meta, 'dirty', 'pass', 'leaf', 'scan')

-- A client's entry keeps late registrations out, for some time.
local scan = call('HSCAN', clients, m[4] or '0', 'COUNT', 20)
if scan[1] == '0' then
  call('HDEL', meta, 'scan')
else
  call('HSET', meta, 'scan', scan[1])
end
for i = 1, #scan[2], 2 do
  local since, sids = string.match(scan[2][i + 1], '^%d+ (%d+)(.*)$')
  local live = false
  for sid in string.gmatch(sids, '%S+') do
    live = live or call('EXISTS', base .. 's:' .. sid) == 1
  end
  if not live and ms - since > keep then
    call('HDEL', clients, scan[2][i])
  end
end

if not m[1] then
  return {0, 0, due == lapsed and 1 or 0, memory(meta, sessions, clients, leaves)}
end

-- pass is what dirty was when the pass began: sessions that ended later may
-- have left rows in leaves that it had been through.
local pass, leaf = m[2], tonumber(m[3] or 0)
if not pass then
  pass, leaf = m[1], 0
  call('HSET', meta, 'pass', pass)
end
local live = {}
local removed, seen = 0, 0
local following = occupied(leaves, leaf)
leaf = following()
while leaf >= 0 and seen < most do
  local key = base .. 'r:' .. int(leaf)
  local rows = call('HGETALL', key)
  local dead = {}
  for i = 1, #rows, 2 do
    local _, sid = parse(rows[i + 1])
    if live[sid] == nil then
      live[sid] = call('EXISTS', base .. 's:' .. sid) == 1
    end
    if not live[sid] then
      dead[#dead + 1] = rows[i]
    end
  end
  if 2 * #dead == #rows then
    call('DEL', key)
    mark(base, leaf, 0)
  else
    for i = 1, #dead, 100 do
      call('HDEL', key, unpack(dead, i, math.min(i + 99, #dead)))
    end
  end
  removed = removed + #dead
  seen = seen + #rows / 2 + 2 -- the hash itself costs about as much
  leaf = following()
end
if leaf >= 0 then
  call('HSET', meta, 'leaf', leaf)
  return {removed, seen, 1, -1}
end
call('HDEL', meta, 'pass', 'leaf')
if m[1] == pass then
  call('HDEL', meta, 'dirty')
  return {removed, seen, due == lapsed and 1 or 0, -1}
end
return {removed, seen, 1, -1}
