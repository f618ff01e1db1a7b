-- The settings of a queue, as scripts change them.

local function conf_line()
  return string.format(
    '%d %d %d %d %d %d %d %d %d %d %d %d', conf.version, conf.shards, conf.messages_max, conf.bytes_max, conf.keys_max,
    conf.attempts_max, conf.dedupe_ms, conf.ids_max, conf.dead_max, conf.lease_ms, conf.halt, conf.paused
  )
end

local function save_conf()
  local line = conf_line()
  if shut then
    line = line .. ' ' .. shut
  end
  redis.call('SET', prefix .. 'conf', line)
end

-- A new queue. `words` is an array with the numbers of `conf`, `letters` has the state of each shard.
local function make_queue(words, letters)
  read_conf(table.concat(words, ' '))
  shut = letters and string.find(letters, '[^o]') and letters or nil
  read_state(struct.pack(STATE_PACKED, STATE_FORMAT, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
  local time = redis.call('TIME')
  state.wall, stored_counts = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), ''
  save_conf()
  save_state()
end
