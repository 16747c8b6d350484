"""Members of a group that share shards, under faults: each row is looked for, and the order of each key is checked.

One *episode* is a producer that writes numbered rows of some keys into the shards of a stream, and members of a group
that pass them on (`member`): each writes its rows into a log as it gets them, then into a database that fences
(`sink`), and commits. Meanwhile members are killed, stopped, cut off and started, and servers fail (`faults`). A thread
looks at the leases (`watch`). At the end the log, the database and the streams are compared (`check`).

The same is done with what people use in the place of a `ShardConsumer` (`contenders`): what goes wrong is counted.
"""
