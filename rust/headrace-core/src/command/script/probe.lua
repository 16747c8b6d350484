-- Says whether the script that appends could do its work, as a status reply. Writes nothing.
-- KEYS: the stream, the marker. ARGV: the hash of the script that appends.
if redis.acl_check_cmd then -- since Redis 7.0
    for _, command in ipairs({
        {'EVALSHA', ARGV[1], '2', KEYS[1], KEYS[2]},
        {'XADD', KEYS[1], '*', 'f', 'v'},
        {'GET', KEYS[2]},
        {'SET', KEYS[2], 'v', 'EX', '1'},
    }) do
        -- It raises an error over a command that the server does not have.
        local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
        if not known then
            return redis.status_reply('lacks ' .. command[1])
        elseif not allowed then
            return redis.status_reply('denies ' .. command[1])
        end
    end
end
-- A user who may not ask is believed: the error reply of a denied command is a table.
local memory = redis.pcall('INFO', 'memory')
if type(memory) == 'string' and string.match(memory, 'maxmemory:(%d+)') ~= '0' then
    local policy = string.match(memory, 'maxmemory_policy:(%S+)')
    if policy and policy ~= 'noeviction' then
        return redis.status_reply('evicts ' .. policy)
    end
end
return redis.status_reply('ready')
