-- leave ends a session in a bucket.
--
-- KEYS  meta, sessions, candidates, none
-- ARGV  base, sid
-- Answer: 1.

finish(ARGV[1], KEYS[1], KEYS[2], KEYS[3], ARGV[2])
return 1
