-- release frees rows that are still of the session and, if it is not 0, the
-- epoch named.
--
-- KEYS  leaves, none
-- ARGV  base, then sid, epoch, id and leaf of each
-- Answer: how many were freed.

local base, n, lost = ARGV[1], 0, {}
for i = 2, #ARGV, 4 do
  local sid, epoch, id, leaf = unpack(ARGV, i, i + 3)
  local key = base .. 'r:' .. leaf
  local row = call('HGET', key, id)
  if row then
    local held, owner = parse(row)
    if owner == sid and (epoch == '0' or tonumber(epoch) == held) then
      take(base, key, leaf, id)
      lost[sid] = (lost[sid] or 0) + 1
      n = n + 1
    end
  end
end
for sid, rows in pairs(lost) do
  if call('EXISTS', base .. 's:' .. sid) == 1 then
    call('HINCRBY', base .. 's:' .. sid, 'rows', -rows)
  end
end
return n
