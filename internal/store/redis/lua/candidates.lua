-- candidates reads the sessions that may take placements, and clears lapsed
-- ones.
--
-- KEYS  meta, candidates
-- ARGV  base
-- Answer: {version, then sid, clientId and headroom of each}

local meta, candidates = unpack(KEYS)
local all = call('ZRANGE', candidates, 0, -1, 'WITHSCORES')
local a = {0}
for i = 1, #all, 2 do
  local client = call('HGET', ARGV[1] .. 's:' .. all[i], 'client')
  if client then
    a[#a + 1] = all[i]
    a[#a + 1] = client
    a[#a + 1] = all[i + 1]
  else
    unlist(meta, candidates, all[i])
  end
end
a[1] = tonumber(call('HGET', meta, 'version') or 0)
return a
