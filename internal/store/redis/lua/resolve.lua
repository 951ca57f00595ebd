-- resolve returns the live owner of an id, or places the id. It runs for every
-- request that no node knows the answer to, and so it does without the
-- libraries: what they define is made anew at each run, which costs as much as
-- the commands here do.
--
-- KEYS  meta, candidates, rows of the id's leaf
-- ARGV  base, id, preferred sid or '', view, balance factor, the highest time in us
--       that the clock can have reached or 0 or, if it was found set forward, -1, leaf,
--       "QUARANTINE DICE DICE DICE CHOICE" (the quarantine in ms; the letter of why
--       the preferred one is preferred), and, if they
--       apply: host name that goes before or '', and the placement that was
--       refused: sid, clientId, epoch
-- Answer: {outcome, …} by the numbers of store.Outcome:
--         {owned, sid, epoch, left of the lease ms, stopped}
--         {placed, sid, epoch, left of the lease ms, 0, time us, letter of why, sid
--         of the owner before or ''}
--         {quarantined, left of the quarantine ms, time us, 1 if it has just begun}
--         {stepped, time us} nothing was done: the clock was set forward, or the
--         script has come late
--         {unknown, left of one lease since the last session ended ms}
--         {outcome} for the others
--         {0, sid} to be asked again once lapsed.lua has cleared that session,
--         which is in the way

local owned, placed, unknown, quarantined, none, stale, elsewhere, stepped, again = 1, 2, 3, 4, 5, 6, 7, 8, 0

local call = redis.call
local meta, candidates, rows = KEYS[1], KEYS[2], KEYS[3]
local base, id, preferred, view = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local record = base .. 's:'

-- A session that is there lives for what PTTL says, or for its lease, if that is
-- less: it lives longer only if the clock was set back, and is then cut down to it.

local before = ARGV[9]
if before and before ~= '' then
  local ends = call('ZSCORE', base .. 'hosts', before)
  if ends then
    local t = call('TIME')
    if ends * 1000 > t[1] * 1000000 + t[2] then
      return {elsewhere}
    end
  end
end

local row = call('HGET', rows, id)
local refused, former
if row then
  local epoch, sid = string.match(row, '^(%d+)%a? (.+)$')
  former = sid
  local session = record .. sid
  local s = call('HMGET', session, 'client', 'stopped', 'lease')
  if s[1] then
    if ARGV[10] ~= sid or ARGV[12] ~= epoch then
      local left = call('PTTL', session)
      if s[3] and left > s[3] + 0 then
        left = s[3] + 0
        call('PEXPIRE', session, s[3])
      end
      return {owned, sid, tonumber(epoch), math.max(1, left), tonumber(s[2])}
    end
    refused = sid
  end
end

local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local m = call('HMGET', meta, 'epoch', 'quarantine', 'version', 'best')
local current = view == '-1' or view == (m[3] or '0')

-- The choice is store.Choose's. It ends with a sid and, of its record, whether it
-- takes placements, the headroom that it reported, and the placements since.
local sid, s
local why, fresh = 't', false
if preferred ~= '' then
  s = call('HMGET', record .. preferred, 'takes', 'headroom', 'taken', 'lease')
  -- Mostly nothing is in the way, and none has more than the preferred one has to
  -- have at least: best is no less than any headroom here, though it may be out of date.
  if s[1] == '1' and m[2] == '0' and m[4] and current and now <= ARGV[6] + 0 and not ARGV[10]
    and math.max(0, s[2] - s[3]) * ARGV[5] >= m[4] + 0 then
    sid, why = preferred, string.sub(ARGV[8], -1)
  end
end

if not sid then
  local set = ARGV[6] == '-1'
  if not set and ARGV[6] ~= '0' and now > tonumber(ARGV[6]) then
    return {stepped, now}
  end
  fresh = m[2] ~= '0' or set
  local quarantine, first, second, third = string.match(ARGV[8], '^(%d+) (%d+) (%d+) (%d+)')

  -- unplaced answers where the id gets no owner; so a placement that was refused is
  -- given up, too. That there is no session at all comes before everything else.
  -- They are sorted by the end of their leases: if the last of them is gone, it has
  -- lapsed, and the others before it.
  local function unplaced(answer)
    quarantine = tonumber(quarantine)
    local last = call('ZREVRANGE', base .. 'sessions', 0, 0)[1]
    if not last then
      local vacated = call('HGET', meta, 'vacated')
      return {unknown, vacated and math.max(0, math.min(quarantine, vacated + quarantine - now / 1000)) or 0}
    elseif call('EXISTS', record .. last) == 0 then
      return {again, last}
    end
    if answer == quarantined then
      -- A clock that was set back must not prolong it: then it begins anew.
      local ms = math.floor(now / 1000)
      local lasts = not set and tonumber(call('HGET', meta, 'quarantined')) or quarantine
      local runs, begun = not set and m[2] and m[2] - ms, 0
      if not runs or runs > lasts then
        runs, begun = lasts, 1
        call('HSET', meta, 'quarantine', ms + lasts, 'quarantined', lasts)
      end
      if runs <= 0 then
        return nil
      end
      answer = {quarantined, runs, now, begun}
    else
      answer = {answer}
    end
    if refused and answer[1] ~= stale then
      call('HDEL', rows, id)
      if call('EXISTS', rows) == 0 then
        call('SETBIT', base .. 'leaves', ARGV[7], 0)
      end
      call('HINCRBY', record .. refused, 'rows', -1)
    end
    return answer
  end

  -- Nothing has been placed here yet, or leases have ended early, so that owners may
  -- live on who are forgotten.
  if fresh then
    local answer = unplaced(quarantined)
    if answer then
      return answer
    end
  end

  -- The client whose refusal this is gets nothing.
  local excluded
  if ARGV[11] then
    excluded = string.match(call('HGET', base .. 'clients', ARGV[11]) or '', '^%d+ %d+ (%S+)')
  end

  if preferred ~= '' and preferred ~= excluded and current then
    if s[1] == '1' then
      -- To see whether any has more is cheaper than to read how much the best has.
      local enough = string.format('(%.17g', math.max(0, s[2] - s[3]) * ARGV[5])
      local more = call('ZCOUNT', candidates, enough, '+inf')
      if more > 0 and excluded then
        local headroom = call('ZSCORE', candidates, excluded)
        if headroom and tonumber(headroom) > tonumber(string.sub(enough, 2)) then
          more = more - 1
        end
      end
      if more == 0 then
        sid, why = preferred, string.sub(ARGV[8], -1)
        -- So best is out of date, or of no use in this case.
        call('HSET', meta, 'best', call('ZREVRANGE', candidates, 0, 0, 'WITHSCORES')[2] or 0)
      else
        -- The best must be live to go before.
        local best = call('ZREVRANGE', candidates, 0, 1)
        best = best[1] == excluded and best[2] or best[1]
        if call('EXISTS', record .. best) == 0 then
          return {again, best}
        end
      end
    elseif not s[1] and call('ZSCORE', candidates, preferred) then
      return {again, preferred}
    end
  end
  if not sid then
    local n = call('ZCARD', candidates)
    local out = excluded and call('ZRANK', candidates, excluded) or nil
    if out then
      n = n - 1
    end
    if n == 0 then
      return unplaced(none)
    elseif not current then
      return unplaced(stale)
    end
    -- at returns who is at a rank among the n, lowest headroom first.
    local function at(rank)
      if out and rank >= out then
        rank = rank + 1
      end
      local c = call('ZRANGE', candidates, rank, rank, 'WITHSCORES')
      return c[1], tonumber(c[2])
    end
    if n == 1 then
      sid = at(0)
    else
      local i, j = first % n, second % (n - 1)
      if j >= i then
        j = j + 1
      end
      local one, a = at(i)
      local other, b = at(j)
      if a < b or a == b and third % 2 == 1 then
        one, other = other, one
      end
      if call('EXISTS', record .. other) == 0 then
        return {again, other}
      end
      sid = one
    end
    s = call('HMGET', record .. sid, 'takes', 'headroom', 'taken', 'lease')
    if not s[1] then
      return {again, sid}
    end
  end
end

local epoch = (m[1] or 0) + 1
local text
if epoch <= now and #t[2] == 6 then
  epoch, text = now, t[1] .. t[2] -- cheaper than to format it
else
  epoch = math.max(epoch, now)
  text = string.format('%.0f', epoch)
end
if fresh then
  call('HSET', meta, 'epoch', text, 'quarantine', 0)
else
  call('HSET', meta, 'epoch', text)
end
-- See store.Why.
if refused then
  call('HINCRBY', record .. refused, 'rows', -1)
  why = string.char(string.byte(why) + 1)
elseif former then
  why = string.upper(why)
end
if call('HSET', rows, id, text .. why .. ' ' .. sid) == 1 and call('HLEN', rows) == 1 then
  call('SETBIT', base .. 'leaves', ARGV[7], 1)
end
call('ZADD', candidates, math.max(0, s[2] - s[3] - 1), sid)
local session = record .. sid
call('HINCRBY', session, 'taken', 1)
local left = call('PTTL', session)
if s[4] and left > s[4] + 0 then
  left = s[4] + 0
  call('PEXPIRE', session, s[4])
end
return {placed, sid, epoch, math.max(1, left), 0, now, why, former or ''}
