-- retire ends the earlier sessions of a client in a bucket, and keeps late
-- registrations of theirs out.
--
-- KEYS  meta, sessions, candidates, clients, none
-- ARGV  base, sid, clientId, generation
-- Answer: 1, or 0 if a later generation of the client has been here.

local meta, sessions, candidates, clients = unpack(KEYS)
local base, sid, client, gen = unpack(ARGV)
local entry = call('HGET', clients, client)
local stays = ''
if entry then
  local newest, sids = string.match(entry, '^(%d+) %d+(.*)$')
  if tonumber(newest) > tonumber(gen) then
    return 0
  end
  for one in string.gmatch(sids, '%S+') do
    if one == sid then
      stays = ' ' .. sid
    else
      finish(base, meta, sessions, candidates, one)
    end
  end
end
call('HSET', clients, client, gen .. ' ' .. int(math.floor(micros() / 1000)) .. stays)
return 1
