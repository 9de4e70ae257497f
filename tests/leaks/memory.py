"""Shared memory of a run's processes, as bytes that can be searched."""

import os
from pathlib import Path


def _written_parts(file):
    """The parts of a sparse file that were ever written."""
    end, start = os.fstat(file).st_size, 0
    while start < end:
        try:
            start = os.lseek(file, start, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        stop = os.lseek(file, start, os.SEEK_HOLE)
        yield os.pread(file, stop - start, start)
        start = stop


def shared_memory(root):
    """What the processes of a run hold in /dev/shm: Ray unlinks the object store's file."""
    known = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(root).encode() not in (process / "cmdline").read_bytes():
                continue
            links = {fd: os.readlink(fd) for fd in (process / "fd").iterdir()}
            held = {f: t for f, t in links.items() if t.startswith("/dev/shm/")}
            for fd, target in held.items():
                file = os.open(fd, os.O_RDONLY)
                if (inode := os.fstat(file).st_ino) not in known:  # processes share it
                    known.add(inode)
                    yield f"shared memory {target}", b"".join(_written_parts(file))
                os.close(file)
        except OSError:  # it has ended
            continue
