"""`AsyncReader` and `AsyncConsumer` on asyncio and uvloop; laboratory: calls that are cancelled at random moments."""
