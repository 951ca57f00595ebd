-- record appends events to the fleet's memory of what happened.
--
-- KEYS  events
-- ARGV  base, then key (binding and id by a space, or '' for one that is not of an
--       id) and text (JSON) of each
-- Answer: how many were appended

for i = 2, #ARGV, 2 do
  happened(ARGV[1], ARGV[i], ARGV[i + 1])
end
return (#ARGV - 1) / 2
