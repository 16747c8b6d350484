-- The lease of a stream: who may move the position of a group in it. All times are those of the server's clock.
--
-- KEYS[1] the lease, a hash: owner, instance (the process of that name), epoch, until (ms), position, commit (its number within the
--   epoch), pinned; KEYS[2] the stream.
-- ARGV: action, group, member, instance, lease (ms), then
-- "take": where a new group begins, 1 if the stream may be created for it, 1 if a lease of another process of this name is taken.
--   Returns {epoch, position or "", last delivered ID, number of entries up to there or ""}, or {0, ms until it is free, owner},
--   or {-1, 0, the only member that may take it}.
-- "keep", "release": epoch, then if there is a commit: position, ID, number of entries up to it or "", number of the commit.
--   Returns 1; or the owner of another lease, or "", and nothing has changed.
local lease, stream = KEYS[1], KEYS[2]
local action, group, member, instance = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', lease, 'owner', 'instance', 'epoch', 'until', 'position', 'pinned', 'commit')
local owner, epoch = held[1] or '', tonumber(held[3]) or 0

if action == 'take' then
  local left = (tonumber(held[4]) or 0) - now
  if held[6] and held[6] ~= member then
    return {-1, 0, held[6]}
  end
  local is_own = owner == member and (held[2] == instance or ARGV[8] == '1')
  if owner ~= '' and not is_own and left > 0 then
    return {0, left, owner}
  end
  local create = {'XGROUP', 'CREATE', stream, group, ARGV[6]}
  if ARGV[7] == '1' then
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
  redis.call('HSET', lease, 'owner', member, 'instance', instance, 'epoch', epoch, 'until', now + ARGV[5], 'commit', 0)
  return {epoch, held[5] or '', last, read}
end

-- What was given up and not taken since is given up again: the reply was lost.
if epoch ~= tonumber(ARGV[6]) or (owner ~= member and (owner ~= '' or action ~= 'release')) then
  -- After a failover it may be an older one, of this process or of one of this name that has ended.
  return (held[2] == instance or epoch < tonumber(ARGV[6])) and '' or owner
end
if action == 'release' then
  redis.call('HSET', lease, 'owner', '', 'until', 0)
else
  redis.call('HSET', lease, 'until', now + ARGV[5])
end
-- A command of a connection that was lost may come after later ones: it does not move the position back.
if ARGV[7] and tonumber(ARGV[10]) > (tonumber(held[7]) or 0) then
  redis.call('HSET', lease, 'position', ARGV[7], 'commit', ARGV[10])
  -- The position of the group is for tools that show its lag. Before Redis 7.0 groups do not count.
  local counts = ARGV[9] ~= '' and redis.pcall('XGROUP', 'SETID', stream, group, ARGV[8], 'ENTRIESREAD', ARGV[9])
  if (not counts or counts.err) and redis.pcall('XGROUP', 'SETID', stream, group, ARGV[8]).err then
    redis.pcall('XGROUP', 'CREATE', stream, group, ARGV[8])
  end
end
return 1
