"""Dispatchers whose messages carry the trace context: the fields `traceparent` and `tracestate`.

The names and their values are those of <https://www.w3.org/TR/trace-context/>. Only this module uses OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace._headrace import kept_fields
from headrace.dispatcher_base import DispatcherBase
from headrace.errors import ConfigError, MessageError

if TYPE_CHECKING:
    from headrace._headrace import _ArrowArray, _ArrowStream, _Bytes, _Fields
    from headrace.endpoint import Endpoint

__all__ = ["trace"]

#: The fields that messages get.
NAMES: Final = ("traceparent", "tracestate")


class TraceContext:
    """Reads the current context, and adds it to messages."""

    def __init__(self, endpoint: Endpoint, options: dict[str, Any], *, is_on: object) -> None:
        if is_on is not True:
            raise ConfigError(f"trace_context must be True or False, got {is_on!r}", option="trace_context")
        given = {**options, "key_field": endpoint.key_field}
        for option in ("payload_field", "ts_field", "key_field"):
            if (name := given.get(option)) in NAMES:
                raise ConfigError(f"{option} must not be {name!r}: trace_context adds this field", option=option)
        try:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            message = "trace_context needs opentelemetry-api: pip install opentelemetry-api"
            raise ConfigError(message, option="trace_context") from error
        # The propagators that the application has configured may use other names.
        self._inject = TraceContextTextMapPropagator().inject

    def current(self) -> list[tuple[str, str]]:
        """Return the fields of the current context; none without a span."""
        carrier: dict[str, str] = {}
        self._inject(carrier)
        return list(carrier.items())

    def added_to(self, payload: _Bytes | None, fields: _Fields | None) -> _Fields | None:
        """Return the fields of a message, with those of the current context after them."""
        own = [] if fields is None else kept_fields(fields)
        for name, _ in own:
            if (name.decode(errors="replace") if isinstance(name, bytes) else name) in NAMES:
                raise MessageError(f"fields has {name!r}, which trace_context adds: leave it out")
        if payload is None and not own:  # a message without a field fails
            return fields
        return [*own, *self.current()]

    def of_batch(self) -> dict[str, Any]:
        """Return the argument of `produce_batch` with the fields of the current context."""
        return {"_constants": self.current()}


class Traced:
    """What a `Dispatcher` whose messages carry the current trace context does first."""

    _trace: TraceContext

    def produce(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> None:
        fields = self._trace.added_to(payload, fields)
        then: Any = super()
        then.produce(payload, message_id, key, fields=fields, stream_key=stream_key, entry_id=entry_id)

    def produce_batch(self, data: _ArrowArray | _ArrowStream, **layout: Any) -> None:
        then: Any = super()
        then.produce_batch(data, **layout, **self._trace.of_batch())

    def dispatch(
        self,
        payload: _Bytes | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> Any:
        fields = self._trace.added_to(payload, fields)
        then: Any = super()
        return then.dispatch(payload, key, fields=fields, stream_key=stream_key, entry_id=entry_id)


class TracedAsync:
    """What an `AsyncDispatcher` whose messages carry the trace context of their task does first."""

    _trace: TraceContext

    async def send(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> Any:
        fields = self._trace.added_to(payload, fields)
        then: Any = super()
        return await then.send(payload, message_id, key, fields=fields, stream_key=stream_key, entry_id=entry_id)

    async def produce(
        self,
        payload: _Bytes | None = None,
        message_id: int | str | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> None:
        fields = self._trace.added_to(payload, fields)
        then: Any = super()
        await then.produce(payload, message_id, key, fields=fields, stream_key=stream_key, entry_id=entry_id)

    async def produce_batch(self, data: _ArrowArray | _ArrowStream, **layout: Any) -> None:
        then: Any = super()
        await then.produce_batch(data, **layout, **self._trace.of_batch())


def trace(dispatcher: DispatcherBase, base: type[DispatcherBase], options: dict[str, Any], *, is_on: object) -> None:
    """Make a dispatcher that was just created add the trace context to its messages.

    Args:
        dispatcher: One of the class `base` or a subclass of it.
        base: `Dispatcher` or `AsyncDispatcher`.
        options: Its options.
        is_on: The option `trace_context`.

    Raises:
        ConfigError: OpenTelemetry is not installed, or another field has one of the names.
    """
    context = TraceContext(dispatcher.endpoint, options, is_on=is_on)
    # A class of its own: other dispatchers have no additional step for each message.
    dispatcher.__class__ = _traced_kind(type(dispatcher), base)
    vars(dispatcher)["_trace"] = context


def _traced_kind(kind: type[DispatcherBase], base: type[DispatcherBase]) -> type[DispatcherBase]:
    """Return the class of dispatchers of this kind that carry the trace context.

    The methods of a subclass of the caller come before those that add the context: whatever they pass on has it.
    """
    if (made := _KINDS.get(kind)) is None:
        bases = (
            (TracedAsync if hasattr(base, "send") else Traced, base)
            if kind is base
            else (kind, _traced_kind(base, base))
        )
        named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        made = _KINDS[kind] = type(kind.__name__, bases, named)
    return made


#: Each class that has traced dispatchers, and theirs.
_KINDS: Final[dict[type[DispatcherBase], type[DispatcherBase]]] = {}
