-- One turn of a consumer: it reports what it did with its keys, and takes more.
--
--   KEYS[1]  prefix of the queue
--   ARGV     version, consumer, number of the turn, its load, keys held, keys wanted, messages wanted, messages of one
--            key, flags, then operations
--   flags    R also list the keys that this consumer holds; L leave: return everything; S push single keys only
--   operation (7 words)
--     D shard key token upto have want   messages up to `upto` are done; send `want` more after the `have` that it has
--     S shard key token upto '' ''       messages up to `upto` are done, and the next one was started
--     F shard key token upto delay reason  the message after `upto` failed: retry in `delay` ms; -1 means never
--     G shard key token upto side word   give the key back, to the front (F) or the back (B) of the ready keys; the word
--                                        is U if the next message was not handed to the application
--     E shard key token '' '' ''         only tell whether the key is still held
--   reply    joined, ready, hungry, consumers, owned, ms until something is due (-1: nothing), paused, results, grants,
--            held keys, the largest number of a token so far, a letter for each shard (empty: all are open), ms of a lease
--
-- The result of an operation is {status, messages left, bodies}, the last only if messages were asked for; a grant is
-- {shard, key, token, attempts, suspect, messages left, bodies}. Status 0: the key is not held under this token,
-- 1: it is still held, 2: it is not held any more, 3: the same, and it is halted because the dead letters are full,
-- 4: the shard is not open here, and nothing was done.
-- A turn that comes again, because its reply was lost, gets the same statuses again; what it holds is listed (R).

local refused = load_version(ARGV[1])
if refused then
  return refused
end

local FIELDS, OPERATIONS_MAX = 7, 1024
local TURN_KEYS_MAX, TURN_MESSAGES_MAX = 1024, 4096 -- keys and messages that one turn gets
local consumer, turn, load, flags = ARGV[2], ARGV[3], ARGV[4], ARGV[9]
if #ARGV < 9 or (#ARGV - 9) % FIELDS ~= 0 or (#ARGV - 9) / FIELDS > OPERATIONS_MAX then
  return malformed('a turn has 9 words and up to ' .. text(OPERATIONS_MAX) .. ' operations of ' .. text(FIELDS))
elseif #consumer > NAME_BYTES_MAX or not string.match(consumer, '^%w[%w_.-]*$') then
  return malformed('the name of a consumer has letters and digits, up to ' .. text(NAME_BYTES_MAX))
elseif not whole(turn, NUMBER_MAX) or #load > 32 or not string.match(load, '^%d+%.?%d*$') then
  return malformed('the number or the load of a turn is not a number')
end
local want_keys, want_messages = whole(ARGV[6], NUMBER_MAX), whole(ARGV[7], NUMBER_MAX)
local per_key = whole(ARGV[8], NUMBER_MAX)
if not want_keys or not want_messages or not per_key or string.find(flags, '[^RLS]') then
  return malformed('the wishes or the flags of a turn are not valid')
end
want_keys, want_messages = math.min(want_keys, TURN_KEYS_MAX), math.min(want_messages, TURN_MESSAGES_MAX)

local function is_operation(code, shard, key, upto, extra, word)
  if not is_shard(shard) or not is_key(key) or code ~= 'E' and not whole(upto, NUMBER_MAX) then
    return false
  elseif code == 'D' then
    return whole(extra, NUMBER_MAX) and whole(word, NUMBER_MAX)
  elseif code == 'F' then
    return extra == '-1' or whole(extra, DELAY_MS_MAX)
  end
  return code == 'S' or code == 'G' or code == 'E'
end
for at = 10, #ARGV, FIELDS do
  if not is_operation(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]) then
    return malformed('operation ' .. text((at - 10) / FIELDS) .. ' of the turn is not valid')
  end
end

local lease = redis.call('ZSCORE', prefix .. 'leases', consumer)
local leaves = string.find(flags, 'L', 1, true)
local first_lease
if not lease and not leaves and redis.call('ZCARD', prefix .. 'leases') >= CONSUMERS_MAX
  and tonumber(redis.call('ZRANGE', prefix .. 'leases', '0', '0', 'WITHSCORES')[2]) > state.now then -- none ends now
  return redis.error_reply('CROWDED the queue has ' .. text(CONSUMERS_MAX) .. ' consumers')
end

local said = nil
local number, letters = string.match(redis.call('HGET', prefix .. 'turns', ARGV[2]) or '', '^(%d+) (%d*) %d+$')
if number and tonumber(number) > tonumber(ARGV[3]) then
  return redis.error_reply('LATE a later turn of this consumer came before this one')
end
-- guard: turn_sequence
said = number == ARGV[3] and letters
-- end: turn_sequence

-- A consumer that waits, and has nothing to report while nothing is ready, goes on waiting: most turns of a quiet queue.
local idle = state.ready == 0 and #ARGV == 9 and flags == '' and want_keys > 0 and want_messages > 0
if idle then
  local waits = redis.call('ZSCORE', prefix .. 'waiting', consumer)
  idle = waits and tonumber(waits) == tonumber(load)
end

-- The first write must be one that Redis allows when its memory is full: then it allows the others too, and consumers can
-- empty a full store. It need not find anything.
redis.call('ZREM', prefix .. 'waiting', idle and '' or consumer)
rotate_generations()

local LEASE_STEP_MS = 500

-- The lease of this consumer. One that comes late, before its lease was ended, keeps it. It is written again when it is
-- LEASE_STEP_MS old: consumers count on that.
local joined = lease and 0 or 1
if not leaves and (not lease or tonumber(lease) - state.now <= conf.lease_ms - LEASE_STEP_MS) then
  redis.call('ZADD', prefix .. 'leases', text(state.now + conf.lease_ms), consumer)
end

-- Visit the keys of a consumer, in open shards and in those with the letter `also`. Nothing in another shard changes.
local function held_keys(holder, visit, also)
  flush_records()
  local members = redis.call('SMEMBERS', prefix .. 'held:' .. holder)
  table.sort(members)
  for _, member in ipairs(members) do
    local shard, key = string.match(member, '^(%d+):(.*)$')
    if is_open(shard) or letter_of(shard) == also then
      local record = read_record(shard, key)
      if record and record.owner == holder then
        visit(shard, key, record)
      end
    end
  end
end

-- End the leases of consumers that are gone.
local limit = state.now + conf.lease_ms
-- guard: lease_before_takeover
limit = state.now
-- end: lease_before_takeover
first_lease = redis.call('ZRANGE', prefix .. 'leases', '0', '0', 'WITHSCORES')[2]
local expired = {}
if first_lease and tonumber(first_lease) <= limit then
  expired = redis.call('ZRANGEBYSCORE', prefix .. 'leases', '-inf', text(limit), 'LIMIT', 0, EXPIRED_MAX)
end
local gone_count, gone_keys = 0, 0
for _, other in ipairs(expired) do
  if other ~= consumer and gone_keys < KEYS_HELD_MAX then -- the next turn ends the others
    gone_count = gone_count + 1
    redis.call('ZREM', prefix .. 'leases', other)
    redis.call('ZREM', prefix .. 'waiting', other)
    redis.call('HDEL', prefix .. 'turns', other)
    held_keys(other, function(shard, key, record)
      gone_keys = gone_keys + 1
      local burned = 1
      -- guard: attempts_on_start
      burned = 0
      -- end: attempts_on_start
      record.attempts = record.attempts + burned
      record.suspect = 1 -- the next consumer reports the start before it hands the head out
      if record.attempts >= conf.attempts_max then
        bury(shard, key, record, 'the consumer did not come back')
      else
        release(shard, key, record, 'LPUSH')
      end
    end)
  end
end

-- Delayed messages join the tail of their key, and keys that wait for a retry become ready.
local soonest = redis.call('ZRANGE', prefix .. 'due', '0', '0', 'WITHSCORES')[2]
local due, due_changed = {}, false
if soonest and tonumber(soonest) <= state.now then
  due = redis.call('ZRANGEBYSCORE', prefix .. 'due', '-inf', text(state.now), 'LIMIT', 0, DUE_MAX)
  due_changed = true
end
if idle and (due_changed or gone_count > 0 or joined == 1) then
  idle = false
  redis.call('ZREM', prefix .. 'waiting', consumer)
end
for _, member in ipairs(due) do
  redis.call('ZREM', prefix .. 'due', member)
  local kind, shard, rest = string.match(member, '^(%a):(%d+):(.*)$')
  if kind == 'm' then
    local line = redis.call('HGET', prefix .. shard .. ':delayed', rest)
    redis.call('HDEL', prefix .. shard .. ':delayed', rest)
    local size, start = string.match(line, '^(%d+):()')
    local side = 'LPUSH'
    -- guard: delayed_order
    side = 'RPUSH'
    -- end: delayed_order
    add_message(shard, string.sub(line, start, start + size - 1), string.sub(line, start + size), side)
    state.delayed = state.delayed - 1
  else
    local record = read_record(shard, rest)
    if record and record.owner == UNHELD then
      make_ready(shard, {rest}, 'RPUSH')
    end
  end
end

-- Messages of a held key, as many as the reply has room for; the first one of a reply always fits. Also returns the length
-- of the list if the last page tells it. The pages after the first are larger if messages are small.
local PAGE, PAGE_SMALL, SMALL_BYTES, PAGE_BYTES_MAX, REPLY_BYTES_MAX = 8, 32, 4096, 1048576, 16777216
local first_page = state.bytes <= SMALL_BYTES * state.messages and PAGE_SMALL or PAGE
local reply_bytes, reply_messages = 0, 0
local function fetch(shard, key, record, start, count)
  local name, asked, had, bytes_before = messages_key(shard, key), math.min(count, first_page), 0, reply_bytes
  local bodies, length = {}, nil
  while count > 0 do
    local page = redis.call('LRANGE', name, text(start + had), text(start + had + asked - 1))
    local read, bytes = #page, reply_bytes
    for at = 1, read do
      bytes = bytes + #page[at]
    end
    local used = read
    while used > 0 and reply_messages + used > 1 and (bytes > REPLY_BYTES_MAX or reply_messages + used > TURN_MESSAGES_MAX) do
      bytes, page[used], used = bytes - #page[used], nil, used - 1
    end
    local before = reply_bytes
    reply_bytes, reply_messages = bytes, reply_messages + used
    if had == 0 then
      bodies = page
    else
      for at = 1, used do
        bodies[had + at] = page[at]
      end
    end
    had = had + used
    if used < read then
      break
    elseif read < asked then
      length = (read > 0 or start + had == 0) and start + had or nil
      break
    end
    count = count - asked
    local fits = math.floor(PAGE_BYTES_MAX * read / math.max(bytes - before, 1))
    asked = math.min(count, math.max(fits, PAGE), math.max(TURN_MESSAGES_MAX - reply_messages, 1))
  end
  note_sent(record, record.base + start, had, reply_bytes - bytes_before)
  return bodies, length
end

local function fail(shard, key, record, delay_ms, reason)
  if record.started == 0 then
    record.attempts = record.attempts + 1
  end
  record.suspect = 0
  if delay_ms < 0 or record.attempts >= conf.attempts_max then
    return bury(shard, key, record, string.sub(reason, 1, REASON_BYTES_MAX)) and 2 or 3
  end
  state.owned = state.owned - 1
  record.owner, record.token = UNHELD, '-'
  start_count(record)
  write_record(shard, key, record)
  -- guard: retry_holds_key
  redis.call('ZADD', prefix .. 'due', text(state.now + delay_ms), 'k:' .. shard .. ':' .. key)
  due_changed = true
  -- end: retry_holds_key
  return 2
end

local function operate(code, shard, key, token, upto, extra, word)
  if shut and not is_open(shard) then
    return {4, 0}
  end
  local record = read_record(shard, key)
  local held = record and record.owner ~= UNHELD and record.owner ~= HALTED
  -- guard: fencing
  held = held and record.owner == consumer and record.token == token
  -- end: fencing
  if not held then
    return {0, 0}
  end
  if code == 'E' then
    return {1, 0}
  end
  if tonumber(upto) - record.base > done_room then
    return {0, 0} -- a consumer has no more messages
  end
  local left, removed = remove_done(shard, key, record, tonumber(upto))
  if left == 0 then
    close_key(shard, key, true)
    return {2, 0}
  end
  if code == 'F' then
    return {fail(shard, key, record, tonumber(extra), word), left}
  end
  if code == 'G' then
    if word == 'U' and record.started == 1 then -- its start was reported before it could be handed out, and never was
      record.attempts, record.suspect = record.attempts - 1, 1
    end
    release(shard, key, record, extra == 'F' and 'LPUSH' or 'RPUSH')
    return {2, left}
  end
  if code == 'S' and record.started == 0 then
    record.started, record.suspect = 1, 0
    record.attempts = record.attempts + 1
    removed = true
  end
  if removed then
    write_record(shard, key, record)
  end
  local result = {1, left}
  if code == 'D' then
    result[3] = fetch(shard, key, record, tonumber(extra), math.min(tonumber(word), left - tonumber(extra)))
  end
  return result
end

local results, statuses = {}, {}
local held_count = redis.call('SCARD', prefix .. 'held:' .. consumer) -- what the consumer says may be wrong
for at = 10, #ARGV, FIELDS do
  local one
  if said then
    one = {tonumber(string.sub(said, #results + 1, #results + 1)) or 0, -1}
  else
    one = operate(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
    if one[1] == 2 or one[1] == 3 then
      held_count = held_count - 1
    end
  end
  results[#results + 1] = one
  statuses[#results] = text(one[1])
end

want_messages = math.max(want_messages - reply_messages, 0) -- the operations have used some of the consumer's room
local hungry = redis.call('ZCARD', prefix .. 'waiting') - (idle and 1 or 0)
local consumers = redis.call('ZCARD', prefix .. 'leases')
local grants = {}

if leaves then
  held_keys(consumer, function(shard, key, record)
    release(shard, key, record, 'LPUSH')
  end)
  redis.call('ZREM', prefix .. 'leases', consumer)
  redis.call('HDEL', prefix .. 'turns', consumer)
elseif want_keys > 0 and not said then
  -- A turn that comes again takes nothing: its reply may have no reader. None takes more than its share of all keys.
  local share = math.ceil((state.owned + state.ready) / consumers) - held_count
  share = math.min(want_keys, share, state.ready, KEYS_HELD_MAX - held_count)
  while #grants < share and want_messages > 0 and conf.paused == 0 and reply_bytes < REPLY_BYTES_MAX do
    local shard, keys, others = unpack(first_keys(math.min(share - #grants, GRANTS_PAGE))[1])
    read_records(shard, keys)
    local used = 0
    while used < #keys and want_messages > 0 and reply_bytes < REPLY_BYTES_MAX do
      used = used + 1
      local key, token = keys[used], next_token()
      local record = grant(shard, key, consumer, token)
      local bodies, left = fetch(shard, key, record, 0, math.min(per_key, want_messages))
      left = left or redis.call('LLEN', messages_key(shard, key))
      want_messages = want_messages - #bodies
      grants[#grants + 1] = {shard, key, token, record.attempts, record.suspect, left, bodies}
    end
    pop_ready(shard, used, #keys - used + others)
  end
end

offer() -- to other consumers: this one has taken its share

local kept = {}
if string.find(flags, 'R', 1, true) then
  local granted = {}
  for _, one in ipairs(grants) do
    granted[one[3]] = true
  end
  held_keys(consumer, function(shard, key, record)
    if not granted[record.token] then
      local left = redis.call('LLEN', messages_key(shard, key))
      kept[#kept + 1] = {shard, key, record.token, record.attempts, record.suspect, left, record.base}
    end
  end, 's')
end
local room = math.min(want_keys - #grants, want_messages, KEYS_HELD_MAX - held_count - #grants)
if not leaves and room > 0 and not idle then -- one that got all messages it has room for is busy
  redis.call('ZADD', prefix .. 'waiting', load, consumer)
end
if not said and not leaves then -- pushes count on the room
  room = string.find(flags, 'S', 1, true) and 1 or room
  redis.call('HSET', prefix .. 'turns', consumer, turn .. ' ' .. table.concat(statuses) .. ' ' .. text(math.max(room, 0)))
end

if due_changed then
  soonest = redis.call('ZRANGE', prefix .. 'due', '0', '0', 'WITHSCORES')[2]
end
if leaves or gone_count > 0 then
  first_lease = redis.call('ZRANGE', prefix .. 'leases', '0', '0', 'WITHSCORES')[2]
end
local due_ms = -1
for _, at in ipairs({soonest or first_lease or '', first_lease or ''}) do
  if at ~= '' then
    local wait_ms = math.max(tonumber(at) - state.now, 0)
    due_ms = due_ms < 0 and wait_ms or math.min(due_ms, wait_ms)
  end
end
save_state()
return {
  joined, state.ready, hungry, consumers, state.owned, due_ms, conf.paused, results,
  grants, kept, state.counter, shut or '', conf.lease_ms,
}
