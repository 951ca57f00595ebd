-- release frees rows that are still of the session and, if it is not 0, the
-- epoch named.
--
-- KEYS  leaves
-- ARGV  base, then sid, epoch, id and leaf of each
-- Answer: how many were freed.

local n = 0
for i = 2, #ARGV, 4 do
  local sid, epoch, id, leaf = unpack(ARGV, i, i + 3)
  local key = ARGV[1] .. 'r:' .. leaf
  local row = call('HGET', key, id)
  if row then
    local held, owner = parse(row)
    if owner == sid and (epoch == '0' or tonumber(epoch) == held) then
      take(KEYS[1], key, leaf, id)
      if call('EXISTS', ARGV[1] .. 's:' .. sid) == 1 then
        call('HINCRBY', ARGV[1] .. 's:' .. sid, 'rows', -1)
      end
      n = n + 1
    end
  end
end
return n
