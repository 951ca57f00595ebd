-- Reads or writes an account, unless a later owner has claimed it.
--
-- KEYS[1]  the account: a hash of epoch (of its last owner) and balance
-- ARGV[1]  the caller's placement epoch, below 2^53: exact as a Lua number
-- ARGV[2]  the balance to write; "" to write none, which claims the account
-- Returns  the balance that is stored now, or nil: refused, nothing written
local claimed = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if tonumber(ARGV[1]) < claimed then
  return nil
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'balance', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'balance') or '0'
