-- The lease of a stream: who may move the position of a group in it. All times are those of the server's clock.
--
-- KEYS[1] the lease, a hash: owner, instance (the process of that name), epoch, until (ms), position, committed_at (ms), commit (the
--   number of the last change within the epoch), moved (the number of entries moved within the epoch), pinned (the member that alone
--   may take it); and of the entries after the position: limit (the most that a batch has; 0: as many as usual), failures of the
--   first one, alone (1 if it is alone in its batch), reason, failed (its ID).
-- KEYS[2] the stream; KEYS[3], if entries may be moved: where to. `letter.lua` comes before it.
-- ARGV: action, group, member, instance, lease (ms), then
-- "take": where a new group begins, 1 if the stream may be created for it, 1 if a lease of another process of this name is taken,
--   the number of entries of a usual batch, 1 if it is taken only if it is pinned to this member. Returns {epoch, position or "",
--   last delivered ID, number of entries up to there or "", limit, failures, reason, failed or ""}, or {0, ms until it is free,
--   owner}, or {-1, 0, the only member that may take it, or "": it is not pinned}.
-- "keep", "release": epoch; number of the change, or "" if it has none; position, ID, number of entries up to it or "", or "" three
--   times; limit, failures, alone, reason, failed, or "" five times; for each entry that is moved, all up to the position: its number
--   within the epoch, ID, reason, failures. Returns 1, 2 if the lease is pinned to this member, 3 if to another one; or the owner of
--   another lease, or "", and nothing has changed.
local lease, stream = KEYS[1], KEYS[2]
local action, group, member, instance = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', lease, 'owner', 'instance', 'epoch', 'until', 'position', 'pinned', 'commit',
  'limit', 'failures', 'alone', 'reason', 'moved', 'failed')
local owner, epoch = held[1] or '', tonumber(held[3]) or 0

if action == 'take' then
  local left = (tonumber(held[4]) or 0) - now
  if (held[6] or ARGV[10] == '1') and held[6] ~= member then
    return {-1, 0, held[6] or ''}
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
  local limit, failures, reason = tonumber(held[8]) or 0, tonumber(held[9]) or 0, held[11] or ''
  if owner ~= '' and not (owner == member and held[2] == instance) then
    -- Its process has ended, perhaps because of an entry that it had.
    limit = math.max(1, math.floor((limit > 0 and limit or ARGV[9]) / 2))
    if held[10] == '1' then
      failures, reason = failures + 1, 'the process that had it ended'
    end
  end
  redis.call('HSET', lease, 'owner', member, 'instance', instance, 'epoch', epoch, 'until', now + ARGV[5], 'commit', 0, 'moved', 0,
    'limit', limit, 'failures', failures, 'alone', 0, 'reason', reason)
  return {epoch, held[5] or '', last, read, limit, failures, reason, held[13] or ''}
end

-- What was given up and not taken since is given up again: the reply was lost.
if epoch ~= tonumber(ARGV[6]) or (owner ~= member and (owner ~= '' or action ~= 'release')) then
  -- After a failover it may be an older one, of this process or of one of this name that has ended.
  return (held[2] == instance or epoch < tonumber(ARGV[6])) and '' or owner
end
local moved = tonumber(held[12]) or 0
for at = 16, #ARGV, 4 do
  if tonumber(ARGV[at]) > moved then
    local entry = redis.call('XRANGE', stream, ARGV[at + 1], ARGV[at + 1])[1]
    if entry then
      redis.call('XADD', KEYS[3], '*', unpack(letter(entry[2], stream, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])))
    end
    moved = tonumber(ARGV[at])
    redis.call('HSET', lease, 'moved', moved)
  end
end
if action == 'release' then
  redis.call('HSET', lease, 'owner', '', 'until', 0)
else
  redis.call('HSET', lease, 'until', now + ARGV[5])
end
local kept = not held[6] and 1 or held[6] == member and 2 or 3
-- A command of a connection that was lost may come after later ones: it does not move the position back.
if ARGV[7] == '' or tonumber(ARGV[7]) <= (tonumber(held[7]) or 0) then
  return kept
end
redis.call('HSET', lease, 'commit', ARGV[7])
if ARGV[11] ~= '' then
  redis.call('HSET', lease, 'limit', ARGV[11], 'failures', ARGV[12], 'alone', ARGV[13], 'reason', ARGV[14],
    'failed', ARGV[15])
end
if ARGV[8] ~= '' then
  redis.call('HSET', lease, 'position', ARGV[8], 'committed_at', now)
  -- The position of the group is for tools that show its lag. Before Redis 7.0 groups do not count.
  local counts = ARGV[10] ~= '' and redis.pcall('XGROUP', 'SETID', stream, group, ARGV[9], 'ENTRIESREAD', ARGV[10])
  if (not counts or counts.err) and redis.pcall('XGROUP', 'SETID', stream, group, ARGV[9]).err then
    redis.pcall('XGROUP', 'CREATE', stream, group, ARGV[9])
  end
end
return kept
