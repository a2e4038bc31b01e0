"""Reading objects of a store by URL: list, look up, and exact byte ranges of one version of an object.

``s3://``, ``gs://``, ``az://``, ``http(s)://`` are read by obstore (extra ``[s3]``), every other scheme by the fsspec
file system of its name, where one is installed. Credentials come from the environment (or an AWS profile) and are read
by the clients themselves; they are in no URL. obstore, fsspec and boto3 are imported inside functions.

A method fails with ``StoreError``; ``store_failures.with_retries`` decides what is tried again. The clients' own
retries are off: theirs know nothing of short answers.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError
from ..settings import store_environment
from .store_failures import FailureKind, StoreError, Transfer, redact, url_problem

__all__ = ["OBSTORE_SCHEMES", "RemoteFile", "Store", "is_url", "open_store"]

OBSTORE_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https"})
"""What obstore reads."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_PASSING_STATUSES = frozenset({408, 425, 429})
# The metadata service of clouds is asked for credentials where the environment has none.
_DENIED_WORDS = ("ExpiredToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "169.254.169.254")
_LEAST_PART_BYTES, _MOST_PARTS = 5 << 20, 9_000  # of an upload to S3; its limits are 5 MiB and 10,000
_VERSION_KEYS = ("ETag", "etag", "sha256", "blob_id", "generation", "md5Hash", "content_md5", "version_id")


def is_url(root: str) -> bool:
    """Whether ``root`` is a URL and no folder."""
    return "://" in root


@dataclass(frozen=True)
class RemoteFile:
    """One object as it was listed.

    Attributes:
        path: below the store's URL, with ``/``.
        size_bytes: its size.
        version: its ETag, or what the store has in place of one (time of change); "" where it has nothing, and nobody
            can tell whether what was fetched once is what is there now.
    """

    path: str
    size_bytes: int
    version: str


class Store(Protocol):
    """Objects below one URL. Methods may be called from several threads at once."""

    @property
    def url(self) -> str:
        """The URL below which paths are meant, without a slash at its end."""

    @property
    def can_list(self) -> bool:
        """Whether ``list`` works: plain HTTP has no listing."""

    def list(self, folder: str) -> Iterator[RemoteFile]:
        """Every object below ``folder`` ("" for all), in no order, as the answers come in."""

    def head(self, path: str) -> RemoteFile:
        """Look up one object."""

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes | memoryview:
        """The bytes ``start`` to ``stop`` of this very version of an object: all of them, or a failure."""

    def stream(self, file: RemoteFile) -> Iterator[bytes | memoryview]:
        """All bytes of this very version in one answer, for servers without ranges; its end is not checked."""

    def renew(self) -> None:
        """Make the client anew, so that it reads the credentials again."""


def open_store(url: str, transfer: Transfer | None = None) -> Store:
    """The store whose objects lie below ``url``; no request is made.

    Raises:
        ConfigError: ``TR-REMOTE-URL``: the URL is malformed or holds credentials; ``TR-REMOTE-EXTRA``: the client is
            not installed; ``TR-REMOTE-SCHEME``: nothing installed knows the scheme, or refuses its settings.
    """
    problem = url_problem(url)
    if problem is not None:
        raise ConfigError("TR-REMOTE-URL", problem, None, "a URL such as s3://bucket/folder")
    scheme = url.partition("://")[0]
    kind = _ObjectStore if scheme in OBSTORE_SCHEMES else _FileSystem
    return kind(url.rstrip("/"), transfer or Transfer())


class _ObjectStore:
    """A store read by obstore."""

    def __init__(self, url: str, transfer: Transfer) -> None:
        self._url = url
        self._transfer = transfer
        self._client = self._make()

    @property
    def url(self) -> str:
        return self._url

    @property
    def can_list(self) -> bool:
        return not self._url.startswith(("http://", "https://"))

    def renew(self) -> None:
        self._client = self._make()

    def _make(self) -> Any:
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise ConfigError(
                "TR-REMOTE-EXTRA",
                "object stores need obstore, which is not installed",
                self._url,
                "the extra [s3]",
                "pip install 'tokenreel[s3]'",
            ) from error
        environment = store_environment()
        seconds = timedelta(seconds=self._transfer.idle_timeout_s)
        options: dict[str, Any] = {
            "allow_http": environment.plain_http or self._url.startswith("http://"),
            "timeout": timedelta(seconds=self._transfer.request_timeout_s),
            "connect_timeout": seconds,
            "read_timeout": seconds,
        }
        extra: dict[str, Any] = {}
        if self._url.startswith(("s3://", "s3a://")) and environment.shared_profile:
            extra = _profile_credentials()
        make: Any = from_url  # its overloads know each scheme's own options, not the common ones of any URL
        try:
            return make(self._address(), client_options=options, retry_config={"max_retries": 0}, **extra)
        except Exception as error:
            message = f"the store cannot be opened: {redact(str(error))}"
            raise ConfigError("TR-REMOTE-SCHEME", message, self._url, "a URL and settings that obstore takes") from None

    def _address(self) -> str:
        """The URL as the client takes it: of a key in a store each character stands for itself, as in every other tool
        for them, while the client decodes ``%20`` and turns a backslash round."""
        if not self.can_list:
            return self._url
        scheme, _, rest = self._url.partition("://")
        bucket, slash, key = rest.partition("/")
        return f"{scheme}://{bucket}{slash}{urllib.parse.quote(key)}"

    def list(self, folder: str) -> Iterator[RemoteFile]:
        import obstore

        try:
            for chunk in obstore.list(self._client, folder or None, chunk_size=1000):
                for meta in chunk:
                    path = str(meta["path"])
                    yield RemoteFile(path, int(meta["size"]), _version(meta))
        except Exception as error:
            raise _failure(error) from None

    def head(self, path: str) -> RemoteFile:
        import obstore

        try:
            meta = obstore.head(self._client, path)
        except Exception as error:
            raise _failure(error) from None
        return RemoteFile(path, int(meta["size"]), _version(meta))

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes | memoryview:
        try:
            result = self._get(file, {"range": (start, stop)})
            found = tuple(result.range)
            data = memoryview(result.bytes())
        except StoreError:
            raise
        except Exception as error:
            raise _failure(error) from None
        if found != (start, stop) or len(data) != stop - start:
            raise StoreError("again", f"asked for bytes {start}-{stop}, got {len(data)} bytes from {found[0]}")
        return data

    def stream(self, file: RemoteFile) -> Iterator[bytes | memoryview]:
        try:
            for chunk in self._get(file, {}).stream(self._transfer.range_bytes):
                yield memoryview(chunk)
        except StoreError:
            raise
        except Exception as error:
            raise _failure(error) from None

    def put(self, path: str, content: bytes | Path, *, create: bool = False) -> None:
        """See ``writing.WritableStore``, as for ``delete``."""
        import obstore

        options: Any = {"mode": "create"} if create else {}
        if create or isinstance(content, bytes):
            options["use_multipart"] = False
        else:
            least = content.stat().st_size // _MOST_PARTS + 1
            options["chunk_size"] = max(_LEAST_PART_BYTES, least, self._transfer.range_bytes)
        try:
            obstore.put(self._client, path, content, max_concurrency=self._transfer.ranges, **options)
        except Exception as error:
            raise _failure(error) from None

    def delete(self, path: str) -> None:
        import obstore

        try:
            obstore.delete(self._client, path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise _failure(error) from None

    def _get(self, file: RemoteFile, options: Any) -> Any:
        """A GET that answers with this version or fails: asked for by If-Match, and looked at, as not every server
        knows If-Match."""
        import obstore

        if self.can_list and file.version.startswith('"'):
            options["if_match"] = file.version
        result = obstore.get(self._client, file.path, options=options)
        found = RemoteFile(file.path, int(result.meta["size"]), _version(result.meta))
        if found != file:
            raise StoreError("changed", "the object is another one now")
        return result


def _version(meta: Mapping[str, Any]) -> str:
    changed = meta.get("last_modified")  # obstore says 1970 where the server says nothing
    tag = str(meta.get("e_tag") or "")
    if tag and not tag.endswith('"'):
        tag = f'"{tag}"'  # listings of Azure have ETags without the quotes that every other answer puts around them
    return tag or str(changed if changed and changed.timestamp() else "")


def _profile_credentials() -> dict[str, Any]:
    """Credentials and region of the AWS profile; nothing where boto3 is not installed or knows none."""
    try:
        import boto3  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.session.Session()
        if session.get_credentials() is None:
            return {}
        return {"credential_provider": Boto3CredentialProvider(session)}
    except Exception:  # boto3 is no requirement, and what is wrong with a profile shows in the first request
        return {}


def _failure(error: Exception) -> StoreError:
    """What an obstore error means."""
    from obstore import exceptions as known

    text = str(error)
    kinds: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], FailureKind], ...] = (
        ((FileNotFoundError, known.NotFoundError), "missing"),
        (known.AlreadyExistsError, "exists"),
        (known.PreconditionError, "changed"),
        ((known.PermissionDeniedError, known.UnauthenticatedError), "denied"),
        ((known.NotSupportedError, known.InvalidPathError), "unsupported"),
    )
    kind: FailureKind | None = next((kind for types, kind in kinds if isinstance(error, types)), None)
    return StoreError(kind or _kind_of_text(text), redact(text))


def _kind_of_text(text: str) -> FailureKind:
    """What a generic error means: its status stands in the text alone, as that of every failed listing does."""
    if any(word in text for word in _DENIED_WORDS):
        return "denied"
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if status in (401, 403, 404):
        return "missing" if status == 404 else "denied"
    return "unsupported" if 300 <= status < 500 and status not in _PASSING_STATUSES else "again"


class _FileSystem:
    """A store read by the fsspec file system of its scheme."""

    def __init__(self, url: str, transfer: Transfer) -> None:
        self._url = url
        self._transfer = transfer
        self._make()

    @property
    def url(self) -> str:
        return self._url

    @property
    def can_list(self) -> bool:
        return True

    def renew(self) -> None:
        self._make()

    def _make(self) -> None:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        except ImportError as error:
            raise ConfigError(
                "TR-REMOTE-EXTRA", "this scheme needs fsspec", self._url, "fsspec", "pip install fsspec"
            ) from error
        try:
            self._system, self._root = url_to_fs(self._url, use_listings_cache=False, skip_instance_cache=True)
        except Exception as error:
            message = f"no store can be opened for this scheme: {redact(str(error))}"
            expected = "s3, gs, az, http, https, or a scheme whose fsspec file system is installed"
            raise ConfigError("TR-REMOTE-SCHEME", message, self._url, expected) from None

    def list(self, folder: str) -> Iterator[RemoteFile]:
        base = self._root.rstrip("/")
        start = f"{base}/{folder}" if folder else base or self._root
        try:
            for _, _, files in self._system.walk(start, detail=True, on_error="raise"):
                for info in files.values():
                    yield self._file(str(info["name"])[len(base) :].lstrip("/"), info)
        except FileNotFoundError:
            return
        except Exception as error:
            raise _fsspec_failure(error) from None

    def head(self, path: str) -> RemoteFile:
        try:
            info = self._system.info(self._key(path))
        except Exception as error:
            raise _fsspec_failure(error) from None
        if info.get("type") == "directory":
            raise StoreError("missing", "a folder, no object")
        return self._file(path, info)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes | memoryview:
        try:
            data = self._system.cat_file(self._key(file.path), start=start, end=stop)
        except Exception as error:
            raise _fsspec_failure(error) from None
        if len(data) != stop - start:
            raise StoreError("again", f"asked for bytes {start}-{stop}, got {len(data)} bytes")
        if self.head(file.path) != file:
            raise StoreError("changed", "the object is another one now")
        return memoryview(data)

    def stream(self, file: RemoteFile) -> Iterator[bytes | memoryview]:
        raise StoreError("unsupported", "this file system is read by ranges")

    def _key(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def _file(self, path: str, info: Mapping[str, Any]) -> RemoteFile:
        size = info.get("size")
        if not isinstance(size, int):
            raise StoreError("unsupported", f"the size of {path!r} is not known to this file system")
        version = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), None)
        if version is None:
            times = (info.get(key) for key in ("mtime", "last_modified", "LastModified", "modified", "created"))
            version = next((str(_seconds(time)) for time in times if time), "")
        return RemoteFile(path, size, version)


def _seconds(time: object) -> object:
    """A time of change in one form: listings and look-ups of one file system may differ in theirs."""
    return time.timestamp() if isinstance(time, datetime) else time


def _fsspec_failure(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    kind: FailureKind = "again"
    if isinstance(error, FileNotFoundError):
        kind = "missing"
    elif isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        kind = "denied"
    elif isinstance(error, NotImplementedError):
        kind = "unsupported"
    return StoreError(kind, redact(f"{type(error).__name__}: {error}"))
