-- resolve returns the live owners of ids of one bucket, or places the ids, one after
-- the other: what it answers for each is what a run for each alone would, in this
-- order. It runs for every request that no node knows the answer to, and so it does
-- without the libraries: what they define is made anew at each run, which costs as
-- much as the commands here do.
--
-- KEYS  meta, candidates, none
-- ARGV  base, view, balance factor, the highest time in us that the clock can have
--       reached or 0 or, if it was found set forward, -1, the quarantine in ms, layout;
--       of each id: id, its leaf, preferred sid or '', "DICE DICE DICE CHOICE" (the
--       letter of why the preferred one is preferred);
--       and, if they apply: host name that goes before or '', and, of one id alone,
--       the placement that was refused: "EPOCH SID", clientId
-- Answer: of each id, or of those before one that fails, {outcome, …} by the numbers of
-- store.Outcome:
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
local meta, candidates = KEYS[1], KEYS[2]
local base, view, factor, limit = ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4] + 0
local n = math.floor((#ARGV - 6) / 4)
local before, refusal = ARGV[4 * n + 7], ARGV[4 * n + 8]
local record = base .. 's:'

-- What ids have in common is read once: the time and, until something of it may
-- have changed, what the bucket says (m).
local t, now, m, current, changed

-- Of each worker that may get ids: its score as it is by now, false if it is no
-- candidate, and what its lease has left, false if it is gone. What the ids lowered
-- goes to candidates when all have their rows, or when workers have to be compared.
-- Placements that no score tells are counted in records; see lib_bucket.lua.
local scores, leases, lowered, untold, countless = {}, {}, {}, {}, 2 ^ 52
local function settle()
  local words, k = {}, 0
  for sid, score in pairs(lowered) do
    words[k + 1], words[k + 2] = score, sid
    k = k + 2
    scores[sid] = score
  end
  if k > 0 then
    call('ZADD', candidates, unpack(words))
  end
  for sid, more in pairs(untold) do
    call('HINCRBY', record .. sid, 'taken', more)
  end
  lowered, untold = {}, {}
end

-- look reads the scores of those whom ids from one on prefer.
local function look(from)
  local sids, k = {}, 0
  for i = from + 2, 4 * n + 5, 4 do
    local sid = ARGV[i]
    if sid ~= '' and scores[sid] == nil then
      scores[sid] = false
      k = k + 1
      sids[k] = sid
    end
  end
  local found = call('ZMSCORE', candidates, unpack(sids))
  for i = 1, k do
    scores[sids[i]] = found[i] and found[i] + 0
  end
end

-- lease returns what a worker's has left, false if it is gone. A quarantine is as long
-- as a lease, which all nodes have in common: only if the clock was set back, more
-- can be left, and is cut down to what the record tells.
local quarantine = ARGV[5] + 0
local function lease(sid)
  local left = leases[sid]
  if left == nil then
    local session = record .. sid
    left = call('PTTL', session)
    if left > quarantine then
      local most = tonumber(call('HGET', session, 'lease') or left)
      if left > most then
        left = most
        call('PEXPIRE', session, most)
      end
    end
    if left < 1 then
      left = left ~= -2 and 1
    end
    leases[sid] = left
  end
  return left
end

local away
if before and before ~= '' then
  local ends = call('ZSCORE', base .. 'hosts', before)
  if ends then
    t = call('TIME')
    now = t[1] * 1000000 + t[2]
    away = ends * 1000 > now
  end
end

local answers, epoch, fault = {}, nil, nil
for i = 7, 4 * n + 3, 4 do
  local id, leaf, preferred = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local rows = base .. 'r:' .. leaf
  local answer, refused, former

  -- A session that is there lives for what PTTL says, or for its lease, if that is
  -- less: it lives longer only if the clock was set back, and is then cut down to it.

  local row = not away and redis.pcall('HGET', rows, id)
  if away then
    answer = {elsewhere}
  elseif row then
    local since, owner
    if type(row) == 'string' then
      since, owner = string.match(row, '^(%d+)%a? (.+)$')
    end
    if not owner then
      -- Something else is there. The ids before this one are counted and answered.
      fault = row.err and row or {err = 'ERR what is there is no row'}
      break
    end
    former = owner
    local session = record .. owner
    local s = call('HMGET', session, 'client', 'stopped', 'lease')
    if s[1] and refusal and refusal == since .. ' ' .. owner then
      refused = owner
    elseif s[1] then
      local left = call('PTTL', session)
      if s[3] and left > s[3] + 0 then
        left = s[3] + 0
        call('PEXPIRE', session, s[3])
      end
      answer = {owned, owner, tonumber(since), math.max(1, left), tonumber(s[2])}
    end
  end

  -- The choice is store.Choose's. It ends with a sid, whose score and lease are known.
  local sid, score
  local why, fresh = 't', false
  if not answer then
    if not t then
      t = call('TIME')
      now = t[1] * 1000000 + t[2]
    end
    if not m or changed then
      m, changed = call('HMGET', meta, 'epoch', 'quarantine', 'version', 'best', 'layout'), false
      if m[5] and m[5] ~= ARGV[6] then
        fault = {err = 'LAYOUT ' .. m[5] .. ' ' .. ARGV[6]} -- its sessions are of nodes that look elsewhere for rows
        break
      end
      current = view == '-1' or view == (m[3] or '0')
    end
    if preferred ~= '' then
      if n == 1 then
        scores[preferred] = tonumber(call('ZSCORE', candidates, preferred) or nil)
      elseif scores[preferred] == nil then
        look(i)
      end
      score = lowered[preferred] or scores[preferred]
      -- Mostly nothing is in the way, and none has more than the preferred one has to
      -- have at least: best is no less than any headroom here, though it may be out of date.
      if score and m[2] == '0' and m[4] and current and now <= limit and not refusal
        and score * factor >= m[4] + 0 and lease(preferred) then
        sid, why = preferred, string.sub(ARGV[i + 3], -1)
      end
    end
  end

  if not answer and not sid then
    settle()
    changed = true
    local set = limit == -1
    local first, second, third = string.match(ARGV[i + 3], '^(%d+) (%d+) (%d+)')

    -- unplaced answers where the id gets no owner; so a placement that was refused is
    -- given up, too. That there is no session at all comes before everything else.
    -- They are sorted by the end of their leases: if the last of them is gone, it has
    -- lapsed, and the others before it.
    local function unplaced(outcome)
      local last = call('ZREVRANGE', base .. 'sessions', 0, 0)[1]
      if not last then
        local vacated = call('HGET', meta, 'vacated')
        return {unknown, vacated and math.max(0, math.min(quarantine, vacated + quarantine - now / 1000)) or 0}
      elseif call('EXISTS', record .. last) == 0 then
        return {again, last}
      end
      local told = {outcome}
      if outcome == quarantined then
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
        told = {quarantined, runs, now, begun}
      end
      if refused and outcome ~= stale then
        call('HDEL', rows, id)
        if call('EXISTS', rows) == 0 then
          call('SETBIT', base .. 'leaves', leaf, 0)
        end
        call('HINCRBY', record .. refused, 'rows', -1)
      end
      return told
    end

    -- choose returns the sid, or nil and the answer.
    local function choose()
      if not set and limit ~= 0 and now > limit then
        return nil, {stepped, now}
      end
      -- Nothing has been placed here yet, or leases have ended early, so that owners may
      -- live on who are forgotten.
      fresh = m[2] ~= '0' or set
      if fresh then
        local waits = unplaced(quarantined)
        if waits then
          return nil, waits
        end
      end

      -- The client whose refusal this is gets nothing.
      local excluded
      if refusal then
        local client = ARGV[4 * n + 9]
        excluded = string.match(call('HGET', base .. 'clients', client) or '', '^%d+ %d+ (%S+)')
      end

      if score and preferred ~= excluded and current then
        if not lease(preferred) then
          return nil, {again, preferred}
        end
        -- To see whether any has more is cheaper than to read how much the best has.
        local enough = string.format('(%.17g', score * factor)
        local more = call('ZCOUNT', candidates, enough, '+inf')
        if more > 0 and excluded then
          local headroom = call('ZSCORE', candidates, excluded)
          if headroom and tonumber(headroom) > tonumber(string.sub(enough, 2)) then
            more = more - 1
          end
        end
        if more == 0 then
          why = string.sub(ARGV[i + 3], -1)
          -- So best is out of date, or of no use in this case.
          call('HSET', meta, 'best', call('ZREVRANGE', candidates, 0, 0, 'WITHSCORES')[2] or 0)
          return preferred
        end
        -- The best must be live to go before.
        local best = call('ZREVRANGE', candidates, 0, 1)
        best = best[1] == excluded and best[2] or best[1]
        if call('EXISTS', record .. best) == 0 then
          return nil, {again, best}
        end
      end

      local count = call('ZCARD', candidates)
      local out = excluded and call('ZRANK', candidates, excluded) or nil
      if out then
        count = count - 1
      end
      if count == 0 then
        return nil, unplaced(none)
      elseif not current then
        return nil, unplaced(stale)
      end
      -- at returns who is at a rank among the count, lowest headroom first.
      local function at(rank)
        if out and rank >= out then
          rank = rank + 1
        end
        local c = call('ZRANGE', candidates, rank, rank, 'WITHSCORES')
        return c[1], tonumber(c[2])
      end
      local one, a
      if count == 1 then
        one, a = at(0)
      else
        local other, b
        local j, k = first % count, second % (count - 1)
        if k >= j then
          k = k + 1
        end
        one, a = at(j)
        other, b = at(k)
        if a < b or a == b and third % 2 == 1 then
          one, a, other = other, b, one
        end
        if call('EXISTS', record .. other) == 0 then
          return nil, {again, other}
        end
      end
      if not lease(one) then
        return nil, {again, one}
      end
      scores[one] = a
      return one
    end

    sid, answer = choose()
  end

  if sid then
    local text
    if epoch then
      epoch = epoch + 1
      text = string.format('%.0f', epoch)
    else
      epoch = (m[1] or 0) + 1
      if epoch <= now and #t[2] == 6 then
        epoch, text = now, t[1] .. t[2] -- cheaper than to format it
      else
        epoch = math.max(epoch, now)
        text = string.format('%.0f', epoch)
      end
      -- As many as there are ids, before any row has one.
      call('HSET', meta, 'epoch', n == 1 and text or epoch + n - 1)
    end
    if fresh then
      call('HSET', meta, 'quarantine', 0)
    end
    -- See store.Why.
    if refused then
      call('HINCRBY', record .. refused, 'rows', -1)
      why = string.char(string.byte(why) + 1)
    elseif former then
      why = string.upper(why)
    end
    if call('HSET', rows, id, text .. why .. ' ' .. sid) == 1 and call('HLEN', rows) == 1 then
      call('SETBIT', base .. 'leaves', leaf, 1)
    end
    score = lowered[sid] or scores[sid]
    if score > 0 and score <= countless then
      lowered[sid] = score > 1 and score - 1 or 0
    else
      untold[sid] = (untold[sid] or 0) + 1
    end
    answer = {placed, sid, epoch, leases[sid], 0, now, why, former or ''}
  end
  answers[#answers + 1] = answer
end

settle()
return #answers == 0 and fault or answers
