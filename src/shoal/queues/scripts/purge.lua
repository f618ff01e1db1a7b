-- Deleting what a queue holds, in pages: for the scripts `repair` (purge) and `admin` (drop). Both leave nothing half
-- deleted: a key that a consumer holds is taken from it first.

local PAGE_MAX = 1024 -- keys and messages of one call

-- Drop the messages of a key, up to `count`; return how many, and whether the key is gone.
local function drop_messages(shard, key, count)
  local name = messages_key(shard, key)
  local bodies = redis.call('LPOP', name, text(count)) or {}
  for _, body in ipairs(bodies) do
    state.bytes = state.bytes - #body
  end
  state.messages = state.messages - #bodies
  return #bodies, redis.call('EXISTS', name) == 0
end

-- The first fields of a hash, at least one if there is one.
local function some_fields(name, count)
  local cursor, found = '0', {}
  repeat
    local page = redis.call('HSCAN', name, cursor, 'COUNT', text(count))
    cursor = page[1]
    for at = 1, #page[2], 2 do
      found[#found + 1] = page[2][at]
    end
  until cursor == '0' or #found > 0
  return found
end

-- A key of the ready ones, or one with a record, loses its messages. Return how many, and whether it is gone.
local function drop_key(shard, key, ready, count)
  local record = read_record(shard, key)
  local had = redis.call('EXISTS', messages_key(shard, key)) == 1
  local dropped, gone = drop_messages(shard, key, count)
  if record then
    if record.owner ~= UNHELD and record.owner ~= HALTED then
      state.owned = state.owned - 1
    end
    drop_record(shard, key)
    redis.call('ZREM', prefix .. 'due', 'k:' .. shard .. ':' .. key)
    redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
  end
  if gone then
    if ready then
      pop_ready(shard)
    end
    if had then
      state.keys = state.keys - 1
    end
  elseif not ready then
    make_ready(shard, {key}, 'LPUSH')
  end
  return dropped, gone
end

local function drop_delayed(shard, serial)
  local line = redis.call('HGET', prefix .. shard .. ':delayed', serial)
  local size, start = string.match(line, '^(%d+):()')
  redis.call('HDEL', prefix .. shard .. ':delayed', serial)
  redis.call('ZREM', prefix .. 'due', 'm:' .. shard .. ':' .. serial)
  state.delayed = state.delayed - 1
  state.messages = state.messages - 1
  state.bytes = state.bytes - (#line - start - size + 1)
end

-- Drop up to `count` keys, messages and delayed messages of these shards. Return how many messages were dropped, and 0 if
-- there was nothing.
local function drop_page(shards, count)
  local dropped, room = 0, count
  for _, shard in ipairs(shards) do
    local ready = true
    while room > 0 do
      local key = ready and redis.call('LINDEX', prefix .. shard .. ':ready', 0)
      local keys = {key or nil}
      if not key then
        ready = false
        flush_records()
        keys = some_fields(prefix .. shard .. ':owners', room)
      end
      if #keys == 0 then
        break
      end
      for at = 1, math.min(#keys, room) do
        if room > 0 then
          local count_of, gone = drop_key(shard, keys[at], ready, room)
          dropped, room = dropped + count_of, room - math.max(count_of, 1)
          ready = ready or not gone
        end
      end
    end
    local serials = room > 0 and some_fields(prefix .. shard .. ':delayed', room) or {}
    while room > 0 and #serials > 0 do
      for at = 1, math.min(#serials, room) do
        drop_delayed(shard, serials[at])
        dropped, room = dropped + 1, room - 1
      end
      serials = room > 0 and some_fields(prefix .. shard .. ':delayed', room) or {}
    end
  end
  return dropped, count - room
end
