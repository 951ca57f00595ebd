-- forget removes what a bucket remembers, if nothing in it may still count. To
-- whoever comes next it is a bucket that has never placed.
--
-- KEYS  meta, sessions, candidates, clients, leaves
-- Answer: 1, or 0 if something may still count.

local meta, sessions, candidates, clients, leaves = unpack(KEYS)
if call('EXISTS', sessions, candidates, clients) > 0 or call('HEXISTS', meta, 'dirty') == 1
  or call('BITPOS', leaves, 1) >= 0 then
  return 0
end
call('DEL', meta, leaves)
return 1
