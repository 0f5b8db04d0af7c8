"""The three scripts that run inside Redis, each atomically on the keys of one slot. No I/O.

The scripts only move fields; `resolve.py` makes all decisions. Arguments and replies are msgpack, one string each: to
write and read a thousand arguments would cost more than the script itself.

A field is `(sorted set, hash, name)`, where one of the two keys may be missing (0). In the sorted set it is the member
`name NUL value`, in the hash the field `name`; it is never in both. Its seal is the last 8 bytes of its value.
"""

from dataclasses import dataclass
from hashlib import sha1

_SLICE = 2000  # of arguments of one call: Lua's stack holds 8,000

_CURRENT = f"""
local function current_values(sorted_key, hash_key, names)
    local current = {{}}
    if hash_key and redis.call('EXISTS', hash_key) == 1 then
        for first = 1, #names, {_SLICE} do
            local last = math.min(first + {_SLICE} - 1, #names)
            local found = redis.call('HMGET', hash_key, unpack(names, first, last))
            for i = first, last do current[i] = found[i - first + 1] end
        end
    end
    if sorted_key and redis.call('EXISTS', sorted_key) == 1 then
        for i = 1, #names do
            if not current[i] then
                local name = names[i]
                local found = redis.call('ZRANGEBYLEX', sorted_key, '[' .. name .. '\\0', '(' .. name .. '\\1',
                    'LIMIT', 0, 1)
                if found[1] then current[i] = string.sub(found[1], #name + 2) end
            end
        end
    end
    return current
end
"""

_READ = (
    _CURRENT
    + """
-- ARGV[1]: a list of {number of the sorted set or 0, number of the hash or 0, names}. Returns a list of lists of values
-- (false for none).
local found = {}
for g, group in ipairs(cmsgpack.unpack(ARGV[1])) do
    local current = current_values(KEYS[group[1]], KEYS[group[2]], group[3])
    found[g] = {}
    for i = 1, #group[3] do found[g][i] = current[i] or false end
end
return cmsgpack.pack(found)
"""
)

_SWAP = (
    _CURRENT
    + f"""
-- ARGV[1]: a list of {{sorted set or 0, hash or 0, names, seals, values, in hash, constant}}: `seals` by position, of
-- the values that are expected (none: no such field), `values` as long as names ('' removes the field), `in hash` by
-- position; with `constant`, a field that already has its new value matches too.
-- ARGV[2]: '' or the field of the hash KEYS[1] that counts the changes.
-- All or nothing. Returns {{changes, list of {{group, position, value or false}} of the fields that do not match}}.
local groups = cmsgpack.unpack(ARGV[1])
local currents, stale = {{}}, {{}}
for g, group in ipairs(groups) do
    local current = current_values(KEYS[group[1]], KEYS[group[2]], group[3])
    local seals = group[4]
    for i = 1, #group[3] do
        local value = current[i]
        if (value and string.sub(value, -8) or nil) ~= seals[i] and not (group[7] and value == group[5][i]) then
            stale[#stale + 1] = {{g - 1, i - 1, value or false}}
        end
    end
    currents[g] = current
end
if #stale > 0 then
    return cmsgpack.pack({{ARGV[2] ~= '' and tonumber(redis.call('HGET', KEYS[1], ARGV[2])) or 0, stale}})
end
local function write(command, key, arguments)
    for first = 1, #arguments, {_SLICE} do
        redis.call(command, key, unpack(arguments, first, math.min(first + {_SLICE} - 1, #arguments)))
    end
end
for g, group in ipairs(groups) do
    local sorted_key, hash_key, names, values, in_hash = KEYS[group[1]], KEYS[group[2]], group[3], group[5], group[6]
    local removed, added, dropped, set = {{}}, {{}}, {{}}, {{}}
    for i, name in ipairs(names) do
        local value, old = values[i], currents[g][i]
        local to_hash = value ~= '' and (in_hash[i] or not sorted_key)
        if to_hash then
            set[#set + 1] = name
            set[#set + 1] = value
        end
        if sorted_key and old then removed[#removed + 1] = name .. '\\0' .. old end
        if hash_key and old and not to_hash then dropped[#dropped + 1] = name end
        if value ~= '' and not to_hash then
            added[#added + 1] = 0
            added[#added + 1] = name .. '\\0' .. value
        end
    end
    write('ZREM', sorted_key, removed)
    write('HDEL', hash_key, dropped)
    write('ZADD', sorted_key, added)
    write('HSET', hash_key, set)
end
return cmsgpack.pack({{ARGV[2] ~= '' and redis.call('HINCRBY', KEYS[1], ARGV[2], 1) or 0, {{}}}})
"""
)

_SCAN = """
-- ARGV[1]: {number of members, list of {lowest, highest}}, one for each key, as ZRANGEBYLEX takes them. Returns a list
-- of lists of members; it may be shorter than that of keys, and its last list than the range, once the number is
-- reached.
local wanted = cmsgpack.unpack(ARGV[1])
local left, found = wanted[1], {}
for i, range in ipairs(wanted[2]) do
    if left <= 0 then break end
    found[i] = redis.call('ZRANGEBYLEX', KEYS[i], range[1], range[2], 'LIMIT', 0, left)
    left = left - #found[i]
end
return cmsgpack.pack(found)
"""


@dataclass(frozen=True, slots=True)
class Script:
    text: bytes
    digest: bytes

    @classmethod
    def of(cls, text: str) -> "Script":
        encoded = text.encode()
        # Redis names scripts by their SHA-1; this is not for security.
        return cls(encoded, sha1(encoded, usedforsecurity=False).hexdigest().encode())


READ = Script.of(_READ)
SWAP = Script.of(_SWAP)
SCAN = Script.of(_SCAN)
