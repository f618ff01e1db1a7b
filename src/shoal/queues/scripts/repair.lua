-- What operators do with the content of a queue.
--
--   KEYS[1]  prefix of the queue
--   ARGV     version, caller, number of the call, operation, then its arguments
--     pause change          stop giving out keys (odd) or continue (even), unless the store knows a later change;
--                           returns the latest. It moves with shards, so the latest wins whatever way it comes
--     purge count           drop up to `count` keys, messages and delayed messages; returns how many messages, and
--                           how many of all: fewer than `count` if nothing is left. Shards that are not open here stay:
--                           they are being copied, or are elsewhere
--     forget id...          drop dead letters
--     replay id             put a dead letter back: to the head of a halted key, otherwise to the tail
--     release shard key     let a halted key continue with its next message
--
-- A call that comes again, because its reply was lost, gets the same reply again. One that is older than the last call
-- of its caller changes nothing.

local function not_open(shard)
  return redis.error_reply('MOVING shard ' .. shard .. ' is not open on this store')
end

local refused = load_version(ARGV[1])
if refused then
  return refused
end
local caller, number, operation = ARGV[2] or '', ARGV[3], ARGV[4]
if #caller == 0 or #caller > NAME_BYTES_MAX or not whole(number, NUMBER_MAX) then
  return malformed('the name of a caller, or the number of its call, is not valid')
end
local now_callers = prefix .. 'producers:' .. text(state.producers)
local line = redis.call('HGET', now_callers, caller)
if not line and redis.call('HLEN', now_callers) >= PRODUCERS_MAX then
  return redis.error_reply('CROWDED the queue had ' .. text(PRODUCERS_MAX) .. ' producers in the last minutes')
end
line = line or redis.call('HGET', prefix .. 'producers:' .. text(1 - state.producers), caller) or ''
local last, first, second = string.match(line, '^(%d+) (%d+) ?(%d*)$')
-- guard: repair_sequence
if last == number then
  return second == '' and tonumber(first) or {tonumber(first), tonumber(second)}
elseif last and tonumber(last) > tonumber(number) then
  return redis.error_reply('LATE a later call of this caller came before this one')
end
-- end: repair_sequence

-- The last step of every operation.
local function told(reply, more)
  rotate_producers()
  local name = prefix .. 'producers:' .. text(state.producers)
  redis.call('HSET', name, caller, number .. ' ' .. text(reply) .. (more and ' ' .. text(more) or ''))
  save_state()
  return more and {reply, more} or reply
end

if operation == 'pause' then
  local change = whole(ARGV[5], NUMBER_MAX)
  if not change then
    return malformed('the number of a change is not a whole number')
  end
  local known = tonumber(redis.call('HGET', prefix .. 'shards', 'paused') or conf.paused)
  if change > known then
    redis.call('HSET', prefix .. 'shards', 'paused', text(change))
    known, conf.paused = change, change % 2
    save_conf()
    offer()
  end
  return told(known)
elseif operation == 'purge' then
  local count = whole(ARGV[5], PAGE_MAX)
  if not count then
    return malformed('a page has up to ' .. text(PAGE_MAX) .. ' messages')
  end
  local shards = {}
  for number = 0, conf.shards - 1 do
    if is_open(number) then
      shards[#shards + 1] = text(number)
    end
  end
  return told(drop_page(shards, count))
elseif operation == 'forget' then
  local shards = {}
  if #ARGV > PAGE_MAX then
    return malformed('a call drops less than ' .. text(PAGE_MAX) .. ' dead letters')
  end
  for at = 5, #ARGV do
    if not is_entry(ARGV[at]) then
      return malformed('a dead letter has another name')
    end
  end
  for at = 5, #ARGV do
    local entry = redis.call('XRANGE', prefix .. 'dead', ARGV[at], ARGV[at])[1]
    shards[ARGV[at]] = entry and entry[2][2]
    if entry and not is_open(entry[2][2]) then
      return not_open(entry[2][2])
    end
  end
  local count = 0
  for id, shard in pairs(shards) do
    count = count + redis.call('XDEL', prefix .. 'dead', id)
    redis.call('ZREM', prefix .. shard .. ':dead', id)
  end
  return told(count)
elseif operation == 'replay' then
  local name = ARGV[5]
  if not is_entry(name) then
    return malformed('a dead letter has another name')
  end
  local entry = redis.call('XRANGE', prefix .. 'dead', name, name)[1]
  if not entry then
    return told(0)
  end
  local letter = {}
  for at = 1, #entry[2], 2 do
    letter[entry[2][at]] = entry[2][at + 1]
  end
  if state.messages >= conf.messages_max or state.bytes + #letter.body > conf.bytes_max then
    return redis.error_reply('FULL the queue has no room for the dead letter')
  end
  local shard, key = letter.shard, letter.key
  if not is_open(shard) then
    return not_open(shard)
  end
  redis.call('XDEL', prefix .. 'dead', name)
  redis.call('ZREM', prefix .. shard .. ':dead', name)
  state.messages, state.bytes = state.messages + 1, state.bytes + #letter.body
  local record = read_record(shard, key)
  if record and record.owner == HALTED then
    redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
    drop_record(shard, key)
    if redis.call('LPUSH', messages_key(shard, key), letter.body) == 1 then
      state.keys = state.keys + 1
    end
    make_ready(shard, {key}, 'LPUSH')
  else
    add_message(shard, key, letter.body, 'RPUSH')
  end
  offer()
  return told(1)
elseif operation == 'release' then
  local shard, key = ARGV[5] or '', ARGV[6] or ''
  if not is_shard(shard) or not is_key(key) then
    return malformed('the shard or the key is not valid')
  end
  if not is_open(shard) then
    return not_open(shard)
  end
  local record = read_record(shard, key)
  if not record or record.owner ~= HALTED then
    return told(0)
  end
  redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
  drop_record(shard, key)
  if redis.call('LLEN', messages_key(shard, key)) > 0 then
    make_ready(shard, {key}, 'LPUSH')
  end
  offer()
  return told(1)
end
return malformed('there is no such operation of a queue')
