-- What operators do with the content of a queue.
--
--   KEYS[1]  prefix of the queue
--   ARGV     operation, then its arguments
--     pause 0|1             stop or continue giving out keys
--     purge count           drop up to `count` keys, messages and delayed messages; returns how many messages, and 0 if
--                           nothing is left. Shards that are not open here stay: they are being copied, or are elsewhere
--     forget id...          drop dead letters
--     replay id             put a dead letter back: to the head of a halted key, otherwise to the tail
--     release shard key     let a halted key continue with its next message

local operation = ARGV[1]
local refused = load_conf()
if refused then
  return refused
end

local function is_entry(word)
  return word and #word < 40 and string.match(word, '^%d+%-%d+$')
end

if operation == 'pause' then
  if ARGV[2] ~= '0' and ARGV[2] ~= '1' then
    return malformed('a queue is paused or not: 1 or 0')
  end
  conf.paused = tonumber(ARGV[2])
  save_conf()
  offer()
  save_state()
  return 1
elseif operation == 'purge' then
  local count = whole(ARGV[2], PAGE_MAX)
  if not count then
    return malformed('a page has up to ' .. text(PAGE_MAX) .. ' messages')
  end
  local shards = {}
  for number = 0, conf.shards - 1 do
    if is_open(number) then
      shards[#shards + 1] = text(number)
    end
  end
  local dropped, visited = drop_page(shards, count)
  save_state()
  return {dropped, visited}
elseif operation == 'forget' then
  local shards = {}
  if #ARGV > PAGE_MAX then
    return malformed('a call drops less than ' .. text(PAGE_MAX) .. ' dead letters')
  end
  for at = 2, #ARGV do
    if not is_entry(ARGV[at]) then
      return malformed('a dead letter has another name')
    end
  end
  for at = 2, #ARGV do
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
  return count
elseif operation == 'replay' then
  if not is_entry(ARGV[2]) then
    return malformed('a dead letter has another name')
  end
  local entry = redis.call('XRANGE', prefix .. 'dead', ARGV[2], ARGV[2])[1]
  if not entry then
    return 0
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
  redis.call('XDEL', prefix .. 'dead', ARGV[2])
  redis.call('ZREM', prefix .. shard .. ':dead', ARGV[2])
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
  save_state()
  return 1
elseif operation == 'release' then
  local shard, key = ARGV[2] or '', ARGV[3] or ''
  if not is_shard(shard) or not is_key(key) then
    return malformed('the shard or the key is not valid')
  end
  if not is_open(shard) then
    return not_open(shard)
  end
  local record = read_record(shard, key)
  if not record or record.owner ~= HALTED then
    return 0
  end
  redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
  drop_record(shard, key)
  if redis.call('LLEN', messages_key(shard, key)) > 0 then
    make_ready(shard, {key}, 'LPUSH')
  end
  offer()
  save_state()
  return 1
end
return malformed('there is no such operation of a queue')
