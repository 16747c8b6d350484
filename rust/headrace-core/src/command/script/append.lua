-- Appends a run of rows to a stream and moves the marker of their batch, in one step.
-- KEYS: the stream, the marker.
-- ARGV: the batch's version; where the marker must be at least; the number of the first row; how many rows there are; how
-- many seconds the marker lives; whether something is to be written even if all rows are there; nothing, or, if the batch has
-- several streams, how many rows this one had before there was another; the form of the rows.
--   'whole': for each row the number of its arguments, and these: what XADD has behind the key.
-- The other forms send once what all rows share: NOMKSTREAM or nothing; the number of arguments that trim, and these; the
-- number of arguments behind the fields, and these. Then
--   'one': the name of the only field. For each row its value.
--   'all': the number of fields, and their names. For each row the values.
--   'sparse': the same, and the number of sets of fields, and for each set as many characters as there are fields: '1' for a
--   field that is there. For each row the number of its set, and the values of the fields that are there.
--   'all packed', 'sparse packed': the same, but what each row has is in one argument, as strings of MessagePack.
-- Replies: how many rows were there before, why the next one was not written (empty: all were), how many rows were appended,
-- their entry IDs. Of more than two IDs that the server chose in one millisecond only the first and the last: in between they
-- follow each other.

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

-- In a batch of several streams a marker counts the rows of its stream, and says so: earlier versions counted those of the
-- whole batch, and refuse it.
local of_stream = ARGV[7] == '' and '' or ' s'
local function set_marker(row)
    local set = redis.pcall('SET', KEYS[2], ARGV[1] .. string.format(' %.0f', row) .. of_stream, 'EX', ARGV[5])
    return set.err and plain(set.err)
end

-- WAIT covers only what its own connection wrote: without a write it would prove nothing of rows that were there before.
local function all_written(found, count)
    local set = ARGV[6] == '1' and redis.pcall('SET', KEYS[2], found, 'EX', ARGV[5])
    if set and set.err then
        return redis.error_reply('UNCOVERED ' .. plain(set.err))
    end
    return {count, '', 0}
end

-- What a server might lack is looked up before anything is written.
local unpack_limit, loadstring = cmsgpack.unpack_limit, loadstring
local version, from, first, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found, marker = redis.pcall('GET', KEYS[2]), 0
if type(found) == 'table' then
    return redis.error_reply(plain(found.err))
elseif found then
    local its_version, its_row, its_kind = string.match(found, '^(%d+) (%d+)( ?s?)$')
    if not its_version or its_kind == ' ' or its_kind == 's' then
        return redis.error_reply('BAD_MARKER the key of the marker holds something else')
    elseif tonumber(its_version) > version then
        return all_written(found, count)
    elseif tonumber(its_version) == version then
        marker = tonumber(its_row)
        if its_kind == ' s' then
            of_stream = ' s'
        elseif of_stream == ' s' and marker > tonumber(ARGV[7]) then
            return redis.error_reply('BAD_MARKER the marker counts the rows of all streams of its batch, as earlier versions '
                .. 'of headrace did')
        end
    end
end
if marker < from then
    local name = string.gsub(string.sub(KEYS[1], 1, 100), '%c', '?')
    return redis.error_reply(string.format('GAP %.0f %.0f %s', marker, from, name))
end
local done = math.min(math.max(marker - first, 0), count)
if done == count then
    return all_written(found, count)
end
-- The marker first: once a row is written, nothing may fail.
local refused = set_marker(first + count)
if refused and done > 0 and ARGV[6] == '1' then
    return redis.error_reply(refused)
elseif refused then
    return {done, refused, 0}
end
-- Locals are faster than globals.
local pcall, key, arguments = redis.pcall, KEYS[1], ARGV
local form, place = arguments[8], 9
-- The entry IDs, and in the last place what XADD said to a row that it did not write: an error, which is a table without
-- length, or false, if there is no stream. The function type() takes 600 instructions of the server.
local ids, appended = {}, 0

local function take()
    place = place + 1
    return arguments[place - 1]
end

-- What all rows share: where the arguments behind the fields are and how many; the rows that need more than these, if any;
-- and what writes such a row, whose fields are in `fields`, from `from` to `to`.
local function shared()
    local nomkstream, trim_count = take(), tonumber(take())
    local trim = place
    place = place + trim_count
    local tail_count = tonumber(take())
    local tail = place
    place = place + tail_count
    -- Only the first row may have to create the stream. It is enough that the last one trims: no client sees the stream in
    -- between.
    local first, last = nomkstream ~= '' and done, trim_count > 0 and count - 1
    local function add(row, fields, from, to)
        local call = {}
        if row == first then
            call[1] = nomkstream
        end
        if row == last then
            for at = trim, trim + trim_count - 1 do
                call[#call + 1] = arguments[at]
            end
        end
        call[#call + 1] = '*'
        for at = from, to do
            call[#call + 1] = fields[at]
        end
        return pcall('XADD', key, unpack(call))
    end
    return tail, tail_count, first, last, add
end

-- Makes what writes rows of so many values, as long as they have the same set of fields: a table that is filled and unpacked
-- for each row costs more. `read`: how many values it reads for a row. Its errors are those of the script.
local function compile(values, read, has_tail)
    local names, its, both = {}, {}, {}
    for at = 1, values do
        local name, value = 'n' .. at, 'v' .. at
        names[at], its[at], both[at] = name, value, name .. ',' .. value
    end
    names, its, both = table.concat(names, ','), table.concat(its, ','), table.concat(both, ',')
    return loadstring('local pcall,key,from,rows,ids,a,b=... return function(own,' .. names .. ') '
        .. 'return function(at,row,last) local id,set,' .. its .. ' repeat '
        .. 'at,' .. its .. ',set=from(rows,' .. read .. ',at) '
        .. "id=pcall('XADD',key,'*'," .. both .. (has_tail and ',a,b' or '') .. ') '
        .. 'row=row+1 ids[row]=id until row==last or set~=own or not id or #id==0 return at,set,row end end', '@user_script')
end

if form == 'whole' then
    for row = 0, count - 1 do
        local length = tonumber(take())
        if row >= done then
            local id = pcall('XADD', key, unpack(arguments, place, place + length - 1))
            appended = appended + 1
            ids[appended] = id
            if not id or #id == 0 then
                break
            end
        end
        place = place + length
    end
elseif form == 'one' then
    local tail, tail_count, first, last, add = shared()
    local name, a, b = take(), arguments[tail], arguments[tail + 1]
    local first_value = place
    for row = done, count - 1 do
        local id
        if row == first or row == last then
            id = add(row, {name, arguments[first_value + row], a, b}, 1, 2 + tail_count)
        elseif tail_count == 0 then
            id = pcall('XADD', key, '*', name, arguments[first_value + row])
        else
            id = pcall('XADD', key, '*', name, arguments[first_value + row], a, b)
        end
        appended = appended + 1
        ids[appended] = id
        if not id or #id == 0 then
            break
        end
    end
else
    local tail, tail_count, first, last, add = shared()
    local names, name_count = place + 1, tonumber(take())
    place = place + name_count
    -- A set of fields: an XADD with room for their values, how long it is, how many values there are.
    local function set_of(is_there)
        local call, values = {'XADD', key, '*'}, 0
        for at = 0, name_count - 1 do
            if not is_there or string.sub(is_there, at + 1, at + 1) == '1' then
                values = values + 1
                call[2 + 2 * values] = arguments[names + at]
                call[3 + 2 * values] = ''
            end
        end
        for at = 0, tail_count - 1 do
            call[4 + 2 * values + at] = arguments[tail + at]
        end
        return {call = call, to = 3 + 2 * values + tail_count, values = values}
    end
    local is_sparse, sets, every, number = string.sub(form, 1, 6) == 'sparse', {}, nil, nil
    if is_sparse then
        for at = 1, tonumber(take()) do
            sets[tostring(at)] = set_of(take())
        end
    else
        every = set_of()
    end
    -- Reads so many values: where the next one is, and these. Behind the last one of packed ones that is at -1.
    local rows, at, read = arguments, place, function(from, values, at)
        return at + values, unpack(from, at, at + values - 1)
    end
    if string.sub(form, -6) == 'packed' then
        rows, at, read = take(), 0, unpack_limit
    end
    -- The number of a row's set is read with the row before it.
    local more = 0
    if is_sparse then
        more, at, number = 1, read(rows, 1, at)
    end
    local function fill(set)
        local call, values = set.call, set.values
        local found = at >= 0 and values + more > 0 and {read(rows, values + more, at)} or {at}
        for value = 1, values do
            call[3 + 2 * value] = found[1 + value]
        end
        at, number = found[1], found[2 + values]
        return call
    end
    for _ = 1, done do
        fill(every or sets[number])
    end
    local left, makers = count - done, {}
    while appended < left do
        local row, set = done + appended, every or sets[number]
        local values = set.values
        -- Code takes about as long to make as to write ten rows. A function of Lua has up to 60 variables from outside.
        if row == first or row == last or left < 64 or values == 0 or values > 50 then
            local call = fill(set)
            appended = appended + 1
            if row == first or row == last then
                ids[appended] = add(row, call, 4, set.to)
            else
                ids[appended] = pcall(unpack(call, 1, set.to))
            end
        else
            if not set.write then
                local own = {}
                for value = 1, values do
                    own[value] = set.call[2 + 2 * value]
                end
                makers[values] = makers[values] or compile(values, values + more, tail_count > 0)(
                    pcall, key, read, rows, ids, arguments[tail], arguments[tail + 1])
                set.write = makers[values](number, unpack(own))
            end
            at, number, appended = set.write(at, appended, last and left - 1 or left)
        end
        local id = ids[appended]
        if not id or #id == 0 then
            break
        end
    end
end
local refusal = ids[appended]
if refusal and #refusal > 0 then
    refusal = nil
else
    refusal = refusal and plain(refusal.err) or 'NO_STREAM'
    appended = appended - 1
    set_marker(first + done + appended)
end
local reply = {done, refusal or '', appended}
-- The milliseconds as text: a number of Lua has 53 bits.
if form ~= 'whole' and appended > 2 and string.match(ids[1], '^%d+') == string.match(ids[appended], '^%d+') then
    reply[4], reply[5] = ids[1], ids[appended]
else
    for at = 1, appended do
        reply[3 + at] = ids[at]
    end
end
return reply
