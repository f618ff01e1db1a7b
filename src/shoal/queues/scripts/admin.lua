-- Create, configure and drop a queue on its store, as its plan entry says. Only store agents and administrators call it.
--
--   KEYS[1]  prefix of the queue
--   ARGV     operation, then its arguments
--     create CONF... letters    make the queue, with the state of each shard (none: all are open); if it exists with
--                           the same version, only tell so
--     configure CONF... revision    replace its limits; STALE if the store has seen a newer revision of the entry
--     drop version count    drop up to `count` keys, messages and delayed messages, and with nothing left the queue
--                           itself; returns how many messages, and 0 if nothing is left
--     tick                  let time pass in a queue that no client uses; returns its clock

local operation = ARGV[1]

local CONF = 12 -- numbers of CONF

local function conf_words()
  return {unpack(ARGV, 2, CONF + 1)}
end

for at = 2, CONF + 1 do
  if (operation == 'create' or operation == 'configure') and not whole(ARGV[at], NUMBER_MAX) then
    return malformed('the limits of a queue are ' .. text(CONF) .. ' whole numbers')
  end
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
if operation == 'tick' then
  rotate_generations()
  save_state()
  return state.now
end

-- A call that a network has kept for long must not hit a queue that was created again under the same name.
if ARGV[2] ~= text(conf.version) then
  return redis.error_reply('OTHERVERSION ' .. text(conf.version))
end
if operation == 'configure' then
  local revision, newest = whole(ARGV[CONF + 2], NUMBER_MAX), tonumber(redis.call('HGET', prefix .. 'shards', 'revision') or 0)
  if not revision then
    return malformed('the revision of the entry is not a whole number')
  elseif revision < newest then
    return redis.error_reply('STALE this store has seen revision ' .. text(newest))
  end
  redis.call('HSET', prefix .. 'shards', 'revision', text(revision))
  local paused, letters = conf.paused, shut
  read_conf(table.concat(conf_words(), ' '))
  conf.paused, shut = paused, letters
  save_conf()
  return 1
elseif operation == 'drop' then
  local count = whole(ARGV[3], PAGE_MAX)
  if not count then
    return malformed('a page has up to ' .. text(PAGE_MAX) .. ' messages')
  end
  local shards = {}
  for number = 0, conf.shards - 1 do
    shards[#shards + 1] = text(number)
  end
  local dropped, visited = drop_page(shards, count)
  save_state()
  if visited == 0 then
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
end
return malformed('there is no such operation of a queue')
