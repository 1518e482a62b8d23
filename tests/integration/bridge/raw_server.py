"""The smallest server that misbehaves on request; standard library only, started with `-c`.

The name of the called tool says what it does: `echo` answers, `hold` never does, `die` ends the
process at once, `odd` sends a notification and a request that no protocol knows, then answers.
"""

import json
import os
import sys


def _send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _answer(request: object, text: str) -> None:
    _send(id=request, result={"content": [{"type": "text", "text": text}]})


def _call(request: object, tool: str, text: str) -> None:
    if tool == "die":
        sys.stderr.write(f"last words: {text}\n")
        sys.stderr.flush()
        os._exit(7)
    if tool == "odd":
        _send(method="notifications/from_the_future", params={"x": [1, None]})
        _send(id="odd-1", method="nobody/knows", params={})
        return
    if tool == "echo":
        _answer(request, text)


def _main() -> None:
    waiting: object = None
    for line in sys.stdin:
        message = json.loads(line)
        method, request, params = (message.get(key) for key in ("method", "id", "params"))
        if method == "initialize":
            result: dict[str, object] = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "1"},
            }
            _send(id=request, result=result)
        elif method == "tools/list":
            _send(id=request, result={"tools": []})
        elif method == "tools/call":
            waiting = request
            _call(request, params["name"], params.get("arguments", {}).get("text", ""))
        elif method is None and request == "odd-1":
            _answer(waiting, json.dumps(message["error"]["code"]))


_main()
