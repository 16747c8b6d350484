-- Moves a pending entry to another stream, if this consumer still owns it: it is added there before it is acknowledged, so an
-- entry that cannot be added stays pending.
--
-- KEYS: stream, dead stream. ARGV: group, consumer, ID, reason, failures.
-- Returns the ID and "gone", "other" or "deleted", or nothing if the entry was moved.
local key, dead = KEYS[1], KEYS[2]
local group, consumer, id, reason, failures = unpack(ARGV)
if #redis.call('XPENDING', key, group, id, id, 1, consumer) == 0 then
  return {id, #redis.call('XPENDING', key, group, id, id, 1) == 0 and 'gone' or 'other'}
end
local entry = redis.call('XRANGE', key, id, id)[1]
if not entry then
  redis.call('XACK', key, group, id)
  return {id, 'deleted'}
end
local fields = entry[2]
for _, part in ipairs({'dead:stream', key, 'dead:id', id, 'dead:reason', reason, 'dead:failures', failures}) do
  fields[#fields + 1] = part
end
redis.call('XADD', dead, '*', unpack(fields))
redis.call('XACK', key, group, id)
return {}
