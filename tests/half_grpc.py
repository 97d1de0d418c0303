"""gRPC by its bytes, so that a client may stop in the middle of a message."""

from __future__ import annotations

import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_HEADERS, ACK = 4, 1


class HalfClient:
    """A connection with one call.

    Args:
        port: of the server.
        method: such as ``ModelInfer``.
        size: that the message says it has, in bytes.
        sent: bytes of it that are sent.
    """

    def __init__(self, port: int, method: str, *, size: int, sent: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20.0)
        self._rest = b""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/inference.GRPCInferenceService/{method}",
            ":authority": "x",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        message = struct.pack(">BI", 0, size) + bytes(sent)
        frames = [_frame(SETTINGS, 0, 0, b""), _frame(HEADERS, END_HEADERS, 1, block), _frame(DATA, 0, 1, message)]
        self.socket.sendall(PREFACE + b"".join(frames))

    def wait_for_end(self, timeout_s: float) -> int:
        """Answer pings until the server ends the call or the connection; returns the kind of frame that did."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            self.socket.settimeout(max(end_s - time.monotonic(), 0.001))
            kind, flags, payload = self._read_frame()
            if kind == PING and not flags & ACK:
                self.socket.sendall(_frame(PING, ACK, 0, payload))
            elif kind in (HEADERS, RST_STREAM, GOAWAY):
                return kind
        raise TimeoutError(f"the server has not ended the call within {timeout_s} s")

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def _read_frame(self) -> tuple[int, int, bytes]:
        head = self._read(9)
        size = int.from_bytes(head[:3], "big")
        return head[3], head[4], self._read(size)

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            came = self.socket.recv(65536)
            assert came, "the server has closed the connection"
            self._rest += came
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()
