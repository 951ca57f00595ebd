-- push queues a control message for a client. It replaces an older one for the
-- same place.
--
-- KEYS  client, messages
-- ARGV  place, epoch of the placement, deadline in ms from now or -1, the most
--       messages that may wait
-- Answer: 1; 0 if too many wait, -1 if the client is unknown.

local client, messages = unpack(KEYS)
local c = call('HMGET', client, 'gen', 'number')
if not c[1] then
  return -1
end
if call('HEXISTS', messages, ARGV[1]) == 0 and call('HLEN', messages) >= tonumber(ARGV[4]) then
  return 0
end
local now = micros()
local number, due = rise(c[2], now), '-'
if tonumber(ARGV[3]) >= 0 then
  due = int(math.floor(now / 1000) + ARGV[3])
end
call('HSET', client, 'number', number)
call('HSET', messages, ARGV[1], int(number) .. ' ' .. ARGV[2] .. ' ' .. due)
call('PEXPIRE', messages, math.max(1, call('PTTL', client)))
return 1
