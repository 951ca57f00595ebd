-- lookup reads rows whose owners are live.
--
-- KEYS  leaves, none
-- ARGV  base, then id and leaf of each
-- Answer: for each id {} if it is not placed, else {epoch, sid, clientId,
-- letter of why it is there}.

local a = {}
for i = 2, #ARGV, 2 do
  local row = call('HGET', ARGV[1] .. 'r:' .. ARGV[i + 1], ARGV[i])
  local found = {}
  if row then
    local epoch, sid, why = parse(row)
    local client = call('HGET', ARGV[1] .. 's:' .. sid, 'client')
    if client then
      found = {epoch, sid, client, why}
    end
  end
  a[#a + 1] = found
end
return a
