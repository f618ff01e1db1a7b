-- What becomes of keys that consumers hold: their messages are done or dead letters, and they go back.

local function drop_record(shard, key)
  local record = read_record(shard, key)
  if record then
    note_holder(returned, record.listed, shard, key)
  end
  records_of(shard)[key] = false
  record_changed(shard, key)
end

-- A held key is free again. Its record stays while the attempts of its head must be remembered.
local function release(shard, key, record, side)
  state.owned = state.owned - 1
  if record.attempts > 0 or record.suspect > 0 then
    record.owner, record.token = UNHELD, '-'
    start_count(record)
    write_record(shard, key, record)
  else
    drop_record(shard, key)
  end
  make_ready(shard, {key}, side)
end

local done_room = DONE_MAX
local SIZES_PAGE = 32 -- messages that are read at once for their size

-- The size of the first messages of a held key.
local function size_of_first(name, count)
  local bytes = 0
  for start = 0, count - 1, SIZES_PAGE do
    local page = redis.call('LRANGE', name, text(start), text(math.min(start + SIZES_PAGE, count) - 1))
    for at = 1, #page do
      bytes = bytes + #page[at]
    end
  end
  return bytes
end

-- Remove the messages of a held key up to number `upto` of this token; return how many messages are left, and whether any
-- was removed.
local function remove_done(shard, key, record, upto)
  local name = messages_key(shard, key)
  local count, left = upto, redis.call('LLEN', name)
  -- guard: done_once
  count = upto - record.base
  -- end: done_once
  if count <= 0 then
    return left, false
  end
  local removed, bytes = math.min(count, left), record.sized_bytes
  if upto ~= record.sized or removed < count then
    bytes = size_of_first(name, removed)
  end
  redis.call('LTRIM', name, text(removed), '-1')
  state.bytes = state.bytes - bytes
  state.messages, state.dones = state.messages - removed, state.dones + removed
  local phase = state.dones + state.wall
  local samples = math.floor(phase / COUNTED) - math.floor((phase - removed) / COUNTED)
  if samples > 0 then
    count_work('d', shard, samples * COUNTED)
  end
  done_room = done_room - removed
  record.sized_bytes = math.max(record.sized_bytes - bytes, 0)
  record.base, record.sized = upto, math.max(record.sized, upto)
  record.attempts, record.started, record.suspect = 0, 0, 0
  return left - removed, true
end

local function close_key(shard, key, held)
  drop_record(shard, key)
  state.keys = state.keys - 1
  if held then
    state.owned = state.owned - 1
  end
end

-- Move the head of a held key to the dead letters, then free the key. If there is no room, or if the queue says so, the
-- key is halted until an operator acts. Return whether there was room.
local function bury(shard, key, record, reason)
  local room = redis.call('XLEN', prefix .. 'dead') < conf.dead_max
  if room then
    local body = redis.call('LPOP', messages_key(shard, key))
    local number = text(next_number())
    local id = number .. '-0'
    redis.call('ZADD', prefix .. shard .. ':dead', number, id)
    redis.call(
      'XADD', prefix .. 'dead', id, 'shard', shard, 'key', key, 'reason', reason, 'attempts', text(record.attempts),
      'at', text(state.wall), 'body', body
    )
    state.messages = state.messages - 1
    state.bytes = state.bytes - #body
    state.buried = state.buried + 1
    record.attempts, record.suspect = 0, 0
  end
  local left = redis.call('LLEN', messages_key(shard, key))
  if not room or conf.halt == 1 then
    if left == 0 then
      state.keys = state.keys - 1
    end
    state.owned = state.owned - 1
    record.owner, record.token = HALTED, '-'
    start_count(record)
    write_record(shard, key, record)
    redis.call('SADD', prefix .. 'halted', shard .. ':' .. key)
  elseif left == 0 then
    close_key(shard, key, true)
  else
    release(shard, key, record, 'LPUSH')
  end
  return room
end

local function add_message(shard, key, body, side)
  local length = redis.call(side, messages_key(shard, key), body)
  if length == 1 then
    state.keys = state.keys + 1
  end
  local first = true
  -- guard: one_owner
  first = length == 1 and not read_record(shard, key)
  -- end: one_owner
  if first then
    make_ready(shard, {key}, 'RPUSH')
  end
end
