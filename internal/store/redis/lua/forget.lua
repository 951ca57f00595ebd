-- forget takes bindings off the list of those that are swept, unless one may have
-- sessions, or a registration on its way. Before that, it remembers the highest
-- epoch that was given out in any of them, above which they begin if they come
-- back.
--
-- KEYS  namespaces, floor
-- ARGV  base, 1 to take them off or 0 to remember first, then name, name in keys
--       and last epoch of each
-- Answer: {which of them, counted from 0, can go…}

local floor, a = tonumber(call('GET', KEYS[2]) or 0), {}
for i = 3, #ARGV, 3 do
  if call('EXISTS', ARGV[1] .. 'g:' .. ARGV[i + 1]) == 0 then
    a[#a + 1] = (i - 3) / 3
    floor = math.max(floor, tonumber(ARGV[i + 2]))
    if ARGV[2] == '1' then
      call('SREM', KEYS[1], ARGV[i])
    end
  end
end
if #a > 0 then
  call('SET', KEYS[2], int(floor))
end
return a
