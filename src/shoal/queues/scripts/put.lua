-- Put a batch of messages.
--
--   KEYS[1]  prefix of the queue
--   ARGV     version, producer, number of the batch, groups, then the messages
--   groups   two bytes for each group of messages of one shard: the shard, and how many they are. Then each message has
--            two words, key and body. Without groups each message has five: shard, key, body, id and delay in ms
--   reply    one letter for each message, a space, and how many messages the queue holds; one word, because the server
--            writes it with less work than two. No letters: the batch has groups, and not all of it can be accepted.
--            Nothing was stored; it must come again without groups, in the order of its messages, because the first
--            ones are accepted
--
-- A accepted; D its id was accepted before; F the queue is full; K too many keys; I too many ids; B behind a refused
-- message that must come first; M the shard is not open here, and all its messages in the batch get M. A batch that
-- comes again, because its reply was lost, gets the same letters again.

local refused = load_version(ARGV[1])
if refused then
  return refused
end

local function answer(letters)
  return letters .. ' ' .. text(state.messages)
end

local BATCH_MAX = 1024 -- messages of one call
local FIRST, FIELDS, PAIR = 5, 5, 2
local words = ARGV
local producer, batch, last_at = words[2], words[3], #words
if last_at < FIRST or #words[4] > 2 * BATCH_MAX or #words[4] % 2 ~= 0 then
  return malformed('a batch has a producer, a number, groups and messages')
elseif #producer == 0 or #producer > NAME_BYTES_MAX then
  return malformed('the name of a producer has 1 to ' .. text(NAME_BYTES_MAX) .. ' bytes')
elseif not whole(batch, NUMBER_MAX) then
  return malformed('the number of a batch is not a whole number')
end

local plain, groups = {string.byte(words[4], 1, -1)}, #words[4] / 2
local given, given_bytes = 0, 0
local group_shards, group_firsts, group_lasts = {}, {}, {} -- where the messages of each group are
local at, shards = FIRST, conf.shards
for group = 1, groups do
  local shard, last = plain[2 * group - 1], at - 1 + PAIR * plain[2 * group]
  if shard >= shards or last < at or last > last_at then
    return malformed('group ' .. text(group) .. ' of the batch is not valid')
  end
  group_shards[group], group_firsts[group], group_lasts[group] = text(shard), at, last
  at = last + 1
end
if groups > 0 then
  given = (at - FIRST) / PAIR
  for pair = FIRST, at - 1, PAIR do
    local key_bytes, body_bytes = #words[pair], #words[pair + 1]
    if key_bytes == 0 or key_bytes > KEY_BYTES_MAX or body_bytes > BODY_BYTES_MAX then
      return malformed('the key or the body of message ' .. text((pair - FIRST) / PAIR) .. ' of the batch is not valid')
    end
    given_bytes = given_bytes + body_bytes
  end
end
while groups == 0 and at <= last_at do
  local wrong = last_at < at + FIELDS - 1 and 'size' or not is_shard(words[at]) and 'shard'
    or not is_key(words[at + 1]) and 'key' or #words[at + 2] > BODY_BYTES_MAX and 'body'
    or #words[at + 3] > ID_BYTES_MAX and 'id'
    or words[at + 4] ~= '0' and (whole(words[at + 4], DELAY_MS_MAX) or 0) == 0 and 'delay'
  if wrong then
    return malformed('the ' .. wrong .. ' of message ' .. text(given) .. ' of the batch is not valid')
  end
  given, at = given + 1, at + FIELDS
end
if given > BATCH_MAX or at <= last_at then
  return malformed('a batch has 1 to ' .. text(BATCH_MAX) .. ' messages, all of them in its groups')
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

-- A batch with groups is accepted as a whole: most are far from all limits, and need no look at each message.
local sure = groups > 0
if sure then
  for group = 1, shut and groups or 0 do
    sure = sure and is_open(group_shards[group])
  end
  sure = sure and not many_keys and messages + given <= conf.messages_max and bytes + given_bytes <= conf.bytes_max
  if said then
    return answer(string.find(said, ' ', 1, true) and '' or string.rep('A', given))
  elseif not sure then
    return answer('')
  end
  messages, bytes, accepted, count = messages + given, bytes + given_bytes, given, given
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

-- Keys and bodies of the messages that go to lists, in groups: the arguments themselves if all do.
local pairs_of = words
local special = {} -- positions of messages with an id or a delay

if not sure then
  pairs_of = {}
  for at = FIRST, last_at, FIELDS do
    local shard, key, body, id, delay = unpack(words, at, at + FIELDS - 1)
    local letter
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
          if group_shards[groups] ~= shard then
            groups = groups + 1
            group_shards[groups], group_firsts[groups] = shard, #pairs_of + 1
          end
          pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = key, body
          group_lasts[groups] = #pairs_of
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
  return answer(reply)
end

-- Everything is decided: from here on, only writes.
-- One message in COUNTED is counted under its shard. The time shifts the samples, so that messages whose keys repeat in
-- a pattern are counted evenly too.
local to_sample = COUNTED - (state.puts + state.wall) % COUNTED
local function sample(shard)
  local samples = math.floor(-to_sample / COUNTED) + 1
  to_sample = to_sample + samples * COUNTED
  count_work('p', shard, samples * COUNTED)
end

state.puts, state.put_bytes = state.puts + accepted, state.put_bytes + bytes - state.bytes
state.messages, state.bytes = messages, bytes
for _, at in ipairs(special) do
  local shard, key, body, id, delay = unpack(words, at, at + FIELDS - 1)
  if id ~= '' then
    redis.call('SADD', prefix .. shard .. now_ids, framed(key) .. id)
    state.ids = state.ids + 1
  end
  if delay ~= '0' then
    local serial = string.format('%016.0f', next_number())
    redis.call('ZADD', prefix .. 'due', text(state.now + tonumber(delay)), 'm:' .. shard .. ':' .. serial)
    redis.call('HSET', prefix .. shard .. ':delayed', serial, framed(key) .. body)
    state.delayed = state.delayed + 1
    to_sample = to_sample - 1
    if to_sample <= 0 then
      sample(shard)
    end
  end
end

-- Messages of a key that follow each other go to its list with one command. Keys that had no messages become ready, with
-- one command for each shard.
local call = redis.call
local begun, begun_shards = {}, {}
local held_too = true
-- guard: one_owner
held_too = false
-- end: one_owner
for group = 1, groups do
  local shard, pair, last = group_shards[group], group_firsts[group], group_lasts[group]
  local names, keys_of = prefix .. shard .. ':k:', begun[shard]
  to_sample = to_sample - (last - pair + 1) / PAIR
  if to_sample <= 0 then
    sample(shard)
  end
  while pair < last do
    local key, next_pair, first = pairs_of[pair], pair + PAIR, nil
    if next_pair > last or pairs_of[next_pair] ~= key then
      first = call('RPUSH', names .. key, pairs_of[pair + 1]) == 1
    else
      local bodies = {pairs_of[pair + 1]}
      while next_pair < last and pairs_of[next_pair] == key do
        bodies[#bodies + 1] = pairs_of[next_pair + 1]
        next_pair = next_pair + PAIR
      end
      first = call('RPUSH', names .. key, unpack(bodies)) == #bodies
    end
    pair = next_pair
    if first or held_too then
      state.keys = state.keys + (first and 1 or 0)
      if not keys_of then
        keys_of = {}
        begun[shard] = keys_of
        begun_shards[#begun_shards + 1] = shard
      end
      keys_of[#keys_of + 1] = key
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
  local alone = #free == 1 and accepted == 1 and #special == 0
  if #free > 0 and not (alone and push_new_key(shard, free[1], pairs_of[group_lasts[1]])) then
    make_ready(shard, free, 'RPUSH')
  end
end

local record = batch
-- guard: refused_sequence
if accepted < count then
  local told, told_shards = {}, {}
  for number, letter in ipairs(letters) do
    local shard = words[FIRST + (number - 1) * FIELDS]
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
return answer(reply)
