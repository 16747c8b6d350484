-- The lease of a stream: who may move the position of a group in it. All times are those of the server's clock.
--
-- KEYS[1] the lease, a hash: owner, epoch, until (ms), position; KEYS[2] the stream.
-- ARGV: action, group, member, lease (ms), then
-- "take": where a new group begins, and 1 if the stream may be created for it.
--   Returns {epoch, position or "", last delivered ID, number of entries up to there or ""}, or {0, ms until it is free, owner},
--   or {-1, 0, the only member that may take it}.
-- "keep", "release": epoch, then if there is a commit: position, ID, number of entries up to it or "".
--   Returns 1, or 0: the lease is another one, and nothing has changed.
local lease, stream = KEYS[1], KEYS[2]
local action, group, member = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', lease, 'owner', 'epoch', 'until', 'position', 'pinned')
local owner, epoch = held[1] or '', tonumber(held[2] or '0')

if action == 'take' then
  local left = tonumber(held[3] or '0') - now
  if held[5] and held[5] ~= member then
    return {-1, 0, held[5]}
  end
  if owner ~= '' and owner ~= member and left > 0 then
    return {0, left, owner}
  end
  local create = {'XGROUP', 'CREATE', stream, group, ARGV[5]}
  if ARGV[6] == '1' then
    create[#create + 1] = 'MKSTREAM'
  end
  local created = redis.pcall(unpack(create))
  if type(created) == 'table' and created.err and not string.find(created.err, 'BUSYGROUP', 1, true) then
    return created
  end
  local last, read, pending = '0-0', '', 0
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local about = {}
    for at = 1, #each, 2 do
      about[each[at]] = each[at + 1]
    end
    if about['name'] == group then
      last, read, pending = about['last-delivered-id'], about['entries-read'] or '', about['pending']
    end
  end
  if pending > 0 then
    return redis.error_reply('PENDING ' .. pending)
  end
  -- A failover may have rolled the epoch back: no time comes twice.
  epoch = math.max(epoch + 1, now)
  redis.call('HSET', lease, 'owner', member, 'epoch', epoch, 'until', now + ARGV[4])
  return {epoch, held[4] or '', last, read}
end

if owner ~= member or epoch ~= tonumber(ARGV[5]) then
  return 0
end
if action == 'release' then
  redis.call('HSET', lease, 'owner', '', 'until', 0)
else
  redis.call('HSET', lease, 'until', now + ARGV[4])
end
if ARGV[6] then
  redis.call('HSET', lease, 'position', ARGV[6])
  -- The position of the group is for tools that show its lag. Before Redis 7.0 groups do not count.
  local set = {'XGROUP', 'SETID', stream, group, ARGV[7]}
  local counts = ARGV[8] ~= '' and redis.pcall('XGROUP', 'SETID', stream, group, ARGV[7], 'ENTRIESREAD', ARGV[8])
  if not counts or counts.err then
    redis.pcall(unpack(set))
  end
end
return 1
