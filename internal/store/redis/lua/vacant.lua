-- vacant removes what is left of a bucket that nobody has used for long.
--
-- KEYS  meta, sessions, clients, leaves, candidates, generation
-- ARGV  the last epoch, as it is remembered elsewhere
-- Answer: 1, or 0 if the bucket is in use, or has been since.

local epoch = memory(KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if epoch < 0 or epoch > tonumber(ARGV[1]) or call('HEXISTS', KEYS[1], 'dirty') == 1 then
  return 0
end
call('DEL', KEYS[1], KEYS[4], KEYS[5], KEYS[6])
return 1
