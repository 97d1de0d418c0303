"""Regions of POSIX shared memory that clients lend, so that tensors need not cross a socket.

A client makes an object in ``/dev/shm``, registers a part of it under a name, and its requests say where in it inputs
lie and outputs go. The server maps the object and works in place. What a client may name is one plain file in that
folder whose name begins with the prefix that the server was told; links and other folders are never followed.

A region that is unregistered stays mapped for as long as an array of it lives, so requests that run end in peace. A
client that makes its object smaller is told so by the next request. One that does it while a request runs ends the
server, as it would any process that maps it: lend regions only between programs that trust each other.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import OptionError, TensorError, UnavailableError, first_line
from sanderling.serve.errors import ConflictError, NotFoundError

FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
ANY_KEY = "/"
MOST_REGIONS = 256  # each holds a file open
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Region:
    """A part of a shared memory object, as a client registered it.

    Attributes:
        name: that requests call it by.
        key: of the object, such as ``/frames``.
        offset: of the part in the object, in bytes.
        size_bytes: of the part.
    """

    name: str
    key: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Place:
    """Where a request says that a tensor lies, or goes.

    Attributes:
        region: its name.
        offset: in the region, in bytes.
        size_bytes: that the client gives it.
    """

    region: str
    offset: int
    size_bytes: int


def place_of(name: str, parameters: Mapping[str, object]) -> Place | None:
    """The place that a tensor's parameters tell; None where they tell of none.

    Args:
        name: of the tensor, for errors.
        parameters: as the protocol has them: ``shared_memory_region``, ``shared_memory_offset`` and
            ``shared_memory_byte_size``.

    Raises:
        TensorError: one of them is missing or of another type.
    """
    region = parameters.get("shared_memory_region")
    size_bytes = parameters.get("shared_memory_byte_size")
    offset = parameters.get("shared_memory_offset", 0)
    if region is None and size_bytes is None and not offset:
        return None
    if not isinstance(region, str) or type(size_bytes) is not int or type(offset) is not int:
        raise TensorError(
            f"tensor '{_shown(name)}' has parameters of shared memory that are missing or of a wrong type: expected "
            "shared_memory_region (string), shared_memory_byte_size and shared_memory_offset (whole numbers)"
        )
    return Place(region, offset, size_bytes)


@dataclass(frozen=True)
class _Mapped:
    region: Region
    memory: mmap.mmap
    skipped_bytes: int  # of the mapping, before the region: a mapping begins at a page


class SharedMemoryRegistry:
    """The regions that clients have registered. Usable from several threads.

    Args:
        prefix: keys must begin with it; ``/`` allows every object that the server's user may open. Without one nothing
            can be registered.
    """

    def __init__(self, prefix: str = "") -> None:
        if prefix and not (prefix.startswith("/") and "/" not in prefix[1:] and "\0" not in prefix):
            raise OptionError(
                f"shared memory prefix '{prefix}' has the wrong form: expected / or a name such as /camera-"
            )
        self._prefix = prefix
        self._mapped: dict[str, _Mapped] = {}
        self._lock = threading.Lock()

    @property
    def is_allowed(self) -> bool:
        """Whether clients may register regions at all."""
        return bool(self._prefix)

    def register(self, name: str, key: str, *, offset: int, size_bytes: int) -> Region:
        """Map a part of a shared memory object.

        Args:
            name: that requests will call it by.
            key: of the object, such as ``/frames``.
            offset: of the part in the object, in bytes.
            size_bytes: of the part.

        Raises:
            ConflictError: the name is taken.
            OptionError: the key, the offset or the size cannot be used.
            UnavailableError: the server allows no shared memory, or this system has none.
        """
        file_name = self._file_name(key)
        told = f"shared memory region '{_shown(name)}'"
        if not name or len(name) > _LONGEST_NAME:
            raise OptionError(f"{told} has a name of {len(name)} characters: expected 1 to {_LONGEST_NAME}")
        if offset < 0 or size_bytes <= 0:
            raise OptionError(f"{told} has offset {offset} and {size_bytes} bytes: expected at least 0 and at least 1")
        region = Region(name, key, offset, size_bytes)
        with self._lock:
            if name in self._mapped:
                raise ConflictError(f"{told} is registered already: unregister it first, or take another name")
            if len(self._mapped) >= MOST_REGIONS:
                raise OptionError(f"{told} is one too many: {MOST_REGIONS} are registered; unregister some first")
            self._mapped[name] = _map(region, file_name)
        return region

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them where no name is given.

        Requests that use it end first; forgetting one that is not there does nothing, as in Triton.
        """
        with self._lock:
            if name:
                self._mapped.pop(name, None)
            else:
                self._mapped.clear()

    def regions(self, name: str = "") -> tuple[Region, ...]:
        """What is registered: the region of that name, or all of them.

        Raises:
            NotFoundError: there is no region of that name.
        """
        if name:
            return (self._find(name).region,)
        with self._lock:
            return tuple(mapped.region for mapped in self._mapped.values())

    def view(self, name: str, offset: int, size_bytes: int) -> memoryview:
        """Bytes of a region, in place; writing to them writes to the client's memory.

        Args:
            name: of the region.
            offset: in the region, in bytes.
            size_bytes: how many.

        Returns:
            The bytes. While they or an array of them live, the region stays mapped.

        Raises:
            NotFoundError: there is no region of that name.
            TensorError: the bytes do not lie in the region, or the client has made its object smaller.
        """
        mapped = self._find(name)
        region = mapped.region
        if offset < 0 or size_bytes < 0 or offset + size_bytes > region.size_bytes:
            raise TensorError(
                f"{size_bytes} bytes at {offset} do not lie in shared memory region '{_shown(name)}', which has "
                f"{region.size_bytes}"
            )
        there_bytes = mapped.memory.size()  # of the object as it is now
        if region.offset + offset + size_bytes > there_bytes:
            raise TensorError(
                f"the object of shared memory region '{_shown(name)}' has become smaller: it has {there_bytes} bytes, "
                f"and the region goes up to {region.offset + region.size_bytes}; register it again"
            )
        begin = mapped.skipped_bytes + offset
        return memoryview(mapped.memory)[begin : begin + size_bytes]

    def _find(self, name: str) -> _Mapped:
        with self._lock:
            mapped = self._mapped.get(name)
            if mapped is None:
                known = ", ".join(_shown(each) for each in list(self._mapped)[:10]) or "none"
                raise NotFoundError(f"there is no shared memory region '{_shown(name)}': registered are {known}")
            return mapped

    def _file_name(self, key: str) -> str:
        """The file of an object, which lies in the folder itself; as for ``shm_open``, a key may lack its slash."""
        if not self._prefix:
            raise UnavailableError(
                "this server allows no shared memory: start it with --shared-memory-prefix, or send tensors in requests"
            )
        told, name = f"shared memory key '{_shown(key)}'", key.removeprefix("/")
        is_plain = name not in ("", ".", "..") and "/" not in name and "\0" not in name
        if not is_plain or len(name.encode(errors="replace")) > _LONGEST_NAME:
            raise OptionError(f"{told} has the wrong form: expected a name such as /frames")
        if not f"/{name}".startswith(self._prefix):
            raise OptionError(f"{told} is not allowed: expected one that begins with {self._prefix}")
        return name


def _map(region: Region, file_name: str) -> _Mapped:
    told = f"shared memory object '{_shown(region.key)}'"
    try:
        descriptor = os.open(FOLDER / file_name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise OptionError(f"{told} does not exist: make it before it is registered") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"{told} cannot be opened: {first_line(error)}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OptionError(f"{told} is not an object of shared memory")
        if region.offset + region.size_bytes > found.st_size:
            raise OptionError(
                f"{region.size_bytes} bytes at {region.offset} do not lie in {told}, which has {found.st_size}"
            )
        skipped_bytes = region.offset % mmap.ALLOCATIONGRANULARITY
        memory = mmap.mmap(descriptor, skipped_bytes + region.size_bytes, offset=region.offset - skipped_bytes)
    except (OSError, OverflowError, ValueError) as error:
        raise OptionError(f"{told} cannot be mapped: {first_line(error)}") from error
    finally:
        os.close(descriptor)
    return _Mapped(region, memory, skipped_bytes)


def _shown(name: str) -> str:
    """A client's text in a message: short, and on one line."""
    return name[:64].encode("unicode_escape").decode()
