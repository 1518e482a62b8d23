"""The watchdog's own process: outlives a killed launcher just long enough to tidy up.

Started by `watchdog.py` as `python -I -S watchdog_process.py`, it waits for its standard
input to end or its launcher to die, whichever comes first, and then removes what the launcher
had not yet reported as gone: containers by launch id, its
secret files and its control socket. It
imports almost nothing until then, so that it costs a few MiB. Lines on its input, JSON:

    {"watch": LAUNCH, "endpoint": {...}, "version": "1.41", "paths": [PATH]}
    {"done": LAUNCH}

It never touches a container that does not carry a launch id it was given.
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False  # typing itself would cost a MiB
if TYPE_CHECKING:
    import socket
    from typing import Any

SWEEP_SECONDS = 30.0
QUIET_SECONDS = 5.0
PAUSE_SECONDS = 0.2
READ_BYTES = 65536


def main() -> None:
    """Waits for the launcher's end, then sweeps."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    launches = parse_launches(read_until_end(int(sys.argv[1])))
    if launches:
        sweep(launches)


def read_until_end(launcher: int) -> bytes:
    """All of standard input, until it ends or the process `launcher` does."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        # A child of the launcher may hold our pipe open; the launcher's own end counts too.
        death = os.pidfd_open(launcher)
        poll.register(death, select.POLLIN)
    except (AttributeError, OSError):
        death = -1
    chunks: list[bytes] = []
    while True:
        ready = dict(poll.poll())
        if 0 in ready:
            data = os.read(0, READ_BYTES)
            if not data:
                return b"".join(chunks)
            chunks.append(data)
            if len(chunks) > 64:  # noqa: PLR2004 - keep the list short in a long-lived launcher
                chunks = [forget_done(b"".join(chunks))]
        elif death in ready:
            return b"".join(chunks)


def forget_done(data: bytes) -> bytes:
    """The same input without the launches that are done."""
    import json  # noqa: PLC0415 - see the module's docstring

    whole, newline, rest = data.rpartition(b"\n")
    live = parse_launches(whole + newline)
    kept = [json.dumps(launch).encode() + b"\n" for launch in live.values()]
    return b"".join(kept) + rest


def parse_launches(data: bytes) -> dict[str, dict[str, Any]]:
    """The launches that were watched and not reported done; a torn last line is ignored."""
    import json  # noqa: PLC0415

    launches: dict[str, dict[str, Any]] = {}
    for line in data.split(b"\n")[:-1]:
        message = json.loads(line)
        if "done" in message:
            launches.pop(message["done"], None)
        else:
            launches[message["watch"]] = message
    return launches


def sweep(launches: dict[str, dict[str, Any]]) -> None:
    """Removes containers until none has shown up for a while: a create may still be under way."""
    import time  # noqa: PLC0415

    for launch in launches.values():
        remove_paths(launch["paths"])
    end = time.monotonic() + SWEEP_SECONDS
    quiet = {name: time.monotonic() for name in launches}
    while quiet and time.monotonic() < end:
        for name in list(quiet):
            try:
                if remove_containers(launches[name], name):
                    quiet[name] = time.monotonic()
                elif time.monotonic() - quiet[name] > QUIET_SECONDS:
                    del quiet[name]
            except (OSError, ValueError):
                continue  # the engine is restarting or busy; the bound above ends this
        select.select([], [], [], PAUSE_SECONDS)


def remove_paths(paths: list[str]) -> None:
    """Removes files and whole folders; what is not there is no error."""
    import shutil  # noqa: PLC0415

    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            os.unlink(path)  # noqa: PTH108
        except OSError:
            continue


def remove_containers(launch: dict[str, Any], name: str) -> int:
    """Removes the containers that carry the launch id; gives how many there were."""
    import json  # noqa: PLC0415
    from urllib.parse import urlencode  # noqa: PLC0415

    filters = json.dumps({"label": [f"sandboxed-mcp.launch={name}"]})
    found = request(launch, "GET", "/containers/json?" + urlencode({"all": 1, "filters": filters}))
    if not found.startswith(b"["):
        raise ValueError("the engine lists nothing at the moment")
    rows: list[dict[str, Any]] = json.loads(found)
    for row in rows:
        request(launch, "DELETE", f"/containers/{row['Id']}?force=1&v=1")
    return len(rows)


def request(launch: dict[str, Any], method: str, path: str) -> bytes:
    """One request to the launch's engine."""
    import http.client  # noqa: PLC0415

    connection = http.client.HTTPConnection("docker", timeout=10)
    connection.sock = connect(launch["endpoint"])
    try:
        connection.request(method, f"/v{launch['version']}{path}")
        return connection.getresponse().read()
    finally:
        connection.close()


def connect(endpoint: dict[str, Any]) -> socket.socket:
    """A connected socket to the engine."""
    import socket  # noqa: PLC0415
    import subprocess  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415

    url: str = endpoint["url"]
    parts = urlsplit(url)
    if parts.scheme == "unix":
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(10)
        plain.connect(parts.path)
        return plain
    if parts.scheme == "ssh":
        ours, theirs = socket.socketpair()
        target = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
        port = ["-p", str(parts.port)] if parts.port else []
        subprocess.Popen(  # noqa: S603
            ["ssh", "-T", *port, "--", target, "docker", "system", "dial-stdio"],  # noqa: S607
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(10)
        return ours
    tls = endpoint["tls_dir"] is not None
    host = parts.hostname or ""
    plain = socket.create_connection((host, parts.port or (2376 if tls else 2375)), timeout=10)
    return secure(plain, endpoint, host) if tls else plain


def secure(plain: socket.socket, endpoint: dict[str, Any], host: str) -> socket.socket:
    """TLS over a connected socket, with the files that Docker's CLI uses."""
    import ssl  # noqa: PLC0415

    folder = endpoint["tls_dir"]
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    if not endpoint["tls_verify"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if os.path.exists(f"{folder}/cert.pem"):  # noqa: PTH110
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    return context.wrap_socket(plain, server_hostname=host)


if __name__ == "__main__":
    main()
