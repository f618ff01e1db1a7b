"""Work queues: each message to one consumer, in order per key, acknowledged, redelivered, never lost.

The state of a queue is on a store, and only the scripts change it. A producer and a consumer are cores without I/O with
one shell each. docs/protocol-queues.md has the layout, the rules and the reasons.

    queue.py            Queue: put, inspect, change; sends batches
    consumer_shell.py   the jobs of a consumer, as an async iterator; runs turns
    job.py              one message in the hands of the application
    producer.py         the producer's core: batches and their outcome
    consumer.py         the consumer's core: keys, jobs, turns
    assignment.py       which keys a consumer gives back
    settings.py         the settings of a consumer; the limits of a queue are in its plan entry
    message_format.py   a message as it is stored, and valid names
    store_link.py       the connection to a store
    shard_mover.py      the mover's core: what a store's agent does with the shards of a queue
    mover_shell.py      its shell
    agent/              the process beside a store: creates and drops queues as their plan entries say
    script_loader.py    the Lua scripts that run on a store, and the rules in them
    scripts/            their texts
    keyspace/           a model of Redis' keys that runs the scripts without a server
"""
