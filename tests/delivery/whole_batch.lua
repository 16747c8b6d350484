-- The script of earlier versions, which numbered the rows of a batch whatever their stream: for test_exactly_once_streams.py.
-- ARGV: the batch's version; where the marker must be at least; the number of the first row; how many rows there are; how
-- many seconds the marker lives; whether something is to be written even if all rows are there. Then for each row the
-- number of its arguments, and these: what XADD has behind the key.
-- Replies: how many rows were there before, why the next one was not written (empty: all were), the entry IDs.

-- What has its own code outside of scripts only, as each server says it inside: an ACL's refusals, and what a cluster that is
-- down says where it may be read. Redis 6.2 says no code at all.
local codes = {
    {'^ERR ACL failure in script: ', 'NOPERM '},
    {"^ERR The user executing the script can't ", "NOPERM The user executing the script can't "},
    {'^ERR (.* write command .*while the cluster is down and readonly)$', 'CLUSTERDOWN %1'},
}

-- Redis 6.2 says where in the script an error came up, before the error. Not more than a reply to a run has room for: the
-- name of a user may be long.
local function plain(message)
    local said, elsewhere = string.gsub(message, '^@user_script:%s*%d+:%s*', '')
    said = string.sub(string.gsub(string.gsub(said, '^%-', ''), '%s+$', ''), 1, 512)
    if elsewhere > 0 and not string.match(said, '^[A-Z]+ ') then
        said = 'ERR ' .. said
    end
    for _, code in ipairs(codes) do
        local found, count = string.gsub(said, code[1], code[2])
        if count > 0 then
            return found
        end
    end
    return said
end

local function set_marker(row)
    local set = redis.pcall('SET', KEYS[2], ARGV[1] .. string.format(' %.0f', row), 'EX', ARGV[5])
    return set.err and plain(set.err)
end

-- WAIT covers only what its own connection wrote: without a write it would prove nothing of rows that were there before.
local function all_written(found, count)
    local set = ARGV[6] == '1' and redis.pcall('SET', KEYS[2], found, 'EX', ARGV[5])
    if set and set.err then
        return redis.error_reply('UNCOVERED ' .. plain(set.err))
    end
    return {count, ''}
end

local version, from, first, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, marker = redis.pcall('GET', KEYS[2]), 0
if type(found) == 'table' then
    return redis.error_reply(plain(found.err))
elseif found then
    local its_version, its_row = string.match(found, '^(%d+) (%d+)$')
    if not its_version then
        return redis.error_reply('BAD_MARKER the key of the marker holds something else')
    elseif tonumber(its_version) > version then
        return all_written(found, count)
    elseif tonumber(its_version) == version then
        marker = tonumber(its_row)
    end
end
if marker < from then
    return redis.error_reply(string.format('GAP %.0f', marker))
end
local done = math.min(math.max(marker - first, 0), count)
if done == count then
    return all_written(found, count)
end
local reply = {done, ''}
-- The marker first: once a row is written, nothing may fail.
local refused = set_marker(first + count)
if refused and done > 0 and ARGV[6] == '1' then
    return redis.error_reply(refused)
elseif refused then
    return {done, refused}
end
local place = 7
for row = 0, count - 1 do
    local arguments = tonumber(ARGV[place])
    if row >= done then
        local id = redis.pcall('XADD', KEYS[1], unpack(ARGV, place + 1, place + arguments))
        if type(id) ~= 'string' then
            set_marker(first + row)
            reply[2] = id and plain(id.err) or 'NO_STREAM'
            break
        end
        reply[#reply + 1] = id
    end
    place = place + 1 + arguments
end
return reply
