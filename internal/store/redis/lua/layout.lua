-- layout says whether a node may place rows by its own layout.
--
-- KEYS  layout
-- ARGV  layout
-- Answer: 1, or an error as apart tells it.

return apart(KEYS[1], ARGV[1]) or 1
