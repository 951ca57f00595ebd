-- resolve returns the live owner of an id, or places the id.
--
-- KEYS  meta, sessions, candidates, clients, leaves, rows of the id's leaf, hosts
-- ARGV  base, id, leaf, preferred sid or '', view, balance factor, three dice,
--       quarantine ms, host name that goes before or '', the highest time in
--       us that the clock can have reached or 0, 1 if it was found stepped, and,
--       if a placement was refused: sid, clientId, epoch
-- Answer: {outcome, …} by the numbers of store.Outcome:
--         {owned, sid, epoch, left of the lease ms, stopped}
--         {placed, sid, epoch, left of the lease ms, 0, time us}
--         {quarantined, left of the quarantine ms, time us}
--         {stepped, time us} nothing was done: the clock was set forward, or the
--         script has come late
--         {unknown, left of one lease since the last session ended ms}
--         {outcome} for the others
--         {0} to be asked again: many lapsed sessions were in the way and have
--         been cleared

local owned, placed, unknown, quarantined, none, stale, elsewhere, stepped, again = 1, 2, 3, 4, 5, 6, 7, 8, 0

local meta, sessions, candidates, clients, leaves, rows, hosts = unpack(KEYS)
local base, id, leaf, preferred, view = unpack(ARGV, 1, 5)
local factor, quarantine = tonumber(ARGV[6]), tonumber(ARGV[10])
local budget = 32

if ARGV[11] ~= '' then
  local ends = call('ZSCORE', hosts, ARGV[11])
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
    if ARGV[14] ~= sid or tonumber(ARGV[16]) ~= epoch then
      return {owned, sid, epoch, left(base .. 's:' .. sid), tonumber(s[2])}
    end
    refused = sid
  end
end

-- free gives up the refused placement, where none takes its place.
local function free()
  if refused then
    take(leaves, rows, leaf, id)
    call('HINCRBY', base .. 's:' .. refused, 'rows', -1)
  end
end

-- The sessions are sorted by the end of their leases: if the last of them is
-- gone, it has lapsed, and the others before it. One is live, or none is.
while true do
  local top = call('ZREVRANGE', sessions, 0, 0, 'WITHSCORES')
  local last = top[1]
  if not last then
    local vacated = call('HGET', meta, 'vacated')
    return {unknown, vacated and math.max(0, math.min(quarantine, vacated + quarantine - micros() / 1000)) or 0}
  end
  if call('EXISTS', base .. 's:' .. last) == 1 then
    break
  end
  if budget == 0 then
    return {again}
  end
  budget = budget - 1
  vacate(meta, tonumber(top[2]))
  call('ZREM', sessions, last)
  unlist(meta, candidates, last)
  dirty(meta)
end

local now = micros()
local ms = math.floor(now / 1000)
if ARGV[13] == '1' then
  -- Leases have ended early, so owners may live on who are forgotten.
  call('HSET', meta, 'quarantine', ms + quarantine, 'quarantined', quarantine)
elseif ARGV[12] ~= '0' and now > tonumber(ARGV[12]) then
  return {stepped, now}
end
local m = call('HMGET', meta, 'quarantine', 'quarantined', 'epoch')
if m[1] ~= '0' then
  -- A clock that was set back must not prolong it: then it begins anew.
  local lasts = tonumber(m[2]) or quarantine
  local runs = m[1] and m[1] - ms
  if not runs or runs > lasts then
    runs = lasts
    call('HSET', meta, 'quarantine', ms + lasts, 'quarantined', lasts)
  end
  if runs > 0 then
    free()
    return {quarantined, runs, now}
  end
end

-- at returns the session at a rank among the candidates, lowest headroom first,
-- which leaves out the client whose refusal this is.
local out
local function at(rank)
  if out and rank >= out then
    rank = rank + 1
  end
  local c = call('ZRANGE', candidates, rank, rank, 'WITHSCORES')
  return c[1], tonumber(c[2])
end

-- choose returns the sid that gets the placement and its headroom, or the
-- outcome and the lapsed session that it came upon. It decides as store.Choose.
local function choose()
  local n = call('ZCARD', candidates)
  out = nil
  local client = ARGV[15] and call('HGET', clients, ARGV[15])
  local excluded = client and string.match(client, '^%d+ %d+ (%S+)')
  if excluded then
    out = call('ZRANK', candidates, excluded) or nil
  end
  if out then
    n = n - 1
  end
  if n == 0 then
    return none
  end
  if view ~= '-1' and view ~= (call('HGET', meta, 'version') or '0') then
    return stale
  end
  if preferred ~= '' and preferred ~= excluded then
    local headroom = tonumber(call('ZSCORE', candidates, preferred) or nil)
    if headroom then
      local best, most = at(n - 1)
      if call('EXISTS', base .. 's:' .. best) == 0 then
        return again, best
      end
      if headroom * factor >= most then
        return placed, preferred, headroom
      end
    end
  end
  if n == 1 then
    return placed, at(0)
  end
  local i, j = ARGV[7] % n, ARGV[8] % (n - 1)
  if j >= i then
    j = j + 1
  end
  local one, a = at(i)
  local other, b = at(j)
  for _, sid in ipairs({one, other}) do
    if call('EXISTS', base .. 's:' .. sid) == 0 then
      return again, sid
    end
  end
  if a > b or a == b and ARGV[9] % 2 == 0 then
    return placed, one, a
  end
  return placed, other, b
end

while true do
  local outcome, sid, headroom = choose()
  local s
  if outcome == placed then
    s = call('HMGET', base .. 's:' .. sid, 'taken', 'rows')
    if not s[1] then
      outcome = again
    end
  end
  if outcome == stale then
    return {stale}
  elseif outcome == none then
    free()
    return {none}
  elseif outcome == placed then
    local epoch = rise(m[3], now)
    headroom = math.max(0, headroom - 1)
    call('HSET', meta, 'epoch', epoch)
    if m[1] ~= '0' then
      call('HSET', meta, 'quarantine', 0)
    end
    if refused then
      call('HINCRBY', base .. 's:' .. refused, 'rows', -1)
    end
    put(leaves, rows, leaf, id, epoch, sid)
    call('ZADD', candidates, headroom, sid)
    call('HSET', base .. 's:' .. sid, 'headroom', headroom, 'taken', s[1] + 1, 'rows', s[2] + 1)
    return {placed, sid, epoch, left(base .. 's:' .. sid), 0, now}
  end
  if budget == 0 then
    return {again}
  end
  budget = budget - 1
  unlist(meta, candidates, sid)
end
