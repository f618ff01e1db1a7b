-- Put a batch of messages.
--
--   KEYS[1]  prefix of the queue
--   ARGV     version, producer, number of the batch, then for each message: shard, key, id, delay in ms, body
--   reply    one letter for each message, and how many messages the queue holds
--
-- A accepted; D its id was accepted before; F the queue is full; K too many keys; I too many ids; B behind a refused
-- message that must come first; M the shard is not open here, and all its messages in the batch get M. A batch that comes again, because its reply was lost, gets the same letters again.

local refused = load_version(ARGV[1])
if refused then
  return refused
end
rotate_generations()

local FIELDS = 5
local producer, batch = ARGV[2], ARGV[3]
local now_ids, old_ids = ':ids:' .. text(state.generation), ':ids:' .. text(1 - state.generation)
local now_producers = prefix .. 'producers:' .. text(state.generation)

-- What this batch was told when it came before: the letters of each shard that had a refused message. All others were
-- accepted. One record for a batch: one for each shard would cost as much as the messages.
local said = nil
for _, generation in ipairs({state.generation, 1 - state.generation}) do
  local line = redis.call('HGET', prefix .. 'producers:' .. text(generation), producer)
  local number = line and string.match(line, '^%d+')
  -- guard: late_batch
  if number and tonumber(number) > tonumber(batch) then
    return redis.error_reply('LATE a later batch of this producer came before this one')
  end
  -- end: late_batch
  -- guard: producer_sequence
  if number == batch and not said then
    said = line
  end
  -- end: producer_sequence
end
local said_letters = {}
local function said_before(shard)
  if said and said_letters[shard] == nil then
    said_letters[shard] = string.match(said, ' ' .. shard .. ':(%a+)') or ''
  end
  return said and said_letters[shard]
end

local letters, nth, fresh_ids, fresh_keys = {}, {}, {}, {}
local messages, bytes, keys, ids = state.messages, state.bytes, state.keys, state.ids + state.ids_old
local full, behind, accepted = false, {}, 0
local many_keys = keys + (#ARGV - 3) / FIELDS > conf.keys_max

local function judge(shard, key, id, body)
  if shut and not is_open(shard) then
    return 'M'
  end
  if full or behind[key] then
    return 'B'
  end
  if id ~= '' then
    local member = key .. '\0' .. id
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

for at = 4, #ARGV, FIELDS do
  local shard, key, id, body = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4]
  local before = said_before(shard)
  nth[shard] = (nth[shard] or 0) + 1
  local letter
  if before then
    letter = before == '' and 'A' or string.sub(before, nth[shard], nth[shard])
  else
    letter = judge(shard, key, id, body)
    if letter == 'A' then
      accepted = accepted + 1
      messages, bytes = messages + 1, bytes + #body
      if id ~= '' then
        ids = ids + 1
        fresh_ids[key .. '\0' .. id] = true
      end
    elseif letter == 'F' then
      full = true
    elseif letter ~= 'D' then
      behind[key] = true
    end
  end
  letters[#letters + 1] = letter
end

if said then
  return {table.concat(letters), state.messages}
end

-- Everything is decided: from here on, only writes.
local told = {}
for number, letter in ipairs(letters) do
  local at = 4 + (number - 1) * FIELDS
  local shard, key, id, delay_ms, body = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  told[shard] = (told[shard] or '') .. letter
  if letter == 'A' then
    state.messages, state.bytes = state.messages + 1, state.bytes + #body
    if id ~= '' then
      redis.call('SADD', prefix .. shard .. now_ids, key .. '\0' .. id)
      state.ids = state.ids + 1
    end
    if delay_ms > 0 then
      local serial = string.format('%016.0f', next_number())
      redis.call('ZADD', prefix .. 'due', text(state.now + delay_ms), 'm:' .. shard .. ':' .. serial)
      redis.call('HSET', prefix .. shard .. ':delayed', serial, framed(key) .. body)
      state.delayed = state.delayed + 1
    else
      add_message(shard, key, body, 'RPUSH')
    end
  end
end
local record = batch
-- guard: refused_sequence
for shard, given in pairs(told) do
  if string.find(given, '[^A]') then
    record = record .. ' ' .. shard .. ':' .. given
  end
end
-- end: refused_sequence
redis.call('HSET', now_producers, producer, record)
offer()
save_state()
return {table.concat(letters), state.messages}
