-- vacant tells which bindings have had no session for as long as anything is
-- remembered of one, and takes them off the list if told to.
--
-- KEYS  namespaces
-- ARGV  base, 1 to take them off, and of each binding its name and how keys have
--       it
-- Answer: {binding…}

local vacant = {}
for i = 3, #ARGV, 2 do
  if call('EXISTS', ARGV[1] .. 'g:' .. ARGV[i + 1]) == 0 then
    vacant[#vacant + 1] = ARGV[i]
    if ARGV[2] == '1' then
      call('SREM', KEYS[1], ARGV[i])
    end
  end
end
return vacant
