"""Handle the entries of a stream in tasks of an event loop: retries, dead letters, metrics, SIGTERM.

    python examples/async_worker.py                               # a local server and 500 orders
    python examples/async_worker.py --url redis://localhost:6379  # your server, until SIGTERM or Ctrl-C

As examples/worker.py, for work that waits for other services: here 64 orders at a time. The orders of a customer are
handled one after the other, in the order of the stream. A task is cancelled if it takes longer than `--timeout`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import sys

from headrace import AsyncConsumer, AsyncDispatcher, Endpoint, Entry, RetryPolicy
from headrace.testing import LocalServer


async def charge(customer: bytes, cents: int) -> None:
    """The work: replace it by yours, such as a request to another service. It may be repeated."""
    del customer, cents
    await asyncio.sleep(0.001)


async def work(arguments: argparse.Namespace, url: str) -> None:
    endpoint = Endpoint.from_url(url, stream_key=arguments.stream_key, password_env=arguments.password_env)
    consumer = AsyncConsumer(
        endpoint,
        group=arguments.group,
        consumer=arguments.consumer,
        start="0-0",
        max_failures=5 if arguments.url else 1,
        dead_letter_key=f"{arguments.stream_key}:dead",
        retry=RetryPolicy(),
    )

    async def handle(entries: list[Entry]) -> None:
        """Charge orders of one customer. An exception makes them fail, except those that are acknowledged."""
        for entry in entries:
            try:
                await charge(entry["customer"], int(entry["cents"]))
            except Exception:
                logging.exception("%s of %s failed, delivery %d", entry.id, entry.stream, entry.deliveries)
                raise
            consumer.ack(entry)

    tasks = []
    async with consumer:
        if arguments.metrics_port is not None:
            serve_metrics(consumer, arguments.metrics_port)
        if not arguments.url:
            await produce_orders(endpoint, 500)
            tasks.append(asyncio.create_task(stop_after(consumer, 500)))
        report = await consumer.run(
            handle, per="key", key_field="customer", concurrency=arguments.concurrency, timeout=arguments.timeout
        )
        await asyncio.gather(*tasks)
        print(f"acknowledged {report.acked:,}, dead {report.dead:,}, given back {report.released:,}")


def serve_metrics(consumer: AsyncConsumer, port: int) -> None:
    from prometheus_client import REGISTRY, start_http_server

    from headrace.metrics import PrometheusCollector

    REGISTRY.register(PrometheusCollector(consumer))
    start_http_server(port)


async def produce_orders(endpoint: Endpoint, count: int) -> None:
    """Every hundredth one cannot be handled, and belongs to a customer of its own."""
    async with AsyncDispatcher(endpoint) as dispatcher:
        for number in range(count):
            customer, cents = (f"c{number % 7}", number) if number % 100 else (f"d{number}", "many")
            await dispatcher.produce(fields={"customer": customer, "cents": str(cents)})


async def stop_after(consumer: AsyncConsumer, count: int) -> None:
    """End the example once all orders are settled. A service runs until SIGTERM."""
    while (stats := consumer.stats()).acked + stats.dead < count:
        await asyncio.sleep(0.05)
    consumer.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="Handle the entries of a Redis stream in tasks of an event loop.")
    parser.add_argument("--url", help="your server, e.g. redis://user@localhost:6379/0 (default: one with orders)")
    parser.add_argument("--password-env", metavar="NAME", help="environment variable with the server's password")
    parser.add_argument("--stream-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--group", default="billing", help="consumer group (default: %(default)s)")
    parser.add_argument("--consumer", default=socket.gethostname(), help="name of this worker (default: the host's)")
    parser.add_argument("--concurrency", type=int, default=64, help="number of tasks (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for a call (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, help="port for Prometheus; needs headrace[prometheus]")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(LocalServer()).url
        asyncio.run(work(arguments, url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
