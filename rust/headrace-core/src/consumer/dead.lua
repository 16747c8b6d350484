-- Moves a pending entry to another stream, if this consumer still owns it: it is added there before it is acknowledged, so an
-- entry that cannot be added stays pending. `letter.lua` comes before it.
--
-- KEYS: stream, dead stream. ARGV: group, consumer, ID, reason, failures, "delete" (remove the entry) or "ack".
-- Returns the ID and "gone", "other" or "deleted", or nothing if the entry was moved.
local key, dead = KEYS[1], KEYS[2]
local group, consumer, id, reason, failures, action = unpack(ARGV)
if #redis.call('XPENDING', key, group, id, id, 1, consumer) == 0 then
  return {id, #redis.call('XPENDING', key, group, id, id, 1) == 0 and 'gone' or 'other'}
end
local entry = redis.call('XRANGE', key, id, id)[1]
if not entry then
  redis.call('XACK', key, group, id)
  return {id, 'deleted'}
end
local fields = letter(entry[2], key, id, reason, failures)
-- A script is not rolled back: what follows XADD is tried before it, with an ID that no entry has. XADD is tried first of all,
-- because the server refuses for want of memory only the first command of a script that writes.
local invalid = {'XADD', dead, 'no ID', 'a', 'a'}
if not redis.pcall(unpack(invalid)).err:find('stream ID') then
  return redis.call(unpack(invalid))
end
local groups = action == 'delete' and #redis.call('XINFO', 'GROUPS', key) or 0
-- Redis 8.2 and later: acknowledged here, and removed by the last of the groups.
if groups > 1 and redis.pcall('XACKDEL', key, group, 'ACKED', 'IDS', 1, '0-0').err then
  return redis.error_reply('GROUPS ' .. groups)
end
redis.call('XACK', key, group, '0-0')
if groups == 1 then
  redis.call('XDEL', key, '0-0')
end
redis.call('XADD', dead, '*', unpack(fields))
if groups > 1 then
  redis.call('XACKDEL', key, group, 'ACKED', 'IDS', 1, id)
  return {}
end
redis.call('XACK', key, group, id)
if groups == 1 then
  redis.call('XDEL', key, id)
end
return {}
