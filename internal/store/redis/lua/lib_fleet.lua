-- Shared by the fleet's scripts: prepended to each of them, after lib.lua.

-- apart returns an error if the sessions of the fleet are of nodes that place rows by
-- another layout. keep says for at least ttl more milliseconds that they are of this one.
local function apart(key, layout)
  local kept = call('GET', key)
  return kept and kept ~= layout and {err = 'LAYOUT ' .. kept .. ' ' .. layout}
end

local function keep(key, layout, ttl)
  call('SET', key, layout, 'PX', math.max(ttl, call('PTTL', key)))
end

-- takes returns 1 if the session may take placements as far as the fleet knows.
local function takes(session, client)
  local s = call('HMGET', session, 'active', 'draining', 'degraded', 'stopped')
  if s[1] == '1' and s[2] == '0' and s[3] == '0' and s[4] == '0' and call('HGET', client, 'drain') ~= '1' then
    return 1
  end
  return 0
end

-- A session is of one class in each of its bindings: its worker epoch and its
-- env, "EPOCH.ENV", behind an x once it has been displaced. A session's classes
-- are lines of "BINDING CLASS". g:BINDING has the classes that may have members,
-- m:BINDING:CLASS their sids by end of lease.

-- each calls a function with every binding and class.
local function each(classes, f)
  for binding, class in string.gmatch(classes, '(%S+) (%S+)') do
    f(binding, class)
  end
end

-- rank splits a class into its epoch, its env and whether it is displaced. The
-- epoch stays a text: as a number it would be rounded above 2^53.
local function rank(class)
  local x, epoch, env = string.match(class, '^(x?)(%d+)%.(.*)$')
  return epoch, env, x == 'x'
end

-- above says whether an epoch is above another one.
local function above(a, b)
  return #a > #b or #a == #b and a > b
end

local function members(base, binding, class)
  return base .. 'm:' .. binding .. ':' .. class
end

-- enlist makes a session a member of its classes, or renews that; delist takes
-- that back. ends is in Unix ms.
local function enlist(base, classes, sid, ends, ttl)
  each(classes, function(binding, class)
    local key = members(base, binding, class)
    call('ZADD', key, ends, sid)
    hold(key, ttl)
    call('SADD', base .. 'g:' .. binding, class)
    hold(base .. 'g:' .. binding, ttl)
  end)
end

local function delist(base, classes, sid)
  each(classes, function(binding, class)
    call('ZREM', members(base, binding, class), sid)
  end)
end

-- ranks returns the classes of a binding, without lapsed members, and those
-- that have none.
local function ranks(base, binding, now)
  local all = {}
  for _, class in ipairs(call('SMEMBERS', base .. 'g:' .. binding)) do
    local key = members(base, binding, class)
    -- A lease may end a moment later than its entry says.
    call('ZREMRANGEBYSCORE', key, '-inf', math.floor(now / 1000) - 1000)
    if call('EXISTS', key) == 1 then
      all[#all + 1] = class
    else
      call('SREM', base .. 'g:' .. binding, class)
    end
  end
  return all
end

-- populated says whether a class has a live member but the client's own.
local function populated(base, key, own)
  local at = 0
  while true do
    local sid = call('ZREVRANGE', key, at, at)[1]
    if not sid then
      return false
    elseif sid == own then
      at = at + 1
    elseif call('EXISTS', base .. 's:' .. sid) == 1 then
      return true
    else
      call('ZREM', key, sid)
    end
  end
end

-- conflict returns why a registration is refused: {'lower' or 'env', in which
-- binding, counted from 0, and the epoch and the env there}; nil if it is not.
-- own is the client's session now, competes whether another env matters.
local function conflict(base, classes, own, competes, now)
  local n, refusal = 0, nil
  each(classes, function(binding, class)
    local epoch, env = rank(class)
    for _, other in ipairs(ranks(base, binding, now)) do
      local theirs, their = rank(other)
      local higher = above(theirs, epoch)
      local forbids = higher or theirs == epoch and their ~= env and competes
      local first = not refusal or higher and refusal[1] == 'env'
      if forbids and first and populated(base, members(base, binding, other), own) then
        refusal = {higher and 'lower' or 'env', n, theirs, their}
      end
    end
    n = n + 1
  end)
  return refusal
end

-- happened appends an event to one of two streams, so that ids that move do not
-- push out what happened to workers. Its number follows the clock, and rises over
-- both. key is a binding and an id by a space, or '' for what is not of an id.
local function happened(base, key, text)
  local last = 0
  for _, stream in ipairs({'events', 'moves'}) do
    local top = call('XREVRANGE', base .. stream, '+', '-', 'COUNT', 1)[1]
    last = math.max(last, top and tonumber(string.match(top[1], '^%d+')) or 0)
  end
  call('XADD', base .. (key == '' and 'events' or 'moves'), 'MAXLEN', '~', 5000, int(rise(last, micros())) .. '-0',
    'key', key, 'text', text)
end

-- unlisted takes a session off the list of live ones. lapsed does so with one that
-- is found to have lapsed, and tells.
local function unlisted(base, live, sid)
  call('HDEL', base .. 'lapses', sid)
  return call('ZREM', live, sid)
end

local function lapsed(base, live, sid)
  local text = call('HGET', base .. 'lapses', sid)
  if unlisted(base, live, sid) == 1 and text then
    happened(base, '', text)
  end
end

-- revise gives the session's state a new version and returns it.
local function revise(session, now)
  local ver = rise(call('HGET', session, 'ver'), now)
  call('HSET', session, 'ver', ver)
  return ver
end

-- drain returns the operator's drain of a client: 0 or 1, and what is left of
-- its deadline in milliseconds, -1 without one.
local function drain(client, now)
  local d = call('HMGET', client, 'drain', 'deadline')
  if d[1] ~= '1' then
    return 0, -1
  end
  if not d[2] then
    return 1, -1
  end
  return 1, math.max(0, d[2] - math.floor(now / 1000))
end
