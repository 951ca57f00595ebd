-- events reads the fleet's memory of what happened.
--
-- KEYS  events, moves
-- ARGV  the event to read on from, itself left out, or 0 for the newest; 1 to read
--       on towards newer ones; the most to look at; key of the id that they are
--       about or ''
-- Answer: {the event to read on from or 0, then number and text of each}

local from, forward, most, key = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]

local function read(stream)
  if forward then
    return call('XRANGE', stream, int(from + 1), '+', 'COUNT', most)
  end
  return call('XREVRANGE', stream, from > 0 and int(from - 1) or '+', '-', 'COUNT', most)
end

-- number returns an entry's number, nil behind the last entry.
local function number(entry)
  return entry and tonumber(string.match(entry[1], '^%d+'))
end

local one, other = key == '' and read(KEYS[1]) or {}, read(KEYS[2])
local i, j, a = 1, 1, {0}
for _ = 1, most do
  local n, m = number(one[i]), number(other[j])
  if not n and not m then
    break
  end
  local entry
  if not m or n and (n < m) == forward then
    entry, a[1] = one[i], n
    i = i + 1
  else
    entry, a[1] = other[j], m
    j = j + 1
  end
  if key == '' or entry[2][2] == key then
    a[#a + 1] = a[1]
    a[#a + 1] = entry[2][4]
  end
end
if not forward and i > #one and j > #other and #one < most and #other < most then
  a[1] = 0
end
return a
