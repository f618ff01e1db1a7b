-- Move a shard of a queue to another store, in pages. Store agents call it, as the plan entry of the queue says.
--
--   KEYS[1]  prefix of the queue
--   ARGV     operation, version, revision of the entry, then the arguments of the operation
--     place since letters CONF...   bring all shards to the wanted state: o open, i importing (for the move that began
--                                   with revision `since`), g gone, . as it is. Make the queue if it is not here and no
--                                   shard must be open. Return the shards that must be dropped first
--     size shard                    messages, bytes, keys and ids of a shard: estimates if it has many keys
--     seal shard since              nothing in the shard changes any more; returns the facts of the copy
--     export shard since cursor     the next cursor, then records from the cursor on
--     import shard since facts from to records...   add records; returns the cursor up to which all are here
--     renew letters CONF...         shards of other stores were abandoned, and the queue has a new version: continue
--                                   under it. Each shard: o continues, e begins here, empty, a is not here
--     shut                          the shards here were abandoned: nothing is given out or accepted any more
--     drop shard count              drop up to `count` messages of a shard that is gone; returns whether some are left
--
-- A call under an older revision than the store has seen changes nothing: STALE. So calls of a move that was aborted, or
-- has ended, have no effect, however late they come. All others can be repeated.
--
-- `shards` is a hash: the newest revision, and a line for each shard that is sealed or imported. `<shard>:ship` is the
-- list of what is in a shard that is sealed, imported or dropped: a letter and a name. `<shard>:due` is the part of
-- `due` that belongs to such a shard.
--
-- The line of a sealed shard has the facts of the copy: since, clock, counter, start of the generation of ids, messages,
-- keys, the latest change of pause (odd: the queue is paused), ms of the longest lease. That of an imported one: since,
-- cursor, difference of the clocks, messages, keys, ms of the longest lease.

local PAGE_MESSAGES, PAGE_BYTES = 1000, 1048576
local CHUNK = 1000 -- arguments of one command
local SAMPLE = 1000 -- keys that `size` looks at
local NOTHING = '0.0' -- the cursor before the first record

local operation, version, revision = ARGV[1], ARGV[2], tonumber(ARGV[3])
local shards = prefix .. 'shards'

local function line_of(shard)
  local words = {}
  for word in string.gmatch(redis.call('HGET', shards, shard) or '', '%S+') do
    words[#words + 1] = word
  end
  return words
end

local function set_letter(shard, letter)
  local letters = shut or string.rep('o', conf.shards)
  shut = string.sub(letters, 1, shard) .. letter .. string.sub(letters, shard + 2)
  if not string.find(shut, '[^o]') then
    shut = nil
  end
end

local function in_chunks(command, key, words)
  for at = 1, #words, CHUNK do
    redis.call(command, key, unpack(words, at, math.min(at + CHUNK - 1, #words)))
  end
end

local function is_held(line)
  local owner = string.match(line, '^%S+')
  return owner ~= UNHELD and owner ~= HALTED, owner
end

-- Take a shard out of everything that the shards of a queue share, and list what is in it.
local function shelve(shard, since)
  local names, seen, messages, keys = {}, {}, 0, 0
  local function add_key(key)
    if not seen[key] then
      seen[key] = true
      names[#names + 1] = 'k' .. key
      local length = redis.call('LLEN', messages_key(shard, key))
      messages = messages + length
      if length > 0 then
        keys = keys + 1
      end
    end
  end
  local ready = redis.call('LRANGE', prefix .. shard .. ':ready', 0, -1)
  for _, key in ipairs(ready) do
    add_key(key)
  end
  state.ready = state.ready - #ready
  redis.call('ZREM', prefix .. 'ready', shard)
  local owners = redis.call('HGETALL', prefix .. shard .. ':owners')
  local waiting = {}
  for at = 1, #owners, 2 do
    if is_held(owners[at + 1]) then
      state.owned = state.owned - 1
    end
    waiting[#waiting + 1] = owners[at]
  end
  table.sort(waiting)
  local due = {}
  local function take_due(member)
    local at = redis.call('ZSCORE', prefix .. 'due', member)
    if at then
      due[#due + 1] = at
      due[#due + 1] = member
      redis.call('ZREM', prefix .. 'due', member)
    end
  end
  for _, key in ipairs(waiting) do
    add_key(key)
    take_due('k:' .. shard .. ':' .. key)
  end
  local delayed = redis.call('HKEYS', prefix .. shard .. ':delayed')
  table.sort(delayed)
  for _, serial in ipairs(delayed) do
    names[#names + 1] = 'd' .. serial
    take_due('m:' .. shard .. ':' .. serial)
  end
  messages = messages + #delayed
  in_chunks('ZADD', prefix .. shard .. ':due', due)
  for _, id in ipairs(redis.call('ZRANGE', prefix .. shard .. ':dead', 0, -1)) do
    names[#names + 1] = 'x' .. id
  end
  -- guard: move_dedupe
  for age, generation in ipairs({state.generation, 1 - state.generation}) do
    local ids = redis.call('SMEMBERS', prefix .. shard .. ':ids:' .. text(generation))
    table.sort(ids)
    for _, id in ipairs(ids) do
      names[#names + 1] = 'i' .. text(age) .. id
    end
  end
  -- end: move_dedupe
  names[#names + 1] = 'z'
  in_chunks('RPUSH', prefix .. shard .. ':ship', names)
  local last_lease = redis.call('ZRANGE', prefix .. 'leases', -1, -1, 'WITHSCORES')[2]
  local line = table.concat({
    since, text(state.now), text(state.counter), text(state.generation_at), text(messages), text(keys),
    redis.call('HGET', shards, 'paused') or text(conf.paused),
    text(math.max((tonumber(last_lease) or 0) - state.now, 0)),
  }, ' ')
  redis.call('HSET', shards, shard, line)
  return line
end

-- The opposite: a shard is open. Its owners get a full lease: their consumers must have the time to come. It is no
-- shorter than what they had left from before an operator has shortened it.
local function open_shard(shard)
  local line = line_of(shard)
  local lease_ms = math.max(conf.lease_ms, tonumber(line[letter_of(shard) == 's' and 8 or 6]) or 0)
  set_letter(shard, 'o')
  redis.call('UNLINK', prefix .. shard .. ':ship')
  redis.call('HDEL', shards, shard)
  local ready = redis.call('LLEN', prefix .. shard .. ':ready')
  if ready > 0 then
    redis.call('ZADD', prefix .. 'ready', text(next_number()), shard)
    state.ready = state.ready + ready
  end
  local owners = redis.call('HGETALL', prefix .. shard .. ':owners')
  for at = 2, #owners, 2 do
    local held, owner = is_held(owners[at])
    if held then
      state.owned = state.owned + 1
      -- guard: move_lease
      local until_ms = tonumber(redis.call('ZSCORE', prefix .. 'leases', owner) or 0)
      redis.call('ZADD', prefix .. 'leases', text(math.max(state.now + lease_ms, until_ms)), owner)
      -- end: move_lease
      note_holder(taken, owner, shard, owners[at - 1])
    end
  end
  flush_holders('SADD', taken)
  local due, words = redis.call('ZRANGE', prefix .. shard .. ':due', 0, -1, 'WITHSCORES'), {}
  for at = 1, #due, 2 do
    words[at], words[at + 1] = due[at + 1], due[at]
  end
  in_chunks('ZADD', prefix .. 'due', words)
  redis.call('UNLINK', prefix .. shard .. ':due')
end

local function has_data(shard)
  return redis.call('EXISTS', prefix .. shard .. ':ship') == 1
end

-- The shard is not here any more. What is left of it is dropped in pages. Clients that still come are sent away.
local function bury_shard(shard)
  redis.call('HDEL', shards, shard)
  local kept = 'o'
  -- guard: move_tombstone
  kept = 'm'
  -- end: move_tombstone
  set_letter(shard, kept)
end

local function place(since, wanted)
  for number = 0, conf.shards - 1 do
    local want, letter = string.sub(wanted, number + 1, number + 1), letter_of(number)
    if want == 'o' then
      local line = line_of(text(number))
      if letter == 'a' or letter == 'm' or (letter == 'i' and line[2] ~= 'end') then
        return redis.error_reply('ABSENT shard ' .. text(number) .. ' is not on this store')
      end
    elseif want ~= '.' and letter == 'o' then
      return redis.error_reply('OPEN shard ' .. text(number) .. ' is open on this store, which the plan does not say')
    end
  end
  local left = {}
  for number = 0, conf.shards - 1 do
    local shard, want, letter = text(number), string.sub(wanted, number + 1, number + 1), letter_of(number)
    if want == 'o' and letter ~= 'o' then
      open_shard(shard)
    elseif want == 'g' or want == 'i' then
      local line = line_of(shard)
      if letter == 's' or (letter == 'i' and (want == 'g' or line[1] ~= since)) then
        bury_shard(shard)
        letter = 'm'
      end
      if letter ~= 'i' and has_data(shard) then
        left[#left + 1] = shard
      elseif want == 'i' and letter ~= 'i' then
        set_letter(shard, 'i')
        redis.call('HSET', shards, shard, since .. ' ' .. NOTHING .. ' 0 0 0')
      end
    end
  end
  save_conf()
  offer()
  save_state()
  return left
end

local function export(shard, cursor)
  local at, skip = string.match(cursor, '^(%d+)%.(%d+)$')
  at, skip = tonumber(at), tonumber(skip)
  local page, messages, bytes = {'end'}, 0, 0
  local function add(...)
    for _, word in ipairs({...}) do
      page[#page + 1] = word
      bytes = bytes + #word
    end
    messages = messages + 1
  end
  local names = redis.call('LRANGE', prefix .. shard .. ':ship', at, at + PAGE_MESSAGES - 1)
  for _, line in ipairs(names) do
    local kind, name = string.sub(line, 1, 1), string.sub(line, 2)
    if messages >= PAGE_MESSAGES or bytes >= PAGE_BYTES then
      break
    end
    if kind == 'k' then
      local length = redis.call('LLEN', messages_key(shard, name))
      local bodies, size = {}, 0
      local room = math.max(PAGE_MESSAGES - messages, 1)
      while skip + #bodies < length and #bodies < room and (bytes + size < PAGE_BYTES or #bodies == 0) do
        local from = skip + #bodies
        for _, body in ipairs(redis.call('LRANGE', messages_key(shard, name), from, from + math.min(room, 32) - 1)) do
          bodies[#bodies + 1] = body
          size = size + #body
        end
      end
      local owner = redis.call('HGET', prefix .. shard .. ':owners', name) or ''
      local due = redis.call('ZSCORE', prefix .. shard .. ':due', 'k:' .. shard .. ':' .. name) or ''
      local ready = at < redis.call('LLEN', prefix .. shard .. ':ready') and '1' or '0'
      if skip == 0 then
        add('K', name, ready, owner, due, text(#bodies))
      else
        add('C', name, text(#bodies))
      end
      for _, body in ipairs(bodies) do
        page[#page + 1] = body
      end
      messages, bytes = messages + #bodies, bytes + size
      skip = skip + #bodies
      if skip < length then
        break
      end
    elseif kind == 'd' then
      local due = redis.call('ZSCORE', prefix .. shard .. ':due', 'm:' .. shard .. ':' .. name) or '0'
      add('D', name, due, redis.call('HGET', prefix .. shard .. ':delayed', name))
    elseif kind == 'i' then
      add('I', string.sub(name, 1, 1), string.sub(name, 2))
    elseif kind == 'x' then
      local fields = redis.call('XRANGE', prefix .. 'dead', name, name)[1][2]
      add('X', unpack(fields, 3)) -- without the shard
    elseif kind == 'z' then
      return page
    end
    at, skip = at + 1, 0
  end
  page[1] = text(at) .. '.' .. text(skip)
  return page
end

local function import(shard, line, facts, first, to)
  local clock, counter, generation_at, messages_all, keys_all, paused, lease_ms =
    string.match(facts, '^%d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local since, cursor, shift, messages, keys = unpack(line)
  messages, keys = tonumber(messages), tonumber(keys)
  if cursor == NOTHING then
    shift = text(state.now - tonumber(clock))
    state.counter = math.max(state.counter, tonumber(counter))
    local change = math.max(tonumber(redis.call('HGET', shards, 'paused') or conf.paused), tonumber(paused))
    redis.call('HSET', shards, 'paused', text(change))
    conf.paused = change % 2
    save_conf()
  end
  local names, due = {}, {}
  local at = first
  local function take(count)
    at = at + count
    return unpack(ARGV, at - count, at - 1)
  end
  local function take_bodies(key, count)
    for start = at, at + count - 1, CHUNK do
      redis.call('RPUSH', messages_key(shard, key), unpack(ARGV, start, math.min(start + CHUNK, at + count) - 1))
    end
    for start = at, at + count - 1 do
      state.bytes = state.bytes + #ARGV[start]
    end
    at = at + count
    messages = messages + count
    state.messages = state.messages + count
  end
  while at <= #ARGV do
    local kind = take(1)
    if kind == 'K' then
      local key, ready, owner, key_due, count = take(5)
      names[#names + 1] = 'k' .. key
      if ready == '1' then
        redis.call('RPUSH', prefix .. shard .. ':ready', key)
      end
      if owner ~= '' then
        redis.call('HSET', prefix .. shard .. ':owners', key, owner)
        if string.sub(owner, 1, 1) == HALTED then
          redis.call('SADD', prefix .. 'halted', shard .. ':' .. key)
        end
      end
      if key_due ~= '' then
        due[#due + 1] = text(tonumber(key_due) + tonumber(shift))
        due[#due + 1] = 'k:' .. shard .. ':' .. key
      end
      if tonumber(count) > 0 then
        keys = keys + 1
        state.keys = state.keys + 1
      end
      take_bodies(key, tonumber(count))
    elseif kind == 'C' then
      local key, count = take(2)
      take_bodies(key, tonumber(count))
    elseif kind == 'D' then
      local serial, at_ms, stored = take(3)
      names[#names + 1] = 'd' .. serial
      due[#due + 1] = text(tonumber(at_ms) + tonumber(shift))
      due[#due + 1] = 'm:' .. shard .. ':' .. serial
      redis.call('HSET', prefix .. shard .. ':delayed', serial, stored)
      local size, start = string.match(stored, '^(%d+):()')
      state.bytes = state.bytes + #stored - start - size + 1
      state.messages, state.delayed, messages = state.messages + 1, state.delayed + 1, messages + 1
    elseif kind == 'I' then
      -- Ids of the older generation join the older one here if it is kept for as long; otherwise they are kept longer.
      local age, id = take(2)
      local old = age == '2' and state.generation_at >= tonumber(generation_at) + tonumber(shift)
      local generation = old and 1 - state.generation or state.generation
      if redis.call('SADD', prefix .. shard .. ':ids:' .. text(generation), id) == 1 then
        state[old and 'ids_old' or 'ids'] = state[old and 'ids_old' or 'ids'] + 1
      end
    elseif kind == 'X' then
      local fields = {take(10)}
      local number = text(next_number())
      redis.call('XADD', prefix .. 'dead', number .. '-0', 'shard', shard, unpack(fields))
      redis.call('ZADD', prefix .. shard .. ':dead', number, number .. '-0')
      names[#names + 1] = 'x' .. number .. '-0'
    end
  end
  if cursor == NOTHING then
    names[#names + 1] = 'z' -- there is something to drop if the move is aborted
  end
  in_chunks('RPUSH', prefix .. shard .. ':ship', names)
  in_chunks('ZADD', prefix .. shard .. ':due', due)
  if to == 'end' and (messages ~= tonumber(messages_all) or keys ~= tonumber(keys_all)) then
    to = 'miscounted'
  end
  redis.call('HSET', shards, shard, table.concat({since, to, shift, text(messages), text(keys), lease_ms}, ' '))
  save_state()
  return to
end

-- Drop some of a shard; return whether something is left.
local function drop(shard, count)
  local ship = prefix .. shard .. ':ship'
  while count > 0 do
    local line = redis.call('LPOP', ship)
    if not line then
      break
    end
    local kind, name = string.sub(line, 1, 1), string.sub(line, 2)
    if kind == 'k' then
      local bodies = redis.call('LPOP', messages_key(shard, name), text(count)) or {}
      for _, body in ipairs(bodies) do
        state.bytes = state.bytes - #body
      end
      state.messages = state.messages - #bodies
      count = count - math.max(#bodies, 1)
      if redis.call('EXISTS', messages_key(shard, name)) == 1 then
        redis.call('LPUSH', ship, line)
      else
        if #bodies > 0 then
          state.keys = state.keys - 1
        end
        drop_record(shard, name)
        redis.call('SREM', prefix .. 'halted', shard .. ':' .. name)
      end
    elseif kind == 'd' then
      local stored = redis.call('HGET', prefix .. shard .. ':delayed', name)
      local size, start = string.match(stored, '^(%d+):()')
      redis.call('HDEL', prefix .. shard .. ':delayed', name)
      state.bytes = state.bytes - (#stored - start - size + 1)
      state.messages, state.delayed, count = state.messages - 1, state.delayed - 1, count - 1
    elseif kind == 'x' then
      redis.call('XDEL', prefix .. 'dead', name)
      count = count - 1
    end
  end
  local left = has_data(shard)
  if not left then
    local now_ids = prefix .. shard .. ':ids:' .. text(state.generation)
    local old_ids = prefix .. shard .. ':ids:' .. text(1 - state.generation)
    state.ids = state.ids - redis.call('SCARD', now_ids)
    state.ids_old = state.ids_old - redis.call('SCARD', old_ids)
    redis.call('UNLINK', now_ids, old_ids, prefix .. shard .. ':ready', prefix .. shard .. ':due', prefix .. shard .. ':dead')
  end
  save_state()
  return left and 1 or 0
end

local function size(shard)
  local keys = redis.call('LRANGE', prefix .. shard .. ':ready', 0, SAMPLE - 1)
  local known = {}
  for _, key in ipairs(keys) do
    known[key] = true
  end
  local owned = redis.call('HKEYS', prefix .. shard .. ':owners')
  local all = redis.call('LLEN', prefix .. shard .. ':ready')
  for _, key in ipairs(owned) do
    if not known[key] then
      all = all + 1
      if #keys < 2 * SAMPLE then
        keys[#keys + 1] = key
      end
    end
  end
  local messages = 0
  for _, key in ipairs(keys) do
    messages = messages + redis.call('LLEN', messages_key(shard, key))
  end
  if #keys > 0 then
    messages = math.floor(messages * all / #keys)
  end
  messages = messages + #redis.call('HKEYS', prefix .. shard .. ':delayed')
  local bytes = state.messages > 0 and math.floor(messages * state.bytes / state.messages) or 0
  local ids = redis.call('SCARD', prefix .. shard .. ':ids:0') + redis.call('SCARD', prefix .. shard .. ':ids:1')
  return {messages, bytes, all, ids}
end

-- A shard that continues may be sealed, by a move that was given up. One that begins empty may have a rest here that is
-- not dropped yet, because it moved away earlier. It was small enough to be moved.
local function renew(wanted)
  for number = 0, conf.shards - 1 do
    local want, letter = string.sub(wanted, number + 1, number + 1), letter_of(number)
    if want == 'o' and letter ~= 'o' and letter ~= 's' then
      return redis.error_reply('ABSENT shard ' .. text(number) .. ' is not on this store')
    elseif want == 'e' and letter == 'o' then
      return redis.error_reply('OPEN shard ' .. text(number) .. ' is open on this store, which the plan does not say')
    end
  end
  redis.call('HSET', shards, 'revision', text(revision))
  for number = 0, conf.shards - 1 do
    local shard, want, letter = text(number), string.sub(wanted, number + 1, number + 1), letter_of(number)
    if want == 'o' and letter == 's' then
      open_shard(shard)
    elseif want == 'e' then
      if letter == 's' or letter == 'i' then
        bury_shard(shard)
      end
      while has_data(shard) do
        drop(shard, CHUNK)
      end
      set_letter(number, 'o')
    end
  end
  local paused, letters = conf.paused, shut
  read_conf(table.concat({unpack(ARGV, 5, 16)}, ' '))
  conf.paused, shut = paused, letters
  save_conf()
  save_state()
  return 1
end

local refused = load_conf()
if refused then
  if operation ~= 'place' or string.find(ARGV[5], 'o', 1, true) then
    return refused
  end
  make_queue({unpack(ARGV, 6, 17)}, string.rep('a', ARGV[7]))
elseif (operation == 'renew' or operation == 'shut') and tonumber(version) > conf.version then
  if operation == 'shut' then
    redis.call('HSET', shards, 'revision', text(revision))
    shut = string.rep('x', conf.shards)
    conf.paused = 1
    save_conf()
    return 1
  end
  return renew(ARGV[4])
elseif tonumber(version) ~= conf.version then
  return redis.error_reply('OTHERVERSION ' .. text(conf.version))
end
local newest = tonumber(redis.call('HGET', shards, 'revision') or 0)
if revision < newest then
  return redis.error_reply('STALE this store has seen revision ' .. text(newest))
end
if revision > newest then
  redis.call('HSET', shards, 'revision', text(revision))
end

if operation == 'renew' or operation == 'shut' then
  return 0 -- it is done already
elseif operation == 'place' then
  local paused, letters = conf.paused, shut
  read_conf(table.concat({unpack(ARGV, 6, 17)}, ' '))
  conf.paused, shut = paused, letters
  return place(ARGV[4], ARGV[5])
end
local shard = ARGV[4]
local letter, line = letter_of(shard), line_of(shard)
if operation == 'size' then
  return size(shard)
elseif operation == 'drop' then
  if letter ~= 'm' then
    return redis.error_reply('OPEN shard ' .. shard .. ' has not moved away')
  end
  return drop(shard, tonumber(ARGV[5]))
end
local since = ARGV[5]
if operation == 'seal' then
  if line[1] == since and letter ~= 'i' then
    return table.concat(line, ' ')
  end
  if letter == 's' then
    open_shard(shard)
  elseif letter ~= 'o' then
    return redis.error_reply('ABSENT shard ' .. shard .. ' is not on this store')
  end
  local facts = shelve(shard, since)
  -- guard: move_seal
  set_letter(shard, 's')
  -- end: move_seal
  save_conf()
  save_state()
  return facts
end
if line[1] ~= since then
  return redis.error_reply('ABSENT shard ' .. shard .. ' does not take part in this move')
end
if operation == 'export' then
  return export(shard, ARGV[6])
elseif operation == 'import' then
  if letter ~= 'i' then
    return redis.error_reply('ABSENT shard ' .. shard .. ' is not imported here')
  elseif ARGV[7] ~= line[2] then
    return line[2] -- this page is here already
  end
  return import(shard, line, ARGV[6], 9, ARGV[8])
end
return redis.error_reply('ERR unknown operation of a move: ' .. operation)
