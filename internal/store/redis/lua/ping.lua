-- ping writes something small: a server that answers may take no writes, as a
-- replica does, or one that is full.
--
-- KEYS  ping
-- ARGV  for how long it stays in ms
-- Answer: 1.

call('SET', KEYS[1], '', 'PX', ARGV[1])
return 1
