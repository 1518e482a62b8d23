"""A hostile MCP server: raw JSON-RPC on stdio, no SDK, so that it starts at once.

Its one honest tool is `probe`: it runs an attack of a neighbouring module in a child process
and reports the outcome. The other tools misbehave on the stream, in memory, at the end.
Options of the command line misbehave from the start on.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parent))

BLOCK = 1 << 16


def write(data: bytes, descriptor: int = 1) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def send(message: dict[str, Any]) -> None:
    write(json.dumps(message).encode() + b"\n")


def answer(call_id: object, value: object) -> None:
    content = [{"type": "text", "text": json.dumps(value)}]
    send({"jsonrpc": "2.0", "id": call_id, "result": {"content": content}})


def notification(text: str) -> bytes:
    params = {"level": "info", "data": text}
    message = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
    return json.dumps(message).encode() + b"\n"


def pause_forever() -> None:
    while True:
        signal.pause()


# Tools: each takes the call's id and arguments, and answers or not.


def probe(call_id: object, module: str, name: str, args: list[Any]) -> None:
    """Runs `module.name(*args)` in a child process; its value or its failure is the answer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            value = getattr(importlib.import_module(module), name)(*args)
            report: object = {"value": value}
        except BaseException as error:  # noqa: BLE001 - whatever it was is the report
            report = {"failed": f"{type(error).__name__}: {error}"}
        write(json.dumps(report).encode(), writer)
        os._exit(0)
    os.close(writer)
    data = b""
    while piece := os.read(reader, BLOCK):
        data += piece
    os.close(reader)
    _, ended = os.waitpid(pid, 0)
    answer(call_id, json.loads(data) if data else {"died": os.waitstatus_to_exitcode(ended)})


def raw(call_id: object, template: str) -> None:
    """Writes the bytes of `template` (base64) with the call's id in place of `@ID@`."""
    write(base64.b64decode(template).replace(b"@ID@", json.dumps(call_id).encode()))


def big_line(call_id: object, size: int) -> None:
    """A good reply in a line of exactly `size` bytes, its newline not counted."""
    head = b'{"jsonrpc":"2.0","id":' + json.dumps(call_id).encode()
    head += b',"result":{"content":[{"type":"text","text":"'
    tail = b'"}]}}'
    write(head)
    left = size - len(head) - len(tail)
    while left:
        piece = min(left, 1 << 20)
        write(b"a" * piece)
        left -= piece
    write(tail + b"\n")


def endless(call_id: object) -> None:
    """A reply that never ends."""
    write(b'{"jsonrpc":"2.0","id":' + json.dumps(call_id).encode() + b',"result":{"text":"')
    while True:
        write(b"a" * BLOCK)


def flood(call_id: object, kind: str, size: int) -> None:
    """Writes `size` bytes of stderr, notifications or garbage lines, then answers."""
    line = {
        "stderr": b"e" * 1023 + b"\n",
        "notifications": notification("n" * 64),
        "garbage": b"no message at all " * 8 + b"\n",
        "blank": b"\n",
    }[kind]
    block = line * max(1, BLOCK // len(line))
    for _ in range(-(-size // len(block))):
        write(block, 2 if kind == "stderr" else 1)
    answer(call_id, "done")


def say(call_id: object, text: str) -> None:
    write(text.encode() + b"\n", 2)
    answer(call_id, "said")


def mutter(call_id: object, text: str) -> None:
    """Writes to stderr without ending the line."""
    write(text.encode(), 2)
    answer(call_id, "muttered")


def print_text(call_id: object, text: str) -> None:
    """Writes a line to stdout that is no message, then answers."""
    write(text.encode() + b"\n")
    answer(call_id, "printed")


def hold(call_id: object) -> None:
    """Never answers this call; says on stderr that it was heard."""
    write(f"held {json.dumps(call_id)}\n".encode(), 2)


def deafen(call_id: object) -> None:
    """Answers, and reads nothing from then on."""
    answer(call_id, "deaf")
    pause_forever()


def die(call_id: object, code: int = 0, number: int = 0) -> None:  # noqa: ARG001
    end(code, number)


def eat(call_id: object) -> None:  # noqa: ARG001
    """Takes memory until the kernel ends the process."""
    kept: list[bytes] = []
    while True:
        kept.append(os.urandom(1 << 20))


def end(code: int, number: int) -> None:
    if number:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)


TOOLS: dict[str, Callable[..., None]] = {
    tool.__name__: tool
    for tool in (
        probe, raw, big_line, endless, flood, say, mutter, print_text, hold, deafen, die, eat
    )
}  # fmt: skip


def handle(message: dict[str, Any]) -> None:
    method, call_id = message.get("method"), message.get("id")
    params: dict[str, Any] = message.get("params") or {}
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        }
        send({"jsonrpc": "2.0", "id": call_id, "result": result})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        send({"jsonrpc": "2.0", "id": call_id, "result": {"tools": tools}})
    elif method == "tools/call":
        TOOLS[params["name"]](call_id, **(params.get("arguments") or {}))
    elif call_id is not None:
        send({"jsonrpc": "2.0", "id": call_id, "result": {}})


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--say", default="", help="write this to stderr first")
    parser.add_argument("--print", default="", help="write these bytes (base64) to stdout first")
    parser.add_argument("--exit", type=int, help="exit at once with this code")
    parser.add_argument("--signal", type=int, default=0, help="end at once by this signal")
    parser.add_argument("--eat", action="store_true", help="take all memory at once")
    parser.add_argument("--mute", action="store_true", help="read, and answer nothing")
    parser.add_argument("--deaf", action="store_true", help="read nothing")
    parser.add_argument("--stubborn", action="store_true", help="ignore end of input and SIGTERM")
    return parser.parse_args()


def start(options: argparse.Namespace) -> None:
    if options.say:
        write(options.say.encode() + b"\n", 2)
    if options.print:
        write(base64.b64decode(options.print))
    if options.stubborn:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
    if options.eat:
        eat(None)
    if options.exit is not None or options.signal:
        end(options.exit or 0, options.signal)
    if options.deaf:
        pause_forever()


def main() -> None:
    options = parse_options()
    start(options)
    for line in iter(sys.stdin.buffer.readline, b""):
        if not options.mute:
            handle(json.loads(line))
    while options.stubborn:
        time.sleep(3600)  # noqa: TID251 - waits for nothing: it refuses to end


if __name__ == "__main__":
    main()
