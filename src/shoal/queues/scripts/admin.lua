-- Create, inspect and change a queue. No consumer or producer waits for these operations; long ones come in pages.
--
--   KEYS[1]  prefix of the queue
--   ARGV     operation, then its arguments
--     create CONF... letters    make the queue, with the state of each shard (none: all are open); if it exists with
--                           the same version, only tell so
--     configure CONF...     replace its limits
--     pause 0|1             stop or continue giving out keys
--     stats                 CONF, STATE, and what the state does not count
--     load shard...         for telemetry: STATE, consumers, dead letters, halted keys, and for each shard: ready keys,
--                           held keys, delayed messages, messages put and done (samples), messages of some ready keys
--                           and how many keys these are, the begin of the next message
--     keys shard count      keys of one shard: key, messages, owner, attempts, ms of life of the owner's lease
--     peek shard key start count    messages of a key
--     purge count           drop up to `count` keys or delayed messages with all their messages; how many were dropped
--     drop count            the same, and with nothing left the queue itself
--     dead start count      dead letters after id `start`
--     forget id...          drop dead letters
--     replay id             put a dead letter back: to the head of a halted key, otherwise to the tail
--     release shard key     let a halted key continue with its next message
--     halted                halted keys

local operation = ARGV[1]

local CONF = 12 -- numbers of CONF

local function conf_words()
  return {unpack(ARGV, 2, CONF + 1)}
end

local refused = load_conf()
if operation == 'create' then
  if not refused then
    if conf.version ~= tonumber(ARGV[2]) then
      return redis.error_reply('OTHERVERSION ' .. text(conf.version))
    end
    return 0
  end
  make_queue(conf_words(), ARGV[CONF + 2])
  return 1
end
if refused then
  return refused
end

-- Purging leaves shards alone that are not open here: they are being copied, or are elsewhere.
local function drop_page(count)
  local dropped, visited = 0, 0
  local shards = {}
  for number = 0, conf.shards - 1 do
    if operation == 'drop' or is_open(number) then
      shards[#shards + 1] = text(number)
    end
  end
  for _, shard in ipairs(shards) do
    local keys = {}
    local owners = redis.call('HKEYS', prefix .. shard .. ':owners')
    if visited < count then
      for _, key in ipairs(redis.call('LRANGE', prefix .. shard .. ':ready', 0, count - visited - 1)) do
        keys[#keys + 1] = {key, true}
      end
    end
    visited = visited + #keys
    for _, key in ipairs(owners) do
      if visited < count then
        keys[#keys + 1] = {key, false}
        visited = visited + 1
      end
    end
    for _, one in ipairs(keys) do
      local key, ready = one[1], one[2]
      local record = read_record(shard, key)
      local bodies = redis.call('LRANGE', messages_key(shard, key), 0, -1)
      if ready then
        pop_ready(shard)
      elseif redis.call('LREM', prefix .. shard .. ':ready', 0, key) > 0 then
        state.ready = state.ready - 1
        if redis.call('LLEN', prefix .. shard .. ':ready') == 0 then
          redis.call('ZREM', prefix .. 'ready', shard)
        end
      end
      if #bodies > 0 then
        redis.call('UNLINK', messages_key(shard, key))
        local held = record and record.owner ~= UNHELD and record.owner ~= HALTED
        close_key(shard, key, held)
        redis.call('ZREM', prefix .. 'due', 'k:' .. shard .. ':' .. key)
        redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
      else
        drop_record(shard, key)
        redis.call('SREM', prefix .. 'halted', shard .. ':' .. key)
      end
      for _, body in ipairs(bodies) do
        state.bytes = state.bytes - #body
      end
      state.messages = state.messages - #bodies
      dropped = dropped + #bodies
    end
    local delayed = redis.call('HKEYS', prefix .. shard .. ':delayed')
    for _, serial in ipairs(delayed) do
      if visited < count then
        visited = visited + 1
        local line = redis.call('HGET', prefix .. shard .. ':delayed', serial)
        local size, start = string.match(line, '^(%d+):()')
        redis.call('HDEL', prefix .. shard .. ':delayed', serial)
        redis.call('ZREM', prefix .. 'due', 'm:' .. shard .. ':' .. serial)
        state.delayed = state.delayed - 1
        state.messages = state.messages - 1
        state.bytes = state.bytes - (#line - start - size + 1)
        dropped = dropped + 1
      end
    end
  end
  return dropped, visited
end

if operation == 'configure' then
  local version, paused, letters = conf.version, conf.paused, shut
  read_conf(table.concat(conf_words(), ' '))
  conf.version, conf.paused, shut = version, paused, letters
  save_conf()
  return 1
elseif operation == 'pause' then
  conf.paused = tonumber(ARGV[2])
  save_conf()
  offer()
  save_state()
  return 1
elseif operation == 'stats' then
  local first = false
  local shard, key = first_ready()
  if shard then
    first = redis.call('LINDEX', messages_key(shard, key), 0)
  end
  return {
    conf_line(), state_line(), redis.call('ZCARD', prefix .. 'leases'),
    redis.call('ZCARD', prefix .. 'waiting'), redis.call('XLEN', prefix .. 'dead'),
    redis.call('SCARD', prefix .. 'halted'), first,
  }
elseif operation == 'load' then
  local SAMPLE, BEGIN = 8, 512
  local work = redis.call('HGETALL', prefix .. 'work')
  for at = 1, #work, 2 do
    work[work[at]] = work[at + 1]
  end
  local found = {
    state_line(), redis.call('ZCARD', prefix .. 'leases'), redis.call('XLEN', prefix .. 'dead'),
    redis.call('SCARD', prefix .. 'halted'),
  }
  for at = 2, #ARGV do
    local shard, messages, first = ARGV[at], 0, ''
    local keys = redis.call('LRANGE', prefix .. shard .. ':ready', 0, SAMPLE - 1)
    for _, key in ipairs(keys) do
      messages = messages + redis.call('LLEN', messages_key(shard, key))
    end
    if keys[1] then
      first = string.sub(redis.call('LINDEX', messages_key(shard, keys[1]), 0) or '', 1, BEGIN)
    end
    found[#found + 1] = {
      redis.call('LLEN', prefix .. shard .. ':ready'), redis.call('HLEN', prefix .. shard .. ':owners'),
      redis.call('HLEN', prefix .. shard .. ':delayed'), work['p' .. shard] or '0', work['d' .. shard] or '0', messages,
      #keys, first,
    }
  end
  return found
elseif operation == 'keys' then
  local shard, found = ARGV[2], {}
  local owned = redis.call('HGETALL', prefix .. shard .. ':owners')
  local seen = {}
  for at = 1, #owned, 2 do
    if #found < tonumber(ARGV[3]) then
      local record = read_record(shard, owned[at])
      local lease = redis.call('ZSCORE', prefix .. 'leases', record.owner)
      local length = redis.call('LLEN', messages_key(shard, owned[at]))
      local lives_ms = lease and math.max(tonumber(lease) - state.now, 0) or -1
      found[#found + 1] = {owned[at], length, record.owner, record.attempts, lives_ms}
    end
    seen[owned[at]] = true
  end
  for _, key in ipairs(redis.call('LRANGE', prefix .. shard .. ':ready', 0, ARGV[3] - 1)) do
    if not seen[key] and #found < tonumber(ARGV[3]) then
      found[#found + 1] = {key, redis.call('LLEN', messages_key(shard, key)), '', 0, -1}
    end
  end
  return found
elseif operation == 'peek' then
  return redis.call('LRANGE', messages_key(ARGV[2], ARGV[3]), ARGV[4], ARGV[4] + ARGV[5] - 1)
elseif operation == 'purge' or operation == 'drop' then
  local dropped, visited = drop_page(tonumber(ARGV[2]))
  save_state()
  if visited == 0 and operation == 'drop' then
    local names = {
      'conf', 'state', 'ready', 'due', 'leases', 'waiting', 'turns', 'dead', 'halted', 'shards', 'work', 'producers:0',
      'producers:1',
    }
    for at, name in ipairs(names) do
      names[at] = prefix .. name
    end
    for number = 0, conf.shards - 1 do
      for _, name in ipairs({':ready', ':owners', ':delayed', ':dead', ':due', ':ship', ':ids:0', ':ids:1'}) do
        names[#names + 1] = prefix .. text(number) .. name
      end
    end
    redis.call('UNLINK', unpack(names))
  end
  return {dropped, visited}
elseif operation == 'dead' then
  local start = ARGV[2] == '' and '-' or '(' .. ARGV[2]
  return redis.call('XRANGE', prefix .. 'dead', start, '+', 'COUNT', ARGV[3])
elseif operation == 'forget' then
  local shards = {}
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
  local shard, key = ARGV[2], ARGV[3]
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
elseif operation == 'halted' then
  local keys = redis.call('SMEMBERS', prefix .. 'halted')
  table.sort(keys)
  return keys
end
return redis.error_reply('ERR unknown operation of a queue: ' .. operation)
