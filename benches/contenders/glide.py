"""valkey-glide-sync: a core in Rust with its own threads, and batches of 1,000 commands without MULTI."""

from __future__ import annotations

from benches.contenders.common import SILENCE, now, pipelines
from benches.turns import Run, Target
from glide_sync import Batch, GlideClient, GlideClientConfiguration, NodeAddress, StreamAddOptions, TrimByMaxLen


def prepare(target: Target) -> Run:
    parts = pipelines(target)
    # Made once: it is the same for every row. `exact=False` is `MAXLEN ~`.
    options = StreamAddOptions(trim=TrimByMaxLen(exact=False, threshold=target.maxlen))
    # Its default of 250 ms would end a batch on a busy machine.
    configuration = GlideClientConfiguration(
        [NodeAddress(target.host, target.port)], request_timeout=int(SILENCE * 1000)
    )

    def run() -> int:
        client = GlideClient.create(configuration)
        stored = 0
        try:
            for part in parts:
                batch = Batch(is_atomic=False)
                ts = now()
                for payload in part:
                    batch.xadd(target.stream_key, [("payload", payload), ("ts", ts)], options)
                stored += len(client.exec(batch, raise_on_error=True) or ())
        finally:
            client.close()
        return stored

    return run
