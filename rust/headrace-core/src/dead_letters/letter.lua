-- The fields of a dead letter: those of the entry, and what became of it.
local function letter(fields, key, id, reason, failures)
  local tail = {'dead:stream', key, 'dead:id', id, 'dead:reason', reason, 'dead:failures', failures}
  if #fields > 7000 then
    -- A script can pass about 8,000 values to a command. The names and values become one value: the length of each, ':', itself.
    local parts = {}
    for at, part in ipairs(fields) do
      parts[2 * at - 1] = #part .. ':'
      parts[2 * at] = part
    end
    fields = {}
    tail[#tail + 1] = 'dead:fields'
    tail[#tail + 1] = table.concat(parts)
  end
  for _, part in ipairs(tail) do
    fields[#fields + 1] = part
  end
  return fields
end

