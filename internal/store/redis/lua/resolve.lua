-- resolve returns the live owner of an id, or places the id. It runs for every
-- request that no node knows the answer to: each command here costs as much as
-- all the rest of its line.
--
-- KEYS  meta, candidates, rows of the id's leaf
-- ARGV  base, id, leaf, preferred sid or '', view, balance factor, three dice,
--       quarantine ms, host name that goes before or '', and, if a placement
--       was refused: sid, clientId, epoch
-- Answer: {outcome, …} by the numbers of store.Outcome:
--         {owned, sid, epoch, left of the lease ms, stopped}
--         {placed, sid, epoch, left of the lease ms, 0}
--         {quarantined, left of the quarantine ms}
--         {unknown, left of one lease since the last session ended ms}
--         {outcome} for the others
--         {0} to be asked again: many lapsed sessions were in the way and have
--         been cleared

local owned, placed, unknown, quarantined, none, stale, elsewhere, again = 1, 2, 3, 4, 5, 6, 7, 0

local meta, candidates, rows = KEYS[1], KEYS[2], KEYS[3]
local base, id, preferred, view = ARGV[1], ARGV[2], ARGV[4], ARGV[5]

if ARGV[11] ~= '' then
  local ends = call('ZSCORE', base .. 'hosts', ARGV[11])
  if ends and ends * 1000 > micros() then
    return {elsewhere}
  end
end

local row = call('HGET', rows, id)
local refused
if row then
  local epoch, sid = parse(row)
  local s = call('HMGET', base .. 's:' .. sid, 'client', 'stopped')
  if s[1] then
    if ARGV[12] ~= sid or tonumber(ARGV[14]) ~= epoch then
      return {owned, sid, epoch, left(base .. 's:' .. sid), tonumber(s[2])}
    end
    refused = sid
  end
end

local now = micros()
local m = call('HMGET', meta, 'quarantine', 'quarantined', 'epoch', 'version')
local quarantine, budget = tonumber(ARGV[10]), 32

-- free gives up the refused placement, where none takes its place.
local function free()
  if refused then
    take(base, rows, ARGV[3], id)
    call('HINCRBY', base .. 's:' .. refused, 'rows', -1)
  end
end

-- vacant returns the answer where no session is live, and nil where one is. They
-- are sorted by the end of their leases: if the last of them is gone, it has
-- lapsed, and the others before it. One is live, or none is.
local function vacant()
  local sessions = base .. 'sessions'
  while true do
    local top = call('ZREVRANGE', sessions, 0, 0, 'WITHSCORES')
    local last = top[1]
    if not last then
      local vacated = call('HGET', meta, 'vacated')
      return {unknown, vacated and math.max(0, math.min(quarantine, vacated + quarantine - micros() / 1000)) or 0}
    end
    if call('EXISTS', base .. 's:' .. last) == 1 then
      return nil
    end
    if budget <= 0 then
      return {again}
    end
    budget = budget - 1
    vacate(meta, tonumber(top[2]))
    call('ZREM', sessions, last)
    unlist(meta, candidates, last)
    dirty(meta)
  end
end

if m[1] ~= '0' then
  local answer = vacant()
  if answer then
    return answer
  end
  -- A clock that was set back must not prolong it: then it begins anew.
  local ms = math.floor(now / 1000)
  local lasts = tonumber(m[2]) or quarantine
  local runs = m[1] and m[1] - ms
  if not runs or runs > lasts then
    runs = lasts
    call('HSET', meta, 'quarantine', ms + lasts, 'quarantined', lasts)
  end
  if runs > 0 then
    free()
    return {quarantined, runs}
  end
end

-- The client whose refusal this is gets nothing.
local excluded
if ARGV[13] then
  excluded = string.match(call('HGET', base .. 'clients', ARGV[13]) or '', '^%d+ %d+ (%S+)')
end

-- outdated says that the candidates are not those that the preference was chosen
-- from: others, or lapsed ones were met.
local outdated = view ~= '-1' and view ~= (m[4] or '0')
local function clear(sid)
  budget = budget - 1
  if unlist(meta, candidates, sid) then
    outdated = outdated or view ~= '-1'
  end
end

-- record reads of a session whether it takes placements, the headroom that it
-- reported, the placements since, and its rows.
local function record(sid)
  return call('HMGET', base .. 's:' .. sid, 'takes', 'headroom', 'taken', 'rows')
end

-- favour returns the preferred session's record if it gets the placement. Where
-- the best candidate forbids that, it must be live.
local function favour()
  local s = record(preferred)
  if not s[1] then
    clear(preferred)
    preferred = ''
    return nil
  end
  if s[1] ~= '1' then
    return nil
  end
  local enough = math.max(0, s[2] - s[3]) * tonumber(ARGV[6])
  local at = 0
  while true do
    local best = call('ZREVRANGE', candidates, at, at, 'WITHSCORES')
    if best[1] and best[1] == excluded then
      at = 1
    elseif not best[1] or enough >= tonumber(best[2]) then
      return s
    elseif call('EXISTS', base .. 's:' .. best[1]) == 1 then
      return nil
    else
      clear(best[1])
      if outdated or budget <= 0 then
        return nil
      end
    end
  end
end

-- choose returns the sid that gets the placement and its record; or nil, and the
-- outcome. It decides as store.Choose.
local function choose()
  if preferred ~= '' and preferred ~= excluded and not outdated then
    local s = favour()
    if s then
      return preferred, s
    end
  end
  local n = call('ZCARD', candidates)
  local out = excluded and call('ZRANK', candidates, excluded) or nil
  if out then
    n = n - 1
  end
  if n == 0 then
    return nil, none
  elseif outdated then
    return nil, stale
  elseif budget <= 0 then
    return nil, again
  end
  -- at returns who is at a rank among the n, lowest headroom first.
  local function at(rank)
    if out and rank >= out then
      rank = rank + 1
    end
    local c = call('ZRANGE', candidates, rank, rank, 'WITHSCORES')
    return c[1], tonumber(c[2])
  end
  local one, a, other, b
  if n == 1 then
    one = at(0)
  else
    local i, j = ARGV[7] % n, ARGV[8] % (n - 1)
    if j >= i then
      j = j + 1
    end
    one, a = at(i)
    other, b = at(j)
    if a < b or a == b and ARGV[9] % 2 == 1 then
      one, other = other, one
    end
    if call('EXISTS', base .. 's:' .. other) == 0 then
      clear(other)
      return choose()
    end
  end
  local s = record(one)
  if not s[1] then
    clear(one)
    return choose()
  end
  return one, s
end

local sid, s = choose()
if not sid then
  if s == again then
    return {again}
  end
  local answer = vacant()
  if not answer and s == none then
    free()
  end
  return answer or {s}
end

local epoch = rise(m[3], now)
local text, taken = int(epoch), s[3] + 1
if m[1] == '0' then
  call('HSET', meta, 'epoch', text)
else
  call('HSET', meta, 'epoch', text, 'quarantine', 0)
end
if refused then
  call('HINCRBY', base .. 's:' .. refused, 'rows', -1)
end
put(base, rows, ARGV[3], id, text, sid)
call('ZADD', candidates, math.max(0, s[2] - taken), sid)
call('HSET', base .. 's:' .. sid, 'taken', taken, 'rows', s[4] + 1)
return {placed, sid, epoch, left(base .. 's:' .. sid), 0}
