"""A TCP proxy that resets connections after a given number of response bytes."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress

RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Proxy between a client and a server. `cuts` are response bytes before each reset; None: no reset."""

    def __init__(self, url, cuts):
        self.count = 0
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                limit = self._cuts[self.count] if self.count < len(self._cuts) else None
                self.count += 1
                self._ends += [client, server]
                for pump in ((client, server, None), (server, client, limit)):
                    thread = threading.Thread(target=_forward_bytes, args=pump)
                    self._threads.append(thread)
                    thread.start()

    def close(self):
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(2)


def _forward_bytes(source, target, limit):
    with suppress(OSError):
        while data := source.recv(65536):
            if limit is not None and len(data) >= limit:
                target.sendall(data[:limit])
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                source.shutdown(socket.SHUT_RDWR)
                break
            limit = None if limit is None else limit - len(data)
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    if limit is not None:
        target.close()


@contextmanager
def run_proxy(url, *cuts):
    proxy = Proxy(url, cuts)
    try:
        yield proxy
    finally:
        proxy.close()
