"""The errors a user can see: a stable code, the place, what was expected, and the next command to type.

Exit codes: 1 the job failed, 2 usage or configuration, 3 damage found, 4 refused (intact, but not what was asked for).
"""

from __future__ import annotations

import errno

__all__ = ["ConfigError", "DamageError", "JobError", "RefusedError", "TokenreelError", "file_system_error"]

_FILE_SYSTEM = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENAMETOOLONG,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


class TokenreelError(Exception):
    """Base of every error that is meant for the user.

    Attributes:
        code: stable identifier, ``TR-<AREA>-<WORD>``; scripts may match on it.
        message: one sentence saying what happened.
        place: the file, record or step where it happened, if there is one.
        expected: what would have been right.
        next_command: what to type next.
    """

    exit_code = 1

    def __init__(
        self,
        code: str,
        message: str,
        place: str | None = None,
        expected: str | None = None,
        next_command: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.expected = expected
        self.next_command = next_command

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.place is not None:
            lines.append(f"  at: {self.place}")
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.next_command is not None:
            lines.append(f"  next: {self.next_command}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type[TokenreelError], tuple[str | None, ...]]:
        """Errors cross process borders whole: the default would keep the message only."""
        return type(self), (self.code, self.message, self.place, self.expected, self.next_command)

    def to_json(self) -> dict[str, str | int | None]:
        """The same facts as a JSON-able dictionary, for ``--json``."""
        return {
            "code": self.code,
            "message": self.message,
            "place": self.place,
            "expected": self.expected,
            "next_command": self.next_command,
            "exit_code": self.exit_code,
        }


class JobError(TokenreelError):
    """The job failed: exit code 1."""


class ConfigError(TokenreelError):
    """Usage or configuration is wrong: exit code 2."""

    exit_code = 2


class DamageError(TokenreelError):
    """Bytes on disk are not what was written: exit code 3."""

    exit_code = 3


class RefusedError(TokenreelError):
    """Everything is intact, but it is not what this command may work on (another digest): exit code 4."""

    exit_code = 4


def file_system_error(error: BaseException) -> JobError | None:
    """What the file system refused (full, read-only, no permission, no such folder), for the user; None if it is
    another error.
    """
    if not isinstance(error, OSError) or error.errno not in _FILE_SYSTEM:
        return None
    return JobError(
        "TR-FILE-SYSTEM",
        f"the file system refuses: {error.strerror}",
        None if error.filename is None else str(error.filename),
        "a place that can be written, with room",
        "mend that, then the same command again: what was finished is kept",
    )
