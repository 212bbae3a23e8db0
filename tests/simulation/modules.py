"""What the product sees as ``time``, ``threading`` and others in a simulation, and how it comes to see them.

:func:`simulated` puts them into the globals of all modules of ``mama_spark``, and takes them out again. Of what the
product took from the real ones when it was imported,

- modules (``import time``, ``import time as clock``) and names (``from threading import Lock``) are replaced wherever
  they are globals of a module, by identity;
- default arguments (``clock: Callable[[], float] = time.monotonic``) are replaced in functions and methods; no default
  of a dataclass is a clock;
- locks, conditions and events that were made at the import, in a module or a class, are replaced by one for each host;
- objects that stand for a process of the product (:data:`GLOBALS`: pools, what it knows of servers) are replaced by one
  for each host, made when it is used first;
- a module that is imported meanwhile is treated in the same way when it has run.

Threads are simulated instead of being turned into steps with a shell around them: so nothing of the product is written
for its simulation, and its locks, waits and deadlines are explored as they are.

Not simulated: event loops (``asyncio``), thread pools, sockets and ``select`` but for NATS, TLS, and subclasses of the
real classes (``StopEvent``). No world has the managed publisher (futures), leases and direct gets of discovery over
NATS (``NatsLeases``), or Malamute's engine ``jetstream`` with its exactly once: live tests alone try these.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.abc
import importlib.machinery
import inspect
import logging
import os
import queue
import random
import secrets
import socket
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from . import threads
from .kernel import Scheduler, active, monotonic
from .sockets import SimSocket, create_connection
from .spark import application, delta

#: What stands for a process of the product: modules, their names, and how each is made.
GLOBALS: Mapping[str, Mapping[str, Callable[[types.ModuleType], Any]]] = {
    "mama_spark.nats.connection.pool": {"POOL": lambda m: m.NatsPool()},
    "mama_spark.nats.connection.socket_driver": {"SILENT": lambda m: m.SilentServers(monotonic)},
    "mama_spark.discovery.lease_keeper": {"_keepers": lambda m: {}},
    "mama_spark.flightlog.storage": {"KEPT_TABLES": lambda m: m.KeptTables()},
    "mama_spark.flightlog.staging": {"_checked": lambda m: {}},
}


def _time() -> float:
    monotonic()
    return active().here.time()


def _nanoseconds(clock: Callable[[], float]) -> Callable[[], int]:
    return lambda: round(clock() * 1e9)


def _clock_gettime(which: int) -> float:
    boot = which == getattr(time, "CLOCK_BOOTTIME", None)
    return active().here.boottime() if boot else monotonic()


def _unique_bytes(n: int = 32) -> bytes:
    """Different ones in a run, from their beginnings on; the same in each, so that what is compiled of them is compiled
    once."""
    number = active().unique().to_bytes(6)
    return number.ljust(n, b"\x5a") if n > len(number) else number[-n:]


class _Random(random.Random):
    """Without a seed, chance is that of the run."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(active().random.getrandbits(64) if seed is None else seed)


class _OfRun:
    """The functions of the module ``random``."""

    Random = _Random

    def __getattr__(self, name: str) -> Any:
        return getattr(active().random, name)


class _KindOfDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime.datetime)


class _Datetime(datetime.datetime, metaclass=_KindOfDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return datetime.datetime.fromtimestamp(_time(), tz)


class _Module:
    """A module of which some names are others."""

    def __init__(self, real: types.ModuleType, **names: Any) -> None:
        self.__dict__.update(vars(real) | names)


class OnEachHost:
    """Something global, of which each host has its own; between runs it is the real one."""

    def __init__(self, name: str, make: Callable[[], Any], real: Any) -> None:
        self._name, self._make, self._real = name, make, real

    def _mine(self) -> Any:
        if Scheduler.active is None:
            return self._real
        known = active().here.globals
        if self._name not in known:
            known[self._name] = self._make()
        return known[self._name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __enter__(self) -> Any:
        return self._mine().__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._mine().__exit__(*error)

    def __contains__(self, item: object) -> bool:
        return item in self._mine()

    def __getitem__(self, key: Any) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mine()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._mine()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())


def _simulated_time() -> dict[str, Any]:
    clocks = {"monotonic": monotonic, "time": _time, "perf_counter": monotonic, "process_time": monotonic}
    return {
        **clocks,
        **{f"{name}_ns": _nanoseconds(clock) for name, clock in clocks.items()},
        "sleep": lambda seconds: active().sleep(seconds),
        "clock_gettime": _clock_gettime,
    }


_NAMES: dict[types.ModuleType, dict[str, Any]] = {
    time: _simulated_time(),
    threading: threads.NAMES,
    socket: {"create_connection": create_connection},
    queue: {"Queue": threads.SimQueue, "SimpleQueue": threads.SimQueue},
    secrets: {
        "token_hex": lambda n=32: _unique_bytes(n).hex(),
        "token_bytes": _unique_bytes,
        "randbits": lambda k: active().random.getrandbits(k),
        "randbelow": lambda n: active().random.randrange(n),
    },
    uuid: {"uuid4": lambda: uuid.UUID(bytes=_unique_bytes(16), version=4)},
    os: {
        "urandom": _unique_bytes,
        "getpid": lambda: 100 * active().here.number + active().here.life,
        "register_at_fork": lambda **_: None,
    },
}
_PREMADE: tuple[tuple[Any, Callable[[], Any]], ...] = (
    (type(threading.Lock()), threads.SimLock),
    (type(threading.RLock()), threads.SimRLock),
    (threading.Condition, threads.SimCondition),
    (threading.Event, threads.SimEvent),
)


def _table() -> dict[int, Any]:
    """By the identity of what is real: what stands in its place."""
    from mama_spark.contracts.connection_pool import require_file_descriptors
    from mama_spark.nats.connection.nonblocking_socket import NonBlockingSocket

    found: dict[int, Any] = {
        id(random): _OfRun(),
        id(random.Random): _Random,
        id(random.random): lambda: active().random.random(),
        id(datetime.datetime): _Datetime,
        id(datetime): _Module(datetime, datetime=_Datetime),
        id(Future): threads.SimFuture,
        id(NonBlockingSocket): SimSocket,
        id(require_file_descriptors): lambda *_: None,
        **delta.replaced(),
        **application.replaced(),
    }
    for module, names in _NAMES.items():
        found[id(module)] = _Module(module, **names)
        found.update({id(getattr(module, name)): value for name, value in names.items() if hasattr(module, name)})
    return found


class _Replaced:
    """What was replaced, and can be put back."""

    def __init__(self) -> None:
        self._table = _table()
        self._undo: list[Callable[[], None]] = []
        self._done: set[str] = set()

    def loaded(self) -> None:
        """All modules of the product that are there."""
        for names in GLOBALS:
            importlib.import_module(names)
        for name in sorted(name for name in sys.modules if name.split(".")[0] == "mama_spark"):
            self._per_host(sys.modules[name], GLOBALS.get(name, {}))
        for name in sorted(name for name in sys.modules if name.split(".")[0] == "mama_spark"):
            self.module(sys.modules[name])

    def undo(self) -> None:
        for put_back in reversed(self._undo):
            put_back()

    def _per_host(self, module: types.ModuleType, makers: Mapping[str, Callable[[types.ModuleType], Any]]) -> None:
        for name, make in makers.items():
            value = getattr(module, name)
            self._table[id(value)] = OnEachHost(f"{module.__name__}.{name}", _bound(make, module), value)

    def module(self, module: types.ModuleType) -> None:
        """One module, once."""
        if module.__name__ in self._done:
            return
        self._done.add(module.__name__)
        self._namespace(module, module.__name__)
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(value):
                self._class(value)
            elif inspect.isfunction(value):
                self._defaults(value)

    def _class(self, kind: type) -> None:
        self._namespace(kind, f"{kind.__module__}.{kind.__qualname__}")
        for value in list(vars(kind).values()):
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if inspect.isfunction(function):
                self._defaults(function)

    def _namespace(self, where: Any, called: str) -> None:
        for name, value in list(vars(where).items()):
            new = self._table.get(id(value))
            if new is None:
                make = next((make for kind, make in _PREMADE if type(value) is kind), None)
                if make is None:
                    continue
                new = self._table[id(value)] = OnEachHost(f"{called}.{name}", make, value)
            self._undo.append(_setter(where, name, value))
            setattr(where, name, new)

    def _defaults(self, function: types.FunctionType) -> None:
        old, named = function.__defaults__, function.__kwdefaults__
        if any(id(value) in self._table for value in old or ()):
            function.__defaults__ = tuple(self._table.get(id(value), value) for value in old or ())
            self._undo.append(lambda: setattr(function, "__defaults__", old))
        if any(id(value) in self._table for value in (named or {}).values()):
            function.__kwdefaults__ = {n: self._table.get(id(value), value) for n, value in (named or {}).items()}
            self._undo.append(lambda: setattr(function, "__kwdefaults__", named))


def _bound(make: Callable[[types.ModuleType], Any], module: types.ModuleType) -> Callable[[], Any]:
    return lambda: make(module)


def _setter(where: Any, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(where, name, value)


class _Imports(importlib.abc.MetaPathFinder):
    """Sees modules of the product that are imported during a simulation."""

    def __init__(self, replaced: _Replaced) -> None:
        self._replaced = replaced

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("mama_spark."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run, replaced = spec.loader.exec_module, self._replaced

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                replaced.module(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Log(logging.Handler):
    """Writes what the product logs into the trace."""

    def emit(self, record: logging.LogRecord) -> None:
        if active().tracing:
            active().trace(f"log: {record.getMessage()}")


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Let the product see simulated modules; runs follow one another inside."""
    replaced = _Replaced()
    replaced.loaded()
    imports, log, logger = _Imports(replaced), _Log(), logging.getLogger("mama_spark")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    sys.meta_path.insert(0, imports)
    try:
        yield
    finally:
        sys.meta_path.remove(imports)
        logger.removeHandler(log)
        logger.propagate = propagate
        replaced.undo()
