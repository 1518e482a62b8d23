"""A server that is only a pipe: its stdin and stdout go to and from a Unix socket.

It lets a server object of another process be served through a sandbox: every byte of the
session passes the container's pipes. Runs as `python3 pipe.py SOCKET`; standard library only.
"""

import os
import socket
import sys
import threading

SIZE = 65536


def _copy_input(connection: socket.socket) -> None:
    while data := os.read(0, SIZE):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def _main() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        threading.Thread(target=_copy_input, args=(connection,), daemon=True).start()
        while data := connection.recv(SIZE):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


_main()
