-- states says what became of sessions.
--
-- KEYS  live, none
-- ARGV  base, then sid and clientId of each
-- Answer: of each, two in a row: left of the lease in ms, -1 if the session
-- has ended, -2 if its client is forgotten, too; the sid of its successor or ''.

local a = {}
for i = 2, #ARGV, 2 do
  local sid, client = ARGV[i], ARGV[1] .. 'c:' .. ARGV[i + 1]
  local lives, successor = left(ARGV[1] .. 's:' .. sid), ''
  if lives < 0 then
    local c = call('HMGET', client, 'gen', 'sid', 'sids')
    lives = c[1] and -1 or -2
    if c[2] and string.find(' ' .. c[3] .. ' ', ' ' .. sid .. ' ', 1, true)
      and call('EXISTS', ARGV[1] .. 's:' .. c[2]) == 1 then
      successor = c[2]
    end
  end
  a[#a + 1] = lives
  a[#a + 1] = successor
end
return a
