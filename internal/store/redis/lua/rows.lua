-- rows reads the rows of whole leaves whose owners are live, or those of them that
-- are asked for.
--
-- KEYS  leaves
-- ARGV  base, the first leaf, how many rows are wanted, the most rows to look at,
--       clientId of the owner or '', what the ids begin with
-- Answer: {the next leaf or -1, then leaf, id, epoch, sid, clientId and letter of why
-- it is there of each}

local base, want, most, owner, prefix = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local clients = {}
local a, found, seen = {-1}, 0, 0
local following = occupied(KEYS[1], tonumber(ARGV[2]))
local leaf = following()
while leaf >= 0 and found < want and seen < most do
  local rows = call('HGETALL', base .. 'r:' .. int(leaf))
  for i = 1, #rows, 2 do
    local epoch, sid, why = parse(rows[i + 1])
    if clients[sid] == nil then
      clients[sid] = call('HGET', base .. 's:' .. sid, 'client')
    end
    local asked = string.sub(rows[i], 1, #prefix) == prefix and (owner == '' or owner == clients[sid])
    if clients[sid] and asked then
      found = found + 1
      a[#a + 1] = leaf
      a[#a + 1] = rows[i]
      a[#a + 1] = epoch
      a[#a + 1] = sid
      a[#a + 1] = clients[sid]
      a[#a + 1] = why
    end
  end
  seen = seen + #rows / 2 + 1 -- the hash itself costs about as much
  leaf = following()
end
a[1] = leaf
return a
