"""Attacks on the kernel's interface. Each returns `ok` when it got through, else an errno name.

A probe stops at the permission check: it never loads, reboots, overwrites or sends anything.
Each one gets through in a privileged container, so that `EPERM` says something.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096

# System call numbers, x86_64 and aarch64.
_NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "get_mempolicy": (239, 236),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "setns": (308, 268),
    "socket": (41, 198),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}[os.uname().machine]


def call(name: str, *arguments: object, reached: tuple[int, ...] = ()) -> str:
    """One system call; an errno of `reached` means that it passed the permission check."""
    ctypes.set_errno(0)
    # Whole registers: the upper half of a smaller argument on the stack would be garbage.
    whole = (ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)
    result = LIBC.syscall(_NUMBERS[name][_COLUMN], *whole)
    code = ctypes.get_errno()
    if result >= 0 or code in reached:
        return "ok"
    return errno.errorcode.get(code, str(code))


def attempt(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except ValueError as error:  # the resource module's words for EPERM
        return "EPERM" if "not allowed" in str(error) else str(error)
    return "ok"


def zeroes(size: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(size)


def opens(path: str, flags: int) -> str:
    """Opens and closes; nothing is read or written."""
    return attempt(lambda: os.close(os.open(path, flags)))


# Namespaces, mounts and the root


def unshare(flag: int) -> str:
    return call("unshare", flag)


def clone_user() -> str:
    """A clone3 that asks for a user namespace."""
    arguments = struct.pack("=11Q", NEWUSER, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    return await_child(int(LIBC.syscall(_NUMBERS["clone3"][_COLUMN], buffer, len(arguments))))


def clone_flag(flag: int) -> str:
    """A child in a namespace of its own, by the older clone."""
    return await_child(int(LIBC.syscall(_NUMBERS["clone"][_COLUMN], flag | 17, 0, 0, 0, 0)))


def await_child(pid: int) -> str:
    """Ends the child; in the parent: how the child was made."""
    if pid == 0:
        os._exit(0)
    if pid < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.waitpid(pid, 0)
    return "ok"


def join_namespace(kind: str) -> str:
    """Joins a namespace that it is in already: allowed to whoever may join any."""
    descriptor = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
    return call("setns", descriptor, 0)


def mount_tmpfs() -> str:
    folder = make_folder("mount")
    return call("mount", b"none", folder, b"tmpfs", 0, 0)


def mount_proc() -> str:
    return call("mount", b"proc", make_folder("proc"), b"proc", 0, 0)


def mount_bind() -> str:
    return call("mount", b"/", make_folder("bind"), 0, MS_BIND, 0)


def mount_cgroup() -> str:
    """The first step of the release_agent escape (CVE-2022-0492)."""
    folder = make_folder("cgroup")
    return call("mount", b"none", folder, b"cgroup2", 0, 0, reached=(errno.EBUSY, errno.ENODEV))


def remount_writable(path: str) -> str:
    return call("mount", b"none", path.encode(), 0, MS_REMOUNT | MS_BIND, 0)


def unmount(path: str) -> str:
    """Asks for an unmount of something busy or absent: `EBUSY`, `EINVAL` come after the check."""
    return call("umount2", path.encode(), 0, reached=(errno.EBUSY, errno.EINVAL))


def new_mount_api() -> str:
    return call("fsopen", b"tmpfs", 0)


def open_tree_clone() -> str:
    return call("open_tree", -100, b"/", 1)


def mount_setattr() -> str:
    return call("mount_setattr", -100, b"/", 0, zeroes(32), 32)


def pivot_root() -> str:
    return call("pivot_root", b"/nowhere", b"/nowhere", reached=(errno.ENOENT, errno.EINVAL))


def chroot() -> str:
    return call("chroot", b"/tmp")


def make_folder(name: str) -> bytes:
    folder = Path("/tmp") / f"{name}-{os.getpid()}"
    folder.mkdir()
    return bytes(folder)


# Kernel machinery


def load_module() -> str:
    return call("finit_module", -1, b"", 0, reached=(errno.EBADF, errno.ENOEXEC))


def load_bpf() -> str:
    attributes = struct.pack("=5I", 2, 4, 4, 1, 0)  # BPF_MAP_TYPE_ARRAY
    return call("bpf", 0, ctypes.create_string_buffer(attributes, 72), 72)


def perf_event() -> str:
    attributes = struct.pack("=IIQ", 1, 112, 0)  # PERF_TYPE_SOFTWARE
    return call("perf_event_open", ctypes.create_string_buffer(attributes, 112), -1, 0, -1, 0)


def add_key() -> str:
    return call("add_key", b"user", b"probe", b"x", 1, -3)


def keyctl() -> str:
    return call("keyctl", 0, -3, 1)


def io_uring() -> str:
    return call("io_uring_setup", 1, zeroes(120))


def userfaultfd() -> str:
    return call("userfaultfd", 1)  # UFFD_USER_MODE_ONLY


def fanotify() -> str:
    return call("fanotify_init", 0, 0)


def ask_memory_policy() -> str:
    return call("get_mempolicy", 0, 0, 0, 0, 0)


def map_into_pipe() -> str:
    """Pages of its own in a pipe, without a copy."""
    reading, writing = os.pipe()
    page = zeroes(8)
    outcome = call("vmsplice", writing, struct.pack("=2Q", ctypes.addressof(page), 8), 1, 0)
    os.close(reading)
    os.close(writing)
    return outcome


def name_handle() -> str:
    handle, mount = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136), ctypes.c_int()
    return call("name_to_handle_at", -100, b"/dev/shm", handle, ctypes.byref(mount), 0)


def open_handle() -> str:
    """The `shocker` escape: a file by its handle, outside every mount namespace."""
    target = Path("/dev/shm") / f"handle-{os.getpid()}"
    target.write_bytes(b"")
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136)
    mount = ctypes.c_int()
    named = call("name_to_handle_at", -100, bytes(target), handle, ctypes.byref(mount), 0)
    if named != "ok":
        return named
    folder = os.open("/dev/shm", os.O_RDONLY)
    return call("open_by_handle_at", folder, handle, os.O_RDONLY)


def read_kernel_log() -> str:
    return call("syslog", 3, zeroes(64), 64)


def reboot() -> str:
    return call("reboot", 0, 0, 0, 0, reached=(errno.EINVAL,))


def swapon() -> str:
    return call("swapon", b"/nowhere", 0, reached=(errno.ENOENT,))


def accounting() -> str:
    return call("acct", b"/nowhere", reached=(errno.ENOENT,))


def hang_up() -> str:
    return call("vhangup")


def set_hostname() -> str:
    return attempt(lambda: socket.sethostname(socket.gethostname()))


# Code of another kind


def call_32_bit() -> str:
    """`getpid` as a 32-bit program asks for it; what ended the process that asked."""
    return run_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret


def call_x32() -> str:
    """`getpid` as a program of the x32 kind asks for it."""
    return run_code(b"\xb8\x27\x00\x00\x40\x0f\x05\xc3")  # mov eax, 0x40000027; syscall; ret


def run_code(code: bytes) -> str:
    pid = os.fork()
    if pid == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        os._exit(0 if result == os.getpid() else 1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return "ok" if status == 0 else "ENOSYS"


def weaken_addresses() -> str:
    """A personality without address randomisation, for a moment."""
    outcome = call("personality", 0x0040000)
    call("personality", 0)
    return outcome


# Privileges of the process


def become_root() -> str:
    return attempt(lambda: os.setresuid(0, 0, 0))


def change_groups() -> str:
    return attempt(lambda: os.setgroups([0]))


def raise_priority() -> str:
    return attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))


def real_time() -> str:
    return attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))


def raise_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return attempt(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1)))


def raise_core() -> str:
    return attempt(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)))


def make_device() -> str:
    path = f"/tmp/device-{os.getpid()}"
    return attempt(lambda: os.mknod(path, 0o20600, os.makedev(1, 3)))


def give_file_away() -> str:
    path = Path("/tmp") / f"given-{os.getpid()}"
    path.write_bytes(b"")
    return attempt(lambda: os.chown(path, 4242, 4242))


def give_file_capability() -> str:
    path = Path("/tmp") / f"capable-{os.getpid()}"
    path.write_bytes(b"")
    value = struct.pack("<5I", 0x02000001, 1 << 12, 0, 0, 0)
    return attempt(lambda: os.setxattr(path, "security.capability", value))


# Other processes


def ptrace(pid: int) -> str:
    return call("ptrace", 0x4206, pid, 0, 0)  # PTRACE_SEIZE does not stop it


def read_memory(pid: int) -> str:
    local = zeroes(8)
    here = struct.pack("=2Q", ctypes.addressof(local), 8)
    there = struct.pack("=2Q", 1, 8)
    return call("process_vm_readv", pid, here, 1, there, 1, 0, reached=(errno.EFAULT,))


def trace_child() -> str:
    """Traces its own child."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        return ptrace(child.pid)


def read_child() -> str:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        return read_memory(child.pid)


def compare_files() -> str:
    return call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)


def take_descriptor() -> str:
    """Copies a descriptor out of a process, here its own."""
    return call("pidfd_getfd", os.pidfd_open(os.getpid()), 0, 0)


def signal_process(pid: int) -> str:
    return attempt(lambda: os.kill(pid, 0))


# Sockets


def open_socket(family: int, kind: int, protocol: int = 0) -> str:
    """Opens and closes a socket; nothing is bound, connected or sent."""
    return attempt(lambda: socket.socket(family, kind, protocol).close())


def change_route() -> str:
    """Gives the loopback device an address; with that right any route can be set."""
    message = struct.pack("=IHHII", 40, 20, 0x405, 1, 0)  # RTM_NEWADDR, REQUEST|ACK|CREATE
    message += struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, 1)
    for kind in (1, 2):
        message += struct.pack("=HH4s", 8, kind, socket.inet_aton("198.51.100.77"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(5)
        link.send(message)
        (code,) = struct.unpack_from("=i", link.recv(4096), 16)
    return "ok" if code == 0 else errno.errorcode[-code]


def set_mark() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return attempt(lambda: sock.setsockopt(socket.SOL_SOCKET, 36, 1))


def bind_transparent() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        return attempt(lambda: sock.setsockopt(socket.IPPROTO_IP, 19, 1))


def connect(family: int, kind: int, address: str, port: int, seconds: float = 3.0) -> str:
    """Connects and says one byte; a datagram counts as sent when the kernel takes it."""
    with socket.socket(family, kind) as sock:
        sock.settimeout(seconds)
        started = time.monotonic()
        outcome = attempt(lambda: (sock.connect((address, port)), sock.send(b"x")))
        return "timeout" if time.monotonic() - started >= seconds else outcome


def connect_abstract(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        return attempt(lambda: sock.connect("\0" + name))


def list_families() -> list[int]:
    """Every address family of which a socket of any kind can be opened."""
    kinds = (1, 2, 3, 4, 5, 10)
    return [f for f in range(46) if any(open_socket(f, kind) == "ok" for kind in kinds)]


def open_wide_family(family: int) -> str:
    """A socket whose family has a bit set that the kernel does not read."""
    return call("socket", 1 << 32 | family, 3, 0)


def list_netlink() -> list[int]:
    """Every kind of netlink socket that opens."""
    return [kind for kind in range(32) if open_socket(16, 3, kind) == "ok"]


def list_protocols(family: int) -> list[tuple[int, int]]:
    """Every type and protocol of an internet family that opens."""
    kinds, protocols = (1, 2, 3, 4, 5, 6, 10), (*range(256), 262, 0x300)
    return [(k, p) for k in kinds for p in protocols if open_socket(family, k, p) == "ok"]


def live() -> str:
    """What ordinary programs do: threads, children, pools, pipes, names, listeners."""
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(int, "1234")) == 10
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(os.getpid) != os.getpid()
    assert subprocess.run(["sh", "-c", "echo 1 | cat"], capture_output=True, check=True).stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    assert socket.if_nameindex()
    assert socket.getaddrinfo("localhost", 80)
    os.close(os.memfd_create("life"))
    return "ok"


def set_group_of_user() -> str:
    return attempt(lambda: os.setresgid(0, 0, 0))
