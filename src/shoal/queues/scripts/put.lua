-- Put a batch of messages.
--
--   KEYS[1]  prefix of the queue
--   ARGV     version, producer, number of the batch, words of each message, then the messages
--   message  shard, key, body; if the messages have 5 words, also id and delay in ms
--   reply    one letter for each message, and how many messages the queue holds
--
-- A accepted; D its id was accepted before; F the queue is full; K too many keys; I too many ids; B behind a refused
-- message that must come first; M the shard is not open here, and all its messages in the batch get M. A batch that
-- comes again, because its reply was lost, gets the same letters again.

local refused = load_version(ARGV[1])
if refused then
  return refused
end

local PLAIN_FIELDS, FULL_FIELDS = 3, 5
local BATCH_MAX = 1024 -- messages of one call
local FIRST, FIELDS = 5, ARGV[4] == '3' and PLAIN_FIELDS or FULL_FIELDS
local producer, batch, last_at = ARGV[2], ARGV[3], #ARGV
local given = (last_at - FIRST + 1) / FIELDS
if ARGV[4] ~= '3' and ARGV[4] ~= '5' or given < 1 or given % 1 ~= 0 or given > BATCH_MAX then
  return malformed('a batch has 1 to ' .. text(BATCH_MAX) .. ' messages of 3 or 5 words')
elseif #producer == 0 or #producer > NAME_BYTES_MAX then
  return malformed('the name of a producer has 1 to ' .. text(NAME_BYTES_MAX) .. ' bytes')
elseif not whole(batch, NUMBER_MAX) then
  return malformed('the number of a batch is not a whole number')
end
for at = FIRST, last_at, FIELDS do
  local wrong = not is_shard(ARGV[at]) and 'shard' or not is_key(ARGV[at + 1]) and 'key'
    or #ARGV[at + 2] > BODY_BYTES_MAX and 'body'
  if not wrong and FIELDS == FULL_FIELDS then
    wrong = #ARGV[at + 3] > ID_BYTES_MAX and 'id'
      or ARGV[at + 4] ~= '0' and (whole(ARGV[at + 4], DELAY_MS_MAX) or 0) == 0 and 'delay'
  end
  if wrong then
    return malformed('the ' .. wrong .. ' of message ' .. text((at - FIRST) / FIELDS) .. ' of the batch is not valid')
  end
end
rotate_generations()
local now_ids, old_ids = ':ids:' .. text(state.generation), ':ids:' .. text(1 - state.generation)
local now_producers = prefix .. 'producers:' .. text(state.producers)

-- What this batch was told when it came before: the letters of each shard that had a refused message. All others were
-- accepted. One record for a batch: one for each shard would cost as much as the messages.
local said = nil
-- Numbers of batches grow, so the newer generation has the larger one.
local line = redis.call('HGET', now_producers, producer)
if not line and redis.call('HLEN', now_producers) >= PRODUCERS_MAX then
  return redis.error_reply('CROWDED the queue had ' .. text(PRODUCERS_MAX) .. ' producers in the last minutes')
end
line = line or redis.call('HGET', prefix .. 'producers:' .. text(1 - state.producers), producer)
local last = line and string.match(line, '^%d+')
if last and tonumber(last) > tonumber(batch) then
  return redis.error_reply('LATE a later batch of this producer came before this one')
end
-- guard: producer_sequence
if last == batch then
  said = line
end
-- end: producer_sequence
local said_letters = {}
local function said_before(shard)
  if said_letters[shard] == nil then
    said_letters[shard] = string.match(said, ' ' .. shard .. ':(%a+)') or ''
  end
  return said_letters[shard]
end

local letters, nth, fresh_ids, fresh_keys, count = {}, {}, {}, {}, 0
local messages, bytes, keys, ids = state.messages, state.bytes, state.keys, state.ids + state.ids_old
local full, behind, accepted = false, {}, 0
local many_keys = keys + given > conf.keys_max

-- Whether all messages will be accepted: most batches are far from all limits, and need no look at each message.
local sure = not said and not shut and FIELDS == PLAIN_FIELDS and not many_keys and messages + given <= conf.messages_max
if sure then
  for at = FIRST + 2, last_at, FIELDS do
    bytes = bytes + #ARGV[at]
  end
  sure = bytes <= conf.bytes_max
  if sure then
    messages, accepted, count = messages + given, given, given
  else
    bytes = state.bytes
  end
end

local function judge(shard, key, id, body)
  if shut and not is_open(shard) then
    return 'M'
  end
  if full or behind[key] then
    return 'B'
  end
  if id ~= '' then
    local member = framed(key) .. id
    -- guard: message_ids
    if fresh_ids[member] or redis.call('SISMEMBER', prefix .. shard .. now_ids, member) == 1
      or redis.call('SISMEMBER', prefix .. shard .. old_ids, member) == 1 then
      return 'D'
    end
    -- end: message_ids
    if ids >= conf.ids_max then
      return 'I'
    end
  end
  -- guard: bound
  if messages >= conf.messages_max or bytes + #body > conf.bytes_max then
    return 'F'
  end
  -- end: bound
  if many_keys and not fresh_keys[key] and redis.call('EXISTS', messages_key(shard, key)) == 0 then
    if keys >= conf.keys_max then
      return 'K'
    end
    keys = keys + 1
    fresh_keys[key] = true
  end
  return 'A'
end

-- Lists that get messages, in the order of their first one: name of the list, position of that message in ARGV, body, and
-- all bodies if there are several. They go to the list with one command.
local lists, first_at, bodies, several, place_of, places = {}, {}, {}, {}, {}, 0
local special = {} -- positions of messages with an id or a delay

local function add_to_list(at, shard, key, body)
  local name = prefix .. shard .. ':k:' .. key
  local place = place_of[name]
  if not place then
    places = places + 1
    place_of[name], lists[places], first_at[places], bodies[places] = places, name, at, body
  elseif several[place] then
    local all = several[place]
    all[#all + 1] = body
  else
    several[place] = {bodies[place], body}
  end
end

for at = FIRST, last_at, FIELDS do
  local shard, key, body = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if sure then
    add_to_list(at, shard, key, body)
  else
    local id, delay, letter = '', '0', nil
    if FIELDS > PLAIN_FIELDS then
      id, delay = ARGV[at + 3], ARGV[at + 4]
    end
    if said then
      local before = said_before(shard)
      nth[shard] = (nth[shard] or 0) + 1
      letter = before == '' and 'A' or string.sub(before, nth[shard], nth[shard])
    else
      letter = judge(shard, key, id, body)
      if letter == 'A' then
        accepted = accepted + 1
        messages, bytes = messages + 1, bytes + #body
        if id ~= '' then
          ids = ids + 1
          fresh_ids[framed(key) .. id] = true
        end
        if delay ~= '0' or id ~= '' then
          special[#special + 1] = at
        end
        if delay == '0' then
          add_to_list(at, shard, key, body)
        end
      elseif letter == 'F' then
        full = true
      elseif letter ~= 'D' then
        behind[key] = true
      end
    end
    count = count + 1
    letters[count] = letter
  end
end

local reply = sure and string.rep('A', count) or table.concat(letters)
if said then
  return {reply, state.messages}
end

-- Everything is decided: from here on, only writes.
-- One message in COUNTED is counted under its shard. The time shifts the samples, so that messages whose keys repeat in
-- a pattern are counted evenly too.
for number = COUNTED - (state.puts + state.wall) % COUNTED, count, COUNTED do
  if sure or letters[number] == 'A' then
    count_work('p', ARGV[FIRST + (number - 1) * FIELDS], COUNTED)
  end
end
state.puts, state.put_bytes = state.puts + accepted, state.put_bytes + bytes - state.bytes
state.messages, state.bytes = messages, bytes
for _, at in ipairs(special) do
  local shard, key, body, id, delay_ms = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  if id ~= '' then
    redis.call('SADD', prefix .. shard .. now_ids, framed(key) .. id)
    state.ids = state.ids + 1
  end
  if delay_ms > 0 then
    local serial = string.format('%016.0f', next_number())
    redis.call('ZADD', prefix .. 'due', text(state.now + delay_ms), 'm:' .. shard .. ':' .. serial)
    redis.call('HSET', prefix .. shard .. ':delayed', serial, framed(key) .. body)
    state.delayed = state.delayed + 1
  end
end

-- Keys that had no messages become ready, with one command for each shard.
local call = redis.call
local begun, begun_shards = {}, {}
for place = 1, places do
  local all, first = several[place], nil
  if all then
    first = call('RPUSH', lists[place], unpack(all)) == #all
  else
    first = call('RPUSH', lists[place], bodies[place]) == 1
  end
  if first then
    state.keys = state.keys + 1
  end
  local added = true
  -- guard: one_owner
  added = first
  -- end: one_owner
  if added then
    local shard, key = ARGV[first_at[place]], ARGV[first_at[place] + 1]
    local keys_of = begun[shard]
    if keys_of then
      keys_of[#keys_of + 1] = key
    else
      begun[shard] = {key}
      begun_shards[#begun_shards + 1] = shard
    end
  end
end
for _, shard in ipairs(begun_shards) do
  local free = begun[shard]
  -- guard: one_owner
  local known, unowned = read_records(shard, free), {}
  for _, key in ipairs(free) do
    if not known[key] then
      unowned[#unowned + 1] = key
    end
  end
  free = unowned
  -- end: one_owner
  if #free > 0 then
    make_ready(shard, free, 'RPUSH')
  end
end

local record = batch
-- guard: refused_sequence
if accepted < count then
  local told, told_shards = {}, {}
  for number, letter in ipairs(letters) do
    local shard = ARGV[FIRST + (number - 1) * FIELDS]
    if not told[shard] then
      told_shards[#told_shards + 1] = shard
    end
    told[shard] = (told[shard] or '') .. letter
  end
  for _, shard in ipairs(told_shards) do
    if string.find(told[shard], '[^A]') then
      record = record .. ' ' .. shard .. ':' .. told[shard]
    end
  end
end
-- end: refused_sequence
redis.call('HSET', now_producers, producer, record)
offer()
save_state()
return {reply, state.messages}
