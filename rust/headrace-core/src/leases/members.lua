-- The members that share the streams of a group.
--
-- KEYS[1] a hash: the name of each member, with the time (ms) until which it counts; and under "" how often streams were released,
--   and 2^32 times how often streams were pinned or freed.
-- ARGV: member, how long it counts (ms; 0: it leaves), how many streams it has released.
-- Returns that count, then the names of all members.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] == '0' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], now + ARGV[2])
end
local released = ARGV[3] ~= '0' and redis.call('HINCRBY', KEYS[1], '', ARGV[3]) or tonumber(redis.call('HGET', KEYS[1], '')) or 0
local reply, all = {released}, redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if all[at] ~= '' then
    if (tonumber(all[at + 1]) or 0) > now then
      reply[#reply + 1] = all[at]
    else
      redis.call('HDEL', KEYS[1], all[at])
    end
  end
end
return reply
