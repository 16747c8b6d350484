-- Deletes consumers of a group for which no entry is pending: all that were idle for long enough, or one.
-- KEYS: the stream. ARGV: the group, the least idle time in milliseconds, and the one consumer if there is one.
-- Returns the command that was refused and its error, both empty if there was none, and the consumers: each with its name,
-- its number of pending entries, and whether it was deleted.
local function refused(command, reply)
    -- Before Redis 7.0 the text of an error of Lua begins with its place.
    return {command, (string.gsub(reply.err, '^@user_script: %d+: ', 'ERR ')), {}}
end

local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then
    return refused('xinfo|consumers', consumers)
end
local seen = {}
for _, fields in ipairs(consumers) do
    local consumer = {}
    for at = 1, #fields, 2 do
        consumer[fields[at]] = fields[at + 1]
    end
    -- `idle` counted from the last read that gave an entry before Redis 7.2, which calls that `inactive`. It is -1 for a
    -- consumer that never got one.
    local idle = consumer.inactive
    if not idle or idle < 0 then
        idle = consumer.idle
    end
    if (not ARGV[3] or consumer.name == ARGV[3]) and idle >= tonumber(ARGV[2]) then
        local deleted = 0
        if consumer.pending == 0 then
            local reply = redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
            if type(reply) == 'table' and reply.err then
                return refused('xgroup|delconsumer', reply)
            end
            deleted = 1
        end
        seen[#seen + 1] = {consumer.name, consumer.pending, deleted}
    end
end
return {'', '', seen}
