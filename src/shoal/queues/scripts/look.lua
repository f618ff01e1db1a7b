-- Look at a queue. Changes nothing; a reply is bounded in messages and bytes.
--
--   KEYS[1]  prefix of the queue
--   ARGV     operation, then its arguments
--     stats                 CONF, STATE, and what the state does not count
--     load shard...         for telemetry: STATE, consumers, dead letters, halted keys, and for each shard: ready keys,
--                           held keys, delayed messages, messages put and done (samples), messages of some ready keys
--                           and how many keys these are, the begin of the next message
--     keys shard count      keys of one shard, some of those with a record first: key, messages, owner ('-' waits for a
--                           retry, '' is ready), attempts, ms of life of the owner's lease
--     peek shard key start count    messages of a key
--     dead start count      dead letters after id `start`

local COUNT_MAX, PAGE, REPLY_BYTES_MAX = 1024, 8, 16777216

local operation = ARGV[1]
local refused = load_conf()
if refused then
  return refused
end

local function first_ready()
  local shard = redis.call('ZRANGE', prefix .. 'ready', 0, 0)[1]
  if not shard then
    return nil
  end
  return shard, redis.call('LINDEX', prefix .. shard .. ':ready', 0)
end

local function state_line()
  return string.format(
    '%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d', state.now, state.wall, state.counter, state.messages,
    state.bytes, state.keys, state.owned, state.ready, state.delayed, state.ids, state.ids_old, state.generation,
    state.generation_at, state.buried, state.puts, state.put_bytes, state.dones, state.producers, state.producers_at
  )
end

if operation == 'stats' then
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
  for at = 2, #ARGV do
    if #ARGV > conf.shards + 1 or not is_shard(ARGV[at]) then
      return malformed('a shard is not valid')
    end
  end
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
end

local count = whole(ARGV[#ARGV], NUMBER_MAX)
if not count then
  return malformed('the last word of this operation is a count')
end
count = math.min(count, COUNT_MAX)

-- Read pages until there are enough entries or bytes.
local function in_pages(read, size_of)
  local found, bytes = {}, 0
  while #found < count and bytes < REPLY_BYTES_MAX do
    local page = read(found[#found], #found, math.min(PAGE, count - #found))
    for _, one in ipairs(page) do
      found[#found + 1] = one
      bytes = bytes + size_of(one)
    end
    if #page == 0 then
      break
    end
  end
  return found
end

if operation == 'keys' and #ARGV == 3 and is_shard(ARGV[2]) then
  local shard, found, seen = ARGV[2], {}, {}
  local owned = redis.call('HSCAN', prefix .. shard .. ':owners', '0', 'COUNT', text(count))[2]
  for at = 1, math.min(#owned, 2 * count), 2 do
    local record = read_record(shard, owned[at])
    local lease = redis.call('ZSCORE', prefix .. 'leases', record.owner)
    local length = redis.call('LLEN', messages_key(shard, owned[at]))
    local lives_ms = lease and math.max(tonumber(lease) - state.now, 0) or -1
    local owner = record.owner
    if owner == UNHELD and not redis.call('ZSCORE', prefix .. 'due', 'k:' .. shard .. ':' .. owned[at]) then
      owner = '' -- given back: only its attempts are remembered
    end
    found[#found + 1] = {owned[at], length, owner, record.attempts, lives_ms}
    seen[owned[at]] = true
  end
  for _, key in ipairs(redis.call('LRANGE', prefix .. shard .. ':ready', 0, count - 1)) do
    if not seen[key] and #found < count then
      found[#found + 1] = {key, redis.call('LLEN', messages_key(shard, key)), '', 0, -1}
    end
  end
  return found
elseif operation == 'peek' and #ARGV == 5 and is_shard(ARGV[2]) and is_key(ARGV[3]) and whole(ARGV[4], NUMBER_MAX) then
  local name, start = messages_key(ARGV[2], ARGV[3]), tonumber(ARGV[4])
  return in_pages(function(_, had, page)
    return redis.call('LRANGE', name, text(start + had), text(start + had + page - 1))
  end, string.len)
elseif operation == 'dead' and #ARGV == 3 and (ARGV[2] == '' or is_entry(ARGV[2])) then
  return in_pages(function(last, _, page)
    local start = last and '(' .. last[1] or ARGV[2] == '' and '-' or '(' .. ARGV[2]
    return redis.call('XRANGE', prefix .. 'dead', start, '+', 'COUNT', text(page))
  end, function(entry)
    local bytes = 0
    for _, word in ipairs(entry[2]) do
      bytes = bytes + #word
    end
    return bytes
  end)
end
return malformed('there is no such operation of a queue, or its arguments are not valid')
