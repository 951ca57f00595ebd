-- Shared by all scripts: prepended to each of them.

local call = redis.call

-- int prints a whole number below 2^53; Lua's own way rounds it to 14 digits.
local function int(n)
  return string.format('%.0f', n)
end

-- micros returns Redis' time in microseconds.
local function micros()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

-- rise returns a number above last, which may be missing. It follows the clock,
-- so that it rises across a loss of the key that held last, too.
local function rise(last, now)
  return math.max((tonumber(last) or 0) + 1, now)
end

-- hold lets a key that exists live for at least ttl more milliseconds, and
-- returns for how long it lives now.
local function hold(key, ttl)
  local lives = call('PTTL', key)
  if lives < ttl then
    call('PEXPIRE', key, ttl)
    return ttl
  end
  return lives
end

-- left returns for how many milliseconds a session lives, negative if it is not
-- there. Its record says, as lease, for how long it was last let live, which is
-- returned, too. It lives longer than that only if the clock was set back since: then
-- that long from now, which is not before what its worker was told has passed.
local function left(session)
  local ms = call('PTTL', session)
  if ms <= 0 then
    return ms == 0 and 1 or ms -- 1 in its last millisecond
  end
  local lease = tonumber(call('HGET', session, 'lease') or ms)
  if ms > lease then
    call('PEXPIRE', session, lease)
    return lease, lease
  end
  return ms, lease
end

-- renew lets a session live for at least ttl more milliseconds, and returns for
-- how long it lives now.
local function renew(session, ttl)
  local ms, lease = left(session)
  local lives = math.max(ms, ttl)
  call('PEXPIRE', session, lives)
  if lives ~= lease then
    call('HSET', session, 'lease', lives)
  end
  return lives
end
