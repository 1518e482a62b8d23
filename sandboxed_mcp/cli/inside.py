"""What a program inside a sandbox tries, to see whether it can: each attempt is really made.

The source of this file is run in the sandbox as `python3 -I -c SOURCE JSON`, so it stands
alone. JSON holds the attempts' ids and what the host side knows; each attempt prints a line.
An attempt that raises `OSError` or `Blocked` was not possible; one that returns was, and the
text says what it got. Nothing here does harm where it succeeds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIB = 1024 * 1024
SCRATCH = "/tmp"  # noqa: S108 - the sandbox's own
SETTING = "/proc/sys/kernel/core_pattern"
ADDRESS4 = "198.51.100.1"  # RFC 5737: documentation, routed nowhere
ADDRESS6 = "2001:db8::1"  # RFC 3849: likewise
CLONE_NEWUSER = 0x10000000
MOUNT = (b"none", SCRATCH.encode(), b"tmpfs", ctypes.c_ulong(0), None)
PTRACE_ATTACH = 16
FINIT_MODULE = {"x86_64": 313, "aarch64": 273}
ENGINE_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock")


class Blocked(Exception):  # noqa: N818 - the outcome hoped for, not an error
    """The attempt was not possible; the text says how that showed."""


def connect(family: int, address: str) -> str:
    """Connects over TCP."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(3)
        sock.connect((address, 443))
    return "connected"


def udp(_: dict[str, Any]) -> str:
    """Sends a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"?", (ADDRESS4, 53))
    return "sent"


def dns(_: dict[str, Any]) -> str:
    """Looks up a name."""
    try:
        found = socket.getaddrinfo("example.com", 443)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise Blocked("EAI_AGAIN, no resolver answers") from None
        return f"a resolver answered: {error.strerror}"
    return f"resolved to {found[0][4][0]}"


def interfaces(_: dict[str, Any]) -> str:
    """Looks for a network interface besides loopback."""
    names = [name for _, name in socket.if_nameindex()]
    if names == ["lo"]:
        raise Blocked("only loopback is there")
    return ", ".join(names)


def variable(facts: dict[str, Any]) -> str:
    """Looks for the launcher's variable in every environment that can be read."""
    if facts["variable"] in environment():
        return "found"
    raise Blocked("only " + ", ".join(sorted(environment())))


def docker_host(_: dict[str, Any]) -> str:
    """Looks for the address of the engine."""
    if "DOCKER_HOST" in environment():
        return "found"
    raise Blocked("not set")


def home(facts: dict[str, Any]) -> str:
    """Learns the launcher's home from HOME."""
    own = os.environ.get("HOME")
    if own == facts["home"]:
        return f"HOME is {own}"
    raise Blocked(f"HOME is {own}")


def environment() -> set[str]:
    """The names of variables in every process that can be seen, as each was started."""
    found: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            entries = path.read_bytes().split(b"\0")
            found |= {entry.partition(b"=")[0].decode() for entry in entries if entry}
    return found


def host_file(facts: dict[str, Any]) -> str:
    """Reads a file of the host that every user of the host may read."""
    return Path(facts["file"]).read_text(encoding="utf-8")


def shadow(_: dict[str, Any]) -> str:
    """Reads the password hashes."""
    return f"{len(Path('/etc/shadow').read_bytes())} bytes read"


def engine_socket(_: dict[str, Any]) -> str:
    """Connects to the engine."""
    there = [path for path in ENGINE_SOCKETS if Path(path).exists()]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect((there or ENGINE_SOCKETS)[0])
    return f"connected to {there[0]}"


def touch(path: str, mode: int) -> str:
    """Opens a file and does nothing with it."""
    os.close(os.open(path, mode))
    return "opened"


def write(path: str) -> str:
    """Makes a file and removes it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    Path(path).unlink()
    return "written"


def capability(_: dict[str, Any]) -> str:
    """Looks for a capability held or to be had (capabilities(7))."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    held = [name for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    if not held and status["NoNewPrivs"] == "1":
        raise Blocked("none, nor to be gained")
    return ", ".join(held) or "privileges can be gained"


def raw_socket(_: dict[str, Any]) -> str:
    """Opens a socket that writes its own headers."""
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "opened"


def trace(facts: dict[str, Any]) -> str:
    """Attaches to the launcher's process as a debugger."""
    pid = int(facts["pid"])
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return call("ptrace", PTRACE_ATTACH, pid, None, None)
    if stat.rpartition(")")[2].split()[19] == facts["start"]:
        return "the launcher can be seen"
    raise Blocked("the launcher cannot be seen")


def load_module(_: dict[str, Any]) -> str:
    """Loads a kernel module: with a descriptor that is none, so it never succeeds."""
    number = FINIT_MODULE.get(os.uname().machine)
    if number is None:
        raise Blocked("not tried on this machine type")
    try:
        return call("syscall", number, -1, b"", 0)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        return f"allowed as far as {errno.errorcode[error.errno or 0]}"


def call(name: str, *arguments: object) -> str:
    """Calls a function of the C library; its error becomes an `OSError`."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "done"


def processes(facts: dict[str, Any]) -> str:
    """Starts more processes than the limit says."""
    children: list[int] = []
    waiting, started = os.pipe()
    try:
        while len(children) <= facts["pids"]:
            child = os.fork()
            if not child:
                os.read(waiting, 1)  # until it is killed
            children.append(child)
    except OSError as error:
        raise Blocked(f"{name_error(error)} after {len(children)}") from None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(waiting)
        os.close(started)
    return f"{len(children)} started"


def scratch(facts: dict[str, Any]) -> str:
    """Writes more to scratch than the limit says."""
    path, written = Path(SCRATCH, "attempt"), 0
    try:
        with path.open("wb", buffering=0) as file:
            while written <= facts["scratch"]:
                written += file.write(bytes(MIB))
    except OSError as error:
        raise Blocked(f"{name_error(error)} after {written // MIB} MiB") from None
    finally:
        path.unlink(missing_ok=True)
    return f"{written // MIB} MiB written"


def memory(facts: dict[str, Any]) -> str:
    """Takes more memory than the limit says, in a child process."""
    child = os.fork()
    if not child:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        taken = b"\1" * (facts["memory"] + 16 * MIB)
        os._exit(0 if taken else 1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise Blocked(f"{signal.Signals(os.WTERMSIG(status)).name} at the limit")
    return "taken" if os.WEXITSTATUS(status) == 0 else "the child ended by itself"


# Group, title and attempt by id; memory comes last, as it might take this process with it.
ATTEMPTS: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "tcp4": ("network", f"TCP to {ADDRESS4}:443", lambda _: connect(socket.AF_INET, ADDRESS4)),
    "tcp6": ("network", f"TCP to [{ADDRESS6}]:443", lambda _: connect(socket.AF_INET6, ADDRESS6)),
    "udp": ("network", f"UDP to {ADDRESS4}:53", udp),
    "dns": ("network", "look up example.com", dns),
    "interfaces": ("network", "find a network interface", interfaces),
    "variable": ("environment", "read a variable of the launcher", variable),
    "docker_host": ("environment", "read DOCKER_HOST", docker_host),
    "home": ("environment", "learn the launcher's HOME", home),
    "host_file": ("files", "read a file of the host", host_file),
    "shadow": ("files", "read /etc/shadow", shadow),
    "engine_socket": ("files", "connect to the engine's socket", engine_socket),
    "write_usr": ("files", "write to /usr", lambda _: write("/usr/bin/attempt")),
    "write_etc": ("files", "write to /etc", lambda _: write("/etc/attempt")),
    "write_root": ("files", "write to /", lambda _: write("/attempt")),
    "write_kernel": ("files", "change a kernel setting", lambda _: touch(SETTING, os.O_WRONLY)),
    "become_root": ("privileges", "become root", lambda _: call("setuid", 0)),
    "capability": ("privileges", "hold a capability", capability),
    "mount": ("privileges", "mount a file system", lambda _: call("mount", *MOUNT)),
    "unshare": ("privileges", "make a user namespace", lambda _: call("unshare", CLONE_NEWUSER)),
    "raw_socket": ("privileges", "open a raw socket", raw_socket),
    "trace": ("privileges", "trace the launcher's process", trace),
    "load_module": ("privileges", "load a kernel module", load_module),
    "memory_device": ("privileges", "open /dev/mem", lambda _: touch("/dev/mem", os.O_RDONLY)),
    "processes": ("limits", "start too many processes", processes),
    "scratch": ("limits", "write too much to scratch", scratch),
    "memory": ("limits", "take too much memory", memory),
}


def attempt(name: str, facts: dict[str, Any]) -> tuple[bool, str]:
    """Makes one attempt; gives whether it was blocked, and the outcome."""
    try:
        return False, ATTEMPTS[name][2](facts)
    except Blocked as reason:
        return True, str(reason)
    except OSError as error:
        return True, f"{name_error(error)}, {(error.strerror or '').lower()}"
    except Exception as error:  # noqa: BLE001 - an attempt that could not be made proves nothing
        return False, f"not tried: {type(error).__name__}: {error}"


def name_error(error: OSError) -> str:
    """The error's symbolic name (errno(3))."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def main() -> None:
    """Makes the attempts that the argument names, each in a process of its own."""
    task = json.loads(sys.argv[1])
    for name in task["attempts"]:
        child = os.fork()
        if not child:
            blocked, outcome = attempt(name, task["facts"])
            print(json.dumps({"id": name, "blocked": blocked, "outcome": outcome}), flush=True)  # noqa: T201
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
