-- live lists the sids of the fleet, among which may be lapsed ones.
--
-- KEYS  live
-- Answer: {sid…}

return call('ZRANGE', KEYS[1], 0, -1)
