"""Kills of consumers: the processes of a group die in mid-work, and each entry is looked for at the end.

One *run* is a stream that four processes of one group read with `Consumer` (`worker`). Each writes what it got into a
database, and acknowledges it behind the commit. The parent kills them at random moments and starts them again, under
the same names or under new ones (`run`). Poison entries end each process that gets them. At the end every healthy entry
must be in the database, nothing may be pending, and the dead letters must be the poison entries (`check`).

With `--topology cluster` there are six streams, in slots of their own on all masters. Slots move and replicas take over
meanwhile (`targets`). The laboratory `consumer-kills` prints a row for each run.
"""
