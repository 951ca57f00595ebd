-- Shared by a bucket's scripts: prepended to each of them, after lib.lua.

-- frozen is the version of a session's state that no later state replaces.
local frozen = 9007199254740991

-- A candidate's score is what is left of the headroom that it reported, and tells so of
-- the placements that it got since. The record counts, as taken, only those that the
-- score does not tell: they came when nothing was left, or they are too little to be
-- taken off a headroom that is this large. Of a session that is no candidate it
-- counts all.
local countless = 2 ^ 52

-- taken returns how many placements a session got since it reported its headroom;
-- counted is its record's taken.
local function taken(candidates, sid, headroom, counted)
  local score = call('ZSCORE', candidates, sid)
  return counted + (score and math.ceil(headroom - score) or 0)
end

-- spend returns the score of a candidate that got n placements, and how many of them
-- that does not tell. resolve.lua does the same, one by one.
local function spend(headroom, n)
  if headroom > countless then
    return headroom, n
  end
  local score = math.max(0, headroom - n)
  return score, n - math.ceil(headroom - score)
end

-- list makes a session a candidate, with a score; unlist takes it from them.
-- The version changes with the set. best is no less than any candidate's score:
-- list raises it, and resolve.lua lowers it.
local function changed(meta)
  call('HSET', meta, 'version', rise(call('HGET', meta, 'version'), micros()))
end

local function list(meta, candidates, sid, score)
  if call('ZADD', candidates, score, sid) == 1 then
    changed(meta)
  end
  local best = call('HGET', meta, 'best')
  if best and tonumber(best) < score then
    call('HSET', meta, 'best', score)
  end
end

local function unlist(meta, candidates, sid)
  if call('ZREM', candidates, sid) == 1 then
    changed(meta)
  end
end

-- vacate notes when the last session that has ended here did, in Unix ms.
local function vacate(meta, ms)
  if tonumber(call('HGET', meta, 'vacated') or 0) < ms then
    call('HSET', meta, 'vacated', ms)
  end
end

-- dirty notes that a session has ended that may have left rows.
local function dirty(meta)
  call('HINCRBY', meta, 'dirty', 1)
end

-- turn gives the bucket another generation: what nodes know of its sessions, and
-- of the host names that it gives way to, is no longer so.
local function turn(base)
  local generation = base .. 'generation'
  call('SET', generation, int(rise(call('GET', generation), micros())))
end

-- finish ends a session in the bucket: its rows are dead rows from now on.
local function finish(base, meta, sessions, candidates, sid)
  local record = base .. 's:' .. sid
  local s = call('HMGET', record, 'rows', 'taken', 'headroom')
  if s[1] then
    local rows = s[1] + taken(candidates, sid, s[3], s[2])
    call('DEL', record)
    call('ZREM', sessions, sid)
    vacate(meta, math.floor(micros() / 1000))
    turn(base)
    if rows ~= 0 then
      dirty(meta)
    end
  end
  unlist(meta, candidates, sid)
end

-- lapse clears a session whose lease has ended.
local function lapse(meta, sessions, candidates, sid)
  local ended = call('ZSCORE', sessions, sid)
  if ended then
    vacate(meta, tonumber(ended))
    call('ZREM', sessions, sid)
    dirty(meta)
  end
  unlist(meta, candidates, sid)
end

-- expire looks at sessions whose leases should have ended, clears those that
-- have, and returns how many it looked at.
local function expire(base, meta, sessions, candidates, most)
  local ms = math.floor(micros() / 1000)
  local due = call('ZRANGEBYSCORE', sessions, '-inf', ms, 'LIMIT', 0, most)
  for _, sid in ipairs(due) do
    local lives = call('PTTL', base .. 's:' .. sid)
    if lives >= 0 then
      call('ZADD', sessions, ms + lives, sid)
    else
      lapse(meta, sessions, candidates, sid)
    end
  end
  return #due
end

-- parse splits a row into its epoch, its owner and the letter of why it is there.
local function parse(row)
  local epoch, why, sid = string.match(row, '^(%d+)(%a?) (.+)$')
  return tonumber(epoch), sid, why
end

-- mark notes whether a leaf has rows.
local function mark(base, leaf, has)
  call('SETBIT', base .. 'leaves', leaf, has)
end

-- take removes a row.
local function take(base, key, leaf, id)
  call('HDEL', key, id)
  if call('EXISTS', key) == 0 then
    mark(base, leaf, 0)
  end
end

-- occupied returns a function that returns the leaves that have rows, from a
-- number on, one at each call, and -1 after the last. It reads the bitmap in
-- pieces.
local function occupied(leaves, from)
  local piece, start, byte = '', 0, math.floor(from / 8)
  return function()
    while true do
      local bits = string.byte(piece, byte - start + 1)
      if not bits then
        local first = call('BITPOS', leaves, 1, byte)
        if first < 0 then
          return -1
        end
        start = math.floor(first / 8)
        byte, from, piece = start, math.max(from, first), call('GETRANGE', leaves, start, start + 31)
      elseif bits > 0 and from < 8 * byte + 8 then
        from = from + 1
        if math.floor(bits / 2 ^ (8 * byte + 8 - from)) % 2 == 1 then
          return from - 1
        end
      else
        byte = byte + 1
        from = 8 * byte
      end
    end
  end
end

-- memory returns the last epoch of a bucket that has no sessions, no clients and
-- no rows; -1 of any other.
local function memory(meta, sessions, clients, leaves)
  if call('EXISTS', sessions, clients) > 0 or call('BITPOS', leaves, 1) >= 0 then
    return -1
  end
  return tonumber(call('HGET', meta, 'epoch') or 0)
end
