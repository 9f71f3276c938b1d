"""Directories that last as long as their owner. Whatever ended an owner, the next one clears up behind it.

A directory is locked by the process that made it, and the kernel lets go of the lock when that ends: no process id
has to be believed in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class OwnedDirectory:
    """A new private directory in ``parent``, whose name begins with ``prefix``, until it is removed.

    Others of this prefix, which belong to nobody any more, are removed first: the prefix has to be ours alone.
    """

    def __init__(self, parent: Path, *, prefix: str) -> None:
        sweep(parent, prefix=prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            # Somebody who sweeps may be quicker than this.
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def remove(self) -> None:
        """Remove it with all that is in it; calling it again does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep(parent: Path, *, prefix: str) -> None:
    """Remove directories of this prefix that were made by :class:`OwnedDirectory`, and whose owners are gone."""
    for path in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # No directory, or another user's.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
