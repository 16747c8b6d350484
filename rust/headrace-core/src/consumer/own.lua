-- Acknowledges pending entries, or claims them again, if this consumer still owns them.
--
-- KEYS[1] stream. ARGV: group, consumer, action, idle, count, then the IDs, ascending.
-- action: "ack"; "delete" (and remove the entries); "claim" (idle in ms; count of deliveries, or "" to leave it).
-- Returns the IDs of which this consumer was not the owner, each followed by "gone" (not pending), "other" (another consumer's)
-- or "deleted" (the stream no longer has the entry).
local key, group, consumer, action = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local ids = {unpack(ARGV, 6)}
local total = #ids
-- One look at the range. Where it has too many other entries, one look per ID.
local most = 2 * total
local pending = redis.call('XPENDING', key, group, ids[1], ids[total], most + 1, consumer)
-- Mostly the range has these entries and no other one. To compare them fills no table.
local same = 0
while same < total and pending[same + 1] and pending[same + 1][1] == ids[same + 1] do
  same = same + 1
end
local owned, rest = ids, {}
if same < total then
  local is_complete, mine = #pending <= most, {}
  for _, entry in ipairs(pending) do
    mine[entry[1]] = true
  end
  owned = {}
  for _, id in ipairs(ids) do
    if mine[id] or not is_complete and #redis.call('XPENDING', key, group, id, id, 1, consumer) == 1 then
      owned[#owned + 1] = id
    else
      rest[#rest + 1] = id
      rest[#rest + 1] = #redis.call('XPENDING', key, group, id, id, 1) == 0 and 'gone' or 'other'
    end
  end
end
if #owned == 0 then
  return rest
end
if action == 'claim' then
  local command = {'XCLAIM', key, group, consumer, 0, unpack(owned)}
  command[#command + 1] = 'IDLE'
  command[#command + 1] = ARGV[4]
  if ARGV[5] ~= '' then
    command[#command + 1] = 'RETRYCOUNT'
    command[#command + 1] = ARGV[5]
  end
  command[#command + 1] = 'JUSTID'
  local claimed = {}
  for _, id in ipairs(redis.call(unpack(command))) do
    claimed[id] = true
  end
  for _, id in ipairs(owned) do
    if not claimed[id] then
      rest[#rest + 1] = id
      rest[#rest + 1] = 'deleted'
    end
  end
  return rest
end
if action == 'delete' then
  local groups = #redis.call('XINFO', 'GROUPS', key)
  if groups > 1 then
    -- Redis 8.2 and later: acknowledged here, and removed by the last of the groups.
    if redis.pcall('XACKDEL', key, group, 'ACKED', 'IDS', #owned, unpack(owned)).err then
      return redis.error_reply('GROUPS ' .. groups)
    end
    return rest
  end
end
redis.call('XACK', key, group, unpack(owned))
if action == 'delete' then
  redis.call('XDEL', key, unpack(owned))
end
return rest
