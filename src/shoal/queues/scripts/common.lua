-- Shared by all scripts of queues: the stored state of one queue on one store, and the steps that several scripts take.
-- The loader puts this text before each script. docs/protocol-queues.md has the layout of the keys.
--
-- Rules of these scripts: Redis does not undo a script, so everything is checked before the first write. Numbers are
-- written with `text`, because Lua prints large ones in scientific notation. Only commands of Redis 6.2 are used.
-- A block between `-- guard: NAME` and `-- end: NAME` is a rule of the protocol that the simulator can remove.

local CLOCK_STEP_MS_MAX = 1000 -- a call advances the queue's clock by no more, whatever the server's clock does
local EXPIRED_MAX = 32 -- consumers whose leases one call ends
local DUE_MAX = 64 -- delayed messages and retries that one call makes ready
local UNHELD, HALTED = '-', '!' -- owners of keys that no consumer holds

local prefix = KEYS[1]
local conf, state = {}, {}
local shut = nil -- a letter for each shard, if one of them is not open here: see is_open
local CONF = {
  'version', 'shards', 'messages_max', 'bytes_max', 'keys_max', 'attempts_max', 'dedupe_ms', 'ids_max', 'dead_max',
  'lease_ms', 'halt', 'paused',
}
local STATE = {
  'now', 'wall', 'counter', 'messages', 'bytes', 'keys', 'owned', 'ready', 'delayed', 'ids', 'ids_old', 'generation',
  'generation_at', 'buried',
}

local function text(number)
  return string.format('%.0f', number)
end

-- Read the numbers of a line; return the word behind them, if there is one.
local function read_numbers(names, line, into)
  local at = 1
  for word in string.gmatch(line, '%S+') do
    if not names[at] then
      return word
    end
    into[names[at]] = tonumber(word)
    at = at + 1
  end
end

local function write_numbers(names, from)
  local words = {}
  for at, name in ipairs(names) do
    words[at] = text(from[name] or 0)
  end
  return table.concat(words, ' ')
end

-- The queue's own clock: milliseconds that never jump. Leases, retries and delays are measured on it.
local function advance_clock()
  local time = redis.call('TIME')
  local wall = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local step = wall - state.wall
  -- guard: clock_clamp
  step = math.min(step, CLOCK_STEP_MS_MAX)
  -- end: clock_clamp
  state.now = state.now + math.max(step, 0)
  state.wall = wall
end

local function load_conf()
  local line = redis.call('GET', prefix .. 'conf')
  if not line then
    return redis.error_reply('NOQUEUE there is no such queue on this store')
  end
  shut = read_numbers(CONF, line, conf)
  read_numbers(STATE, redis.call('GET', prefix .. 'state') or '', state)
  advance_clock()
  return nil
end

local function load_version(version)
  local refused = load_conf()
  if refused then
    return refused
  end
  if tonumber(version) ~= conf.version then
    return redis.error_reply('OTHERVERSION ' .. text(conf.version))
  end
  return nil
end

local function save_conf()
  local line = write_numbers(CONF, conf)
  if shut then
    line = line .. ' ' .. shut
  end
  redis.call('SET', prefix .. 'conf', line)
end

-- The state of a shard on this store: o open, s sealed (it is being copied to another store), i importing, m moved away,
-- a never here, x abandoned (the plan has placed it elsewhere, without what is here). A line without letters means that all shards are open.
local function letter_of(shard)
  return shut and string.sub(shut, shard + 1, shard + 1) or 'o'
end

local function is_open(shard)
  return not shut or string.byte(shut, shard + 1) == 111
end

local function save_state()
  redis.call('SET', prefix .. 'state', write_numbers(STATE, state))
end

-- A new queue: `conf` and `shut` are set.
local function make_queue()
  if shut and not string.find(shut, '[^o]') then
    shut = nil
  end
  for _, name in ipairs(STATE) do
    state[name] = 0
  end
  local time = redis.call('TIME')
  state.wall = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  state.counter = 1
  save_conf()
  save_state()
end

local function not_open(shard)
  return redis.error_reply('MOVING shard ' .. shard .. ' is not open on this store')
end

local function next_number()
  state.counter = state.counter + 1
  return state.counter
end

-- Remembered ids and producers are in two generations. The older one is dropped when the current one is `dedupe_ms` old.
local function rotate_generations()
  if state.now - state.generation_at < conf.dedupe_ms then
    return
  end
  state.generation = 1 - state.generation
  state.generation_at = state.now
  state.ids_old = state.ids
  state.ids = 0
  local old = {prefix .. 'producers:' .. text(state.generation)}
  for shard = 0, conf.shards - 1 do
    old[#old + 1] = prefix .. text(shard) .. ':ids:' .. text(state.generation)
  end
  redis.call('UNLINK', unpack(old))
  save_state()
end

local function messages_key(shard, key)
  return prefix .. shard .. ':k:' .. key
end

-- The record of a key that is held, or whose head has failed: owner, token, attempts of the head, whether the head was
-- started under this token, messages done under this token, and whether a consumer died that may have started the head.
local function read_record(shard, key)
  local line = redis.call('HGET', prefix .. shard .. ':owners', key)
  if not line then
    return nil
  end
  local owner, token, attempts, started, base, suspect = string.match(line, '^(%S+) (%S+) (%d+) (%d) (%d+) (%d)$')
  return {
    owner = owner,
    token = token,
    attempts = tonumber(attempts),
    started = tonumber(started),
    base = tonumber(base),
    suspect = tonumber(suspect),
  }
end

local function write_record(shard, key, record)
  local words = {
    record.owner, record.token, text(record.attempts), text(record.started), text(record.base), text(record.suspect),
  }
  redis.call('HSET', prefix .. shard .. ':owners', key, table.concat(words, ' '))
end

local function drop_record(shard, key)
  redis.call('HDEL', prefix .. shard .. ':owners', key)
end

-- Ready keys are a list for each shard, and the shards with ready keys take turns.
local function make_ready(shard, key, side)
  if redis.call(side, prefix .. shard .. ':ready', key) == 1 then
    redis.call('ZADD', prefix .. 'ready', text(next_number()), shard)
  end
  state.ready = state.ready + 1
end

local function first_ready()
  local shard = redis.call('ZRANGE', prefix .. 'ready', 0, 0)[1]
  if not shard then
    return nil
  end
  return shard, redis.call('LINDEX', prefix .. shard .. ':ready', 0)
end

local function pop_ready(shard)
  redis.call('LPOP', prefix .. shard .. ':ready')
  state.ready = state.ready - 1
  if redis.call('LLEN', prefix .. shard .. ':ready') == 0 then
    redis.call('ZREM', prefix .. 'ready', shard)
  else
    redis.call('ZADD', prefix .. 'ready', text(next_number()), shard)
  end
end

local function next_token()
  return text(conf.version) .. '.' .. text(next_number())
end

local function grant(shard, key, consumer, token)
  local record = read_record(shard, key) or {attempts = 0, suspect = 0}
  pop_ready(shard)
  record.owner, record.token, record.started, record.base = consumer, token, 0, 0
  write_record(shard, key, record)
  state.owned = state.owned + 1
  return record
end

-- A held key is free again. Its record stays while the attempts of its head must be remembered.
local function release(shard, key, record, side)
  state.owned = state.owned - 1
  if record.attempts > 0 or record.suspect > 0 then
    record.owner, record.token, record.started, record.base = UNHELD, '-', 0, 0
    write_record(shard, key, record)
  else
    drop_record(shard, key)
  end
  make_ready(shard, key, side)
end

-- Remove the messages of a held key up to number `upto` of this token; return how many are left.
local function remove_done(shard, key, record, upto)
  local count = upto
  -- guard: done_once
  count = upto - record.base
  -- end: done_once
  if count > 0 then
    local done = redis.call('LPOP', messages_key(shard, key), text(count)) or {}
    for _, body in ipairs(done) do
      state.bytes = state.bytes - #body
    end
    state.messages = state.messages - #done
    record.base = upto
    record.attempts, record.started, record.suspect = 0, 0, 0
  end
  return redis.call('LLEN', messages_key(shard, key))
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
    record.owner, record.token, record.started, record.base = HALTED, '-', 0, 0
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
  first = length == 1 and not redis.call('HGET', prefix .. shard .. ':owners', key)
  -- end: one_owner
  if first then
    make_ready(shard, key, 'RPUSH')
  end
end

local function framed(part)
  return text(#part) .. ':' .. part
end

-- Give ready keys to waiting consumers, the least loaded first: each gets one key, pushed to its inbox with the first
-- message and the number of other ready keys. A consumer that does not listen is skipped; it takes when it is back.
local function offer()
  while state.ready > 0 and conf.paused == 0 do
    local consumer = redis.call('ZRANGE', prefix .. 'waiting', 0, 0)[1]
    if not consumer then
      return
    end
    redis.call('ZREM', prefix .. 'waiting', consumer)
    local shard, key = first_ready()
    local record = read_record(shard, key) or {attempts = 0, suspect = 0}
    local token = next_token()
    local left = redis.call('LLEN', messages_key(shard, key))
    local body = redis.call('LINDEX', messages_key(shard, key), 0)
    local parts = {
      shard, key, token, text(record.attempts), text(record.suspect), text(left), text(state.ready - 1), body,
    }
    for at, part in ipairs(parts) do
      parts[at] = framed(part)
    end
    if redis.call('PUBLISH', prefix .. 'in:' .. consumer, table.concat(parts)) > 0 then
      grant(shard, key, consumer, token)
    end
  end
end
