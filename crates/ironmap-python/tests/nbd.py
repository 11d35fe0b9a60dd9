"""An NBD server for reading, whose answers the test can hold back. Its requests stay in flight as long as the test wants."""

import os
import socket
import struct
import threading

GO, ABORT = 7, 2
READ, DISCONNECT = 0, 2


class Server:
    """Serves an image on a Unix socket, by threads of Python."""

    def __init__(self, image, path):
        self.url = f"nbd+unix:///?socket={path}"
        self._image = os.open(image, os.O_RDONLY)
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Semaphore(0)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self):
        """Holds back the answers of later reads."""
        self._open.clear()

    def wait_for_read(self):
        """Waits until a read is held back."""
        assert self._held.acquire(timeout=30)

    def release(self):
        """Sends all answers."""
        self._open.set()

    def close(self):
        self.release()
        self._socket.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            try:
                if self._handshake(connection, stream):
                    self._transmit(connection, stream)
            except (OSError, struct.error):
                pass  # The client has closed the connection.

    def _handshake(self, connection, stream):
        connection.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        stream.read(4)
        while True:
            _, option, length = struct.unpack(">QII", stream.read(16))
            stream.read(length)

            def reply(kind, data=b"", option=option):
                connection.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

            if option == GO:
                size = os.fstat(self._image).st_size
                reply(3, struct.pack(">HQH", 0, size, 1 | 2 | 1 << 8))  # read-only, several connections
                reply(1)
                return True
            reply(1 if option == ABORT else 0x80000001)
            if option == ABORT:
                return False

    def _transmit(self, connection, stream):
        while True:
            _, _, kind, cookie, offset, length = struct.unpack(">IHHQQI", stream.read(28))
            if kind == DISCONNECT:
                return
            if not self._open.is_set():
                self._held.release()
                self._open.wait()
            answer = struct.pack(">IIQ", 0x67446698, 0 if kind == READ else 22, cookie)
            connection.sendall(answer + (os.pread(self._image, length, offset) if kind == READ else b""))
