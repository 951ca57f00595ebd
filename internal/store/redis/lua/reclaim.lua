-- reclaim makes ids a session's own unless another client's live session has
-- them. A row of a session of the same client and secret keeps its epoch.
--
-- KEYS  meta, session, none
-- ARGV  base, sid, clientId, lineage, sids of client and secret (by spaces),
--       then id and leaf of each
-- Answer: {0, then which id, counted from 0, and 0 of each that others have, and
-- which one and the epoch of each that has it from a registration, this one or
-- an earlier one}; {-1} if the session is not there or has been replaced.

local meta, session = unpack(KEYS)
local base, sid, client, lineage = unpack(ARGV, 1, 4)
local ver = call('HGET', session, 'ver')
if not ver or tonumber(ver) == frozen then
  return {-1}
end
local kin = {}
for one in string.gmatch(ARGV[5], '%S+') do
  kin[one] = true
end
-- gained counts the rows that each session gets or loses.
local gained, live = {[sid] = 0}, {}
local function alive(owner)
  if live[owner] == nil then
    local s = call('HMGET', base .. 's:' .. owner, 'client', 'lineage')
    live[owner] = s[1] ~= false
    if s[1] == client and s[2] == lineage then
      kin[owner] = true
    end
  end
  return live[owner]
end

local now, epoch = micros(), call('HGET', meta, 'epoch')
local a = {0}
for i = 6, #ARGV, 2 do
  local id, leaf = ARGV[i], ARGV[i + 1]
  local key = base .. 'r:' .. leaf
  local size = call('HLEN', key)
  local row = size > 0 and call('HGET', key, id)
  local held, owner, why
  if row then
    held, owner, why = parse(row)
  end
  local lives = owner and alive(owner)
  if owner == sid then
    -- Listed twice, or run twice.
  elseif lives and not kin[owner] then
    held, why = 0, 'r'
  else
    if not owner or not kin[owner] then
      epoch = rise(epoch, now)
      held, why = epoch, 'r'
    end
    call('HSET', key, id, int(held) .. why .. ' ' .. sid)
    if size == 0 then
      mark(base, leaf, 1)
    end
    gained[sid] = gained[sid] + 1
    if lives then
      gained[owner] = (gained[owner] or 0) - 1
    end
  end
  if why == 'r' then
    a[#a + 1] = (i - 6) / 2
    a[#a + 1] = held
  end
end
if epoch then
  call('HSET', meta, 'epoch', int(epoch))
end
for owner, n in pairs(gained) do
  if n ~= 0 then
    call('HINCRBY', base .. 's:' .. owner, 'rows', n)
  end
end
return a
