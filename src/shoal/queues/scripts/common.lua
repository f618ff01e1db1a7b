-- Shared by all scripts of queues: the stored state of one queue on one store, and the steps that several scripts take.
-- The loader puts this text before each script. A put is called most, and makes every function of this text anew: what it
-- does not need is in `held_keys.lua` and `settings.lua`. docs/protocol-queues.md has the layout of the keys.
--
-- Rules of these scripts: Redis does not undo a script, so everything is checked before the first write. Numbers are
-- written with `text`, because Lua prints large ones in scientific notation. Only commands of Redis 6.2 are used.
-- A block between `-- guard: NAME` and `-- end: NAME` is a rule of the protocol that the simulator can remove.

local CLOCK_STEP_MS_MAX = 1000 -- a call advances the queue's clock by no more, whatever the server's clock does
local EXPIRED_MAX = 32 -- consumers whose leases one call ends
local CLOCK_SAVE_MS = 100 -- a call that changes nothing else stores the clock if it has advanced by so much
local OFFERED_MAX = 64 -- consumers that are read at once to be offered keys
local OFFERED_KEYS_MAX, OFFERED_BYTES_MAX = 16, 262144 -- of one push; the first key always fits
local DEAF_MAX = 16 -- consumers without a listener that one call offers a key to
local DUE_MAX = 64 -- delayed messages and retries that one call makes ready
local NUMBER_MAX = 9007199254740992 -- Lua counts exactly up to here
local NAME_BYTES_MAX = 64 -- of a producer or consumer
local KEY_BYTES_MAX, ID_BYTES_MAX, BODY_BYTES_MAX = 512, 256, 33554432
local REASON_BYTES_MAX = 1024 -- of a failure; longer ones are cut
local DELAY_MS_MAX = 316224000000 -- ten years
local CONSUMERS_MAX = 10000 -- consumers with a lease
local PRODUCERS_MAX = 100000 -- producers whose last batch one generation remembers
local PRODUCERS_MS = 300000 -- how long a producer's last batch is remembered, at least; at most twice as long
local KEYS_HELD_MAX = 4096 -- keys that one consumer holds; also what one call takes from consumers that are gone
local DONE_MAX = 4096 -- messages that one turn ends
local UNHELD, HALTED = '-', '!' -- owners of keys that no consumer holds
local COUNTED = 64 -- one message in so many is counted under its shard: a count of each would cost a command of its own

local prefix = KEYS[1]
local conf, state = nil, nil
local shut = nil -- a letter for each shard, if one of them is not open here: see is_open
local stored_wall, stored_counts = 0, '' -- as the state was last stored

local function text(number)
  return string.format('%d', number)
end

-- The number that an argument of a client is: an integer from 0 to `most`, otherwise nil.
local function whole(word, most)
  local number = word and #word <= 16 and string.match(word, '^%d+$') and tonumber(word)
  return number and number <= most and number or nil
end

-- Whether a word names a dead letter.
local function is_entry(word)
  local first, second = string.match(word or '', '^(%d+)%-(%d+)$')
  return whole(first, NUMBER_MAX) and whole(second, NUMBER_MAX)
end

local function malformed(what)
  return redis.error_reply('MALFORMED ' .. what)
end

local known_shards = {}
local function is_shard(word)
  local known = known_shards[word]
  if known == nil then
    local number = whole(word, conf.shards - 1)
    known = number ~= nil and text(number) == word
    known_shards[word] = known
  end
  return known
end

local function is_key(word)
  return #word > 0 and #word <= KEY_BYTES_MAX
end

-- `conf` and `state` are written out here, name by name: each call of a script reads them, and loops over names cost as
-- much as the rest of the call.
local function read_conf(line)
  local version, shards, messages_max, bytes_max, keys_max, attempts_max, dedupe_ms, ids_max, dead_max, lease_ms, halt,
    paused, letters = string.match(
      line, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ?(%l*)$'
    )
  if not version then
    return false
  end
  conf = {
    version = version + 0, shards = shards + 0, messages_max = messages_max + 0, bytes_max = bytes_max + 0,
    keys_max = keys_max + 0, attempts_max = attempts_max + 0, dedupe_ms = dedupe_ms + 0, ids_max = ids_max + 0,
    dead_max = dead_max + 0, lease_ms = lease_ms + 0, halt = halt + 0, paused = paused + 0,
  }
  shut = letters ~= '' and letters or nil
  return true
end

-- The state is packed: each call reads and writes it, and as text that would take as long as 16 messages of a batch.
local STATE_FORMAT = 1
local COUNTS_AT = 1 + 1 + 2 * 8 -- behind the format and the two clocks
local STATE_PACKED, STATE_BYTES = '>Bddddddddddddddddddd', 1 + 19 * 8
local function read_state(line)
  if #line ~= STATE_BYTES then
    return false
  end
  local format, now, wall, counter, messages, bytes, keys, owned, ready, delayed, ids, ids_old, generation, generation_at,
    buried, puts, put_bytes, dones, producers, producers_at = struct.unpack(STATE_PACKED, line)
  local sum = now + wall + counter + messages + bytes + keys + owned + ready + delayed + ids + ids_old + generation
    + generation_at + buried + puts + put_bytes + dones + producers + producers_at
  if format ~= STATE_FORMAT or sum % 1 ~= 0 then -- also if one of them is no number
    return false
  end
  state = {
    now = now, wall = wall, counter = counter, messages = messages, bytes = bytes, keys = keys, owned = owned, ready = ready,
    delayed = delayed, ids = ids, ids_old = ids_old, generation = generation, generation_at = generation_at,
    buried = buried, puts = puts, put_bytes = put_bytes, dones = dones, producers = producers,
    producers_at = producers_at,
  }
  stored_wall, stored_counts = wall, string.sub(line, COUNTS_AT)
  return true
end

local function packed_state()
  return struct.pack(
    STATE_PACKED, STATE_FORMAT, state.now, state.wall, state.counter, state.messages, state.bytes, state.keys, state.owned,
    state.ready, state.delayed, state.ids, state.ids_old, state.generation, state.generation_at, state.buried, state.puts,
    state.put_bytes, state.dones, state.producers, state.producers_at
  )
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
  if not read_conf(line) or not read_state(redis.call('GET', prefix .. 'state') or '') then
    return redis.error_reply('DAMAGED the state of the queue on this store cannot be read')
  end
  advance_clock()
  return nil
end

local function load_version(version)
  local refused = load_conf()
  if refused then
    return refused
  end
  if version ~= text(conf.version) then
    return redis.error_reply('OTHERVERSION ' .. text(conf.version))
  end
  return nil
end

-- The state of a shard on this store: o open, s sealed (it is being copied to another store), i importing, m moved away,
-- a never here, x abandoned (the plan has placed it elsewhere, without what is here). A line without letters means that all shards are open.
local function letter_of(shard)
  return shut and string.sub(shut, shard + 1, shard + 1) or 'o'
end

local function is_open(shard)
  return not shut or string.byte(shut, shard + 1) == 111
end

-- The records of keys (see read_record) are read once and written once in a call, with one command for each shard.
local RECORDS_MAX = 256 -- records in one command: Lua cannot pass more than some thousand arguments
local records, changed, changed_shards = {}, {}, {}
local taken, returned = {}, {} -- keys that a consumer holds since, or does not hold any more, by consumer

local function note_holder(by, owner, shard, key)
  if owner and owner ~= UNHELD and owner ~= HALTED then
    local members = by[owner]
    if not members then
      members = {}
      by[owner] = members
    end
    members[#members + 1] = shard .. ':' .. key
  end
end

-- `held:<consumer>` lists the keys of a consumer. Records decide; the list only says where to look.
local function flush_holders(command, by)
  for owner, members in pairs(by) do
    for start = 1, #members, RECORDS_MAX do
      redis.call(
        command, prefix .. 'held:' .. owner, unpack(members, start, math.min(start + RECORDS_MAX - 1, #members))
      )
    end
    by[owner] = nil
  end
end

local function records_of(shard)
  local known = records[shard]
  if not known then
    known = {}
    records[shard] = known
  end
  return known
end

local function record_changed(shard, key)
  local keys = changed[shard]
  if not keys then
    keys = {}
    changed[shard] = keys
    changed_shards[#changed_shards + 1] = shard
  end
  if not keys[key] then
    keys[key] = true
    keys[#keys + 1] = key
  end
end

local function record_text(record)
  return string.format(
    '%s %s %d %d %d %d %d %d', record.owner, record.token, record.attempts, record.started, record.base, record.suspect,
    record.sized, record.sized_bytes
  )
end

-- Write the records that have changed. Call it before anything reads them from the hash itself.
local function flush_records()
  for _, shard in ipairs(changed_shards) do
    local keys, known, name = changed[shard], records[shard], prefix .. shard .. ':owners'
    for start = 1, #keys, RECORDS_MAX do
      local lines, gone = {}, {}
      for at = start, math.min(start + RECORDS_MAX - 1, #keys) do
        local key = keys[at]
        local record = known[key]
        if record then
          lines[#lines + 1], lines[#lines + 2] = key, record_text(record)
          if record.owner ~= record.listed then
            note_holder(returned, record.listed, shard, key)
            note_holder(taken, record.owner, shard, key)
            record.listed = record.owner
          end
        else
          gone[#gone + 1] = key
        end
      end
      if #lines > 0 then
        redis.call('HSET', name, unpack(lines))
      end
      if #gone > 0 then
        redis.call('HDEL', name, unpack(gone))
      end
    end
  end
  if #changed_shards > 0 then
    changed, changed_shards = {}, {}
    flush_holders('SREM', returned)
    flush_holders('SADD', taken)
  end
end

-- The last step of every call that changes something.
local function save_state()
  flush_records()
  local packed = packed_state()
  local counts = string.sub(packed, COUNTS_AT)
  if counts ~= stored_counts or math.abs(state.wall - stored_wall) >= CLOCK_SAVE_MS then
    redis.call('SET', prefix .. 'state', packed)
    stored_wall, stored_counts = state.wall, counts
  end
end

local function next_number()
  state.counter = state.counter + 1
  return state.counter
end

-- Remembered ids and batches are in two generations each. The older one is dropped when the current one is `dedupe_ms`, or
-- `PRODUCERS_MS`, old.
local function rotate_producers()
  if state.now - state.producers_at >= PRODUCERS_MS then
    state.producers, state.producers_at = 1 - state.producers, state.now
    redis.call('UNLINK', prefix .. 'producers:' .. text(state.producers))
    save_state()
  end
end

local function rotate_generations()
  rotate_producers()
  if state.now - state.generation_at < conf.dedupe_ms then
    return
  end
  state.generation = 1 - state.generation
  state.generation_at = state.now
  state.ids_old = state.ids
  state.ids = 0
  local old = {}
  for shard = 0, conf.shards - 1 do
    old[#old + 1] = prefix .. text(shard) .. ':ids:' .. text(state.generation)
  end
  redis.call('UNLINK', unpack(old))
  save_state()
end

-- Messages that were put into a shard (letter p), or done (d).
local function count_work(letter, shard, messages)
  redis.call('HINCRBY', prefix .. 'work', letter .. shard, text(messages))
end

local function messages_key(shard, key)
  return prefix .. shard .. ':k:' .. key
end

-- The record of a key that is held, or whose head has failed: owner, token, attempts of the head, whether the head was
-- started under this token, messages done under this token, whether a consumer died that may have started the head, and
-- up to which number of this token the messages have been sent, with their size, so that `done` need not read them again.
local function parse_record(line)
  if not line then
    return false
  end
  local owner, token, attempts, started, base, suspect, sized, sized_bytes = string.match(
    line, '^(%S+) (%S+) (%d+) (%d) (%d+) (%d) ?(%d*) ?(%d*)$'
  )
  return {
    owner = owner,
    listed = owner, -- the consumer in whose list the key is
    token = token,
    attempts = tonumber(attempts),
    started = tonumber(started),
    base = tonumber(base),
    suspect = tonumber(suspect),
    sized = tonumber(sized) or tonumber(base),
    sized_bytes = tonumber(sized_bytes) or 0,
  }
end

local function read_record(shard, key)
  local known = records_of(shard)
  local record = known[key]
  if record == nil then
    record = parse_record(redis.call('HGET', prefix .. shard .. ':owners', key))
    known[key] = record
  end
  return record or nil
end

-- Read the records of several keys of a shard with one command.
local function read_records(shard, keys)
  local known = records_of(shard)
  for at, line in ipairs(redis.call('HMGET', prefix .. shard .. ':owners', unpack(keys))) do
    if known[keys[at]] == nil then
      known[keys[at]] = parse_record(line)
    end
  end
  return known
end

local function write_record(shard, key, record)
  records_of(shard)[key] = record
  record_changed(shard, key)
end

-- Ready keys are a list for each shard, and the shards with ready keys take turns.
local function make_ready(shard, keys, side)
  if redis.call(side, prefix .. shard .. ':ready', unpack(keys)) == #keys then
    redis.call('ZADD', prefix .. 'ready', text(next_number()), shard)
  end
  state.ready = state.ready + #keys
end

local function pop_ready(shard, count, left)
  redis.call('LPOP', prefix .. shard .. ':ready', text(count or 1))
  state.ready = state.ready - (count or 1)
  if (left or redis.call('LLEN', prefix .. shard .. ':ready')) == 0 then
    redis.call('ZREM', prefix .. 'ready', shard)
  else
    redis.call('ZADD', prefix .. 'ready', text(next_number()), shard)
  end
end

local function next_token()
  return text(conf.version) .. '.' .. text(next_number())
end

-- Nothing is done under the token of a record.
local function start_count(record)
  record.started, record.base, record.sized, record.sized_bytes = 0, 0, 0, 0
end

-- Record the consumer of a key. The caller takes the key from the ready ones.
local function grant(shard, key, consumer, token)
  local record = read_record(shard, key) or {attempts = 0, suspect = 0}
  record.owner, record.token = consumer, token
  start_count(record)
  write_record(shard, key, record)
  state.owned = state.owned + 1
  return record
end

-- Messages were sent to the holder of a key: `count` of them from number `from` of its token on.
local function note_sent(record, from, count, bytes)
  if from == record.sized then
    record.sized, record.sized_bytes = from + count, record.sized_bytes + bytes
  end
end

local function framed(part)
  return text(#part) .. ':' .. part
end

-- The first `wanted` ready keys, or fewer: an array of {shard, keys, whether it has others}.
local GRANTS_PAGE = 8 -- keys of one shard that are granted before the next shard has its turn
local function first_keys(wanted)
  local found = {}
  for _, shard in ipairs(redis.call('ZRANGE', prefix .. 'ready', '0', text(wanted - 1))) do
    local page = math.min(wanted, GRANTS_PAGE)
    local keys = redis.call('LRANGE', prefix .. shard .. ':ready', '0', text(page)) -- one more than is used
    local others = #keys > page and 1 or 0
    keys[page + 1] = nil
    found[#found + 1] = {shard, keys, others}
    wanted = wanted - #keys
    if wanted == 0 then
      break
    end
  end
  return found
end

-- A key as a consumer gets it in its inbox, with its first message. `ready` is the number of other ready keys.
local function pushed_key(shard, key, token, record, left, ready, body)
  return table.concat({
    framed(shard), framed(key), framed(token), framed(text(record.attempts)), framed(text(record.suspect)),
    framed(text(left)), framed(text(ready)), framed(body),
  })
end

local function push(consumer, keys)
  return redis.call('PUBLISH', prefix .. 'in:' .. consumer, keys) > 0
end

-- Give a key that has just got its first message to the waiting consumer with the least load, although it was never among
-- the ready keys: with one producer and idle consumers most keys are like that. Return whether one has it now.
local function push_new_key(shard, key, body)
  local consumer = state.ready == 0 and conf.paused == 0 and redis.call('ZRANGE', prefix .. 'waiting', '0', '0')[1]
  if not consumer then
    return false
  end
  redis.call('ZREM', prefix .. 'waiting', consumer)
  local token, record = next_token(), {attempts = 0, suspect = 0}
  if not push(consumer, pushed_key(shard, key, token, record, 1, 0, body)) then
    return false
  end
  note_sent(grant(shard, key, consumer, token), 0, 1, #body)
  return true
end

-- Push keys to the inbox of a waiting consumer, each with its first message; return whether it listens. `later` is the
-- number of ready keys that other waiting consumers are about to get.
local function push_keys(consumer, wanted, later)
  local parts, granted, pops, bytes, count = {}, {}, {}, 0, 0
  for _, one in ipairs(first_keys(wanted)) do
    local shard, keys, used = one[1], one[2], 0
    local known = read_records(shard, keys)
    for at, key in ipairs(keys) do
      local name = messages_key(shard, key)
      local body = redis.call('LINDEX', name, '0')
      if count > 0 and bytes + #body > OFFERED_BYTES_MAX then
        break
      end
      used, count, bytes = at, count + 1, bytes + #body
      local record = known[key] or {attempts = 0, suspect = 0}
      local token, left = next_token(), redis.call('LLEN', name)
      granted[count] = {shard, key, token, #body}
      parts[count] = pushed_key(shard, key, token, record, left, math.max(state.ready - count - later, 0), body)
    end
    if used > 0 then
      pops[#pops + 1] = {shard, used, #keys - used + one[3]}
    end
    if used < #keys then
      break
    end
  end
  if not push(consumer, table.concat(parts)) then
    return false
  end
  for _, one in ipairs(pops) do
    pop_ready(one[1], one[2], one[3])
  end
  for _, one in ipairs(granted) do
    note_sent(grant(one[1], one[2], consumer, one[3]), 0, 1, one[4])
  end
  return true
end

-- Give ready keys to waiting consumers, the least loaded first: each gets an equal part of them, if it has the room. A
-- consumer that does not listen is skipped; it takes when it is back.
local function offer()
  local deaf = 0
  while state.ready > 0 and conf.paused == 0 and deaf < DEAF_MAX do
    local consumers = redis.call(
      'ZRANGE', prefix .. 'waiting', '0', text(math.min(state.ready, OFFERED_MAX, DEAF_MAX - deaf) - 1)
    )
    if #consumers == 0 then
      return
    end
    redis.call('ZREM', prefix .. 'waiting', unpack(consumers))
    local turns = redis.call('HMGET', prefix .. 'turns', unpack(consumers))
    for at, consumer in ipairs(consumers) do -- there are at least as many keys: none of them goes without
      local share = math.ceil(state.ready / (#consumers - at + 1))
      local room = math.max(tonumber(string.match(turns[at] or '', ' (%d+)$')) or 1, 1)
      if not push_keys(consumer, math.min(share, room, OFFERED_KEYS_MAX), (#consumers - at) * share) then
        deaf = deaf + 1
      end
    end
  end
end
