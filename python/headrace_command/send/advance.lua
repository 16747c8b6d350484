-- Lets an import go on with its next block, if no other process has taken it over.
-- KEYS: the marker, the checkpoint.
-- ARGV: the marker as it must be, or its beginning with a space at the end; the next marker, and how many seconds it lives;
-- the next checkpoint, and how many seconds that lives.
-- Replies: nothing, or the marker that is there instead.
local found = redis.call('GET', KEYS[1]) or ''
local expected = ARGV[1]
if string.sub(expected, -1) == ' ' then
    found = string.sub(found, 1, #expected)
end
if found ~= expected then
    return redis.call('GET', KEYS[1]) or ''
end
redis.call('SET', KEYS[2], ARGV[4], 'EX', ARGV[5])
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return false
