"""CURVE keys: making them, loading them safely, and the allow-lists of clients.

Files are ZeroMQ certificates as `zmq.auth` writes them. `keys/ROLE/NAME.key` allows the client NAME
in that role from the next look at the folder on; removing the file refuses it again.
"""

from __future__ import annotations

import os
import shlex
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import zmq.auth
from zmq.utils import z85

ROLES: Final = ("cameras", "actuators", "operators", "viewers")
KEY_FILE_BYTES_MAX: Final = 16 * 1024
LOOK_EVERY_NS: Final = 250_000_000
REFUSED_KEYS_MAX: Final = 256
"""Distinct refused keys that are counted apart; further ones are counted under `OTHER_KEYS`."""
OTHER_KEYS: Final = "others"


class KeyFileError(Exception):
    """A key file that is missing, malformed, in the way or open to others, and what to do."""


@contextmanager
def _private_files() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise KeyFileError(f"{path}: exists already; move it away to make a new key")


def make_plant_keys(folder: Path) -> Path:
    """Make `server.key`, `server.key_secret` and a folder for each role. The secret key's path.

    Raises KeyFileError where a server key exists already.
    """
    secret = folder / "server.key_secret"
    _refuse_existing(secret, folder / "server.key")
    with _private_files():
        folder.mkdir(parents=True, exist_ok=True)
        for role in ROLES:
            (folder / role).mkdir(exist_ok=True)
        zmq.auth.create_certificates(folder, "server")
    return secret


def make_client_key(role: str, name: str, keys_folder: Path, secret_folder: Path) -> Path:
    """Make `keys_folder/ROLE/NAME.key` and `secret_folder/ROLE/NAME.key_secret`; the latter's path.

    Raises KeyFileError where either exists already, ValueError on an unknown role.
    """
    if role not in ROLES:
        raise ValueError(f"role {role!r}; one of {', '.join(ROLES)}")
    public = keys_folder / role / f"{name}.key"
    secret = secret_folder / role / f"{name}.key_secret"
    _refuse_existing(public, secret)
    with _private_files():
        public.parent.mkdir(parents=True, exist_ok=True)
        secret.parent.mkdir(parents=True, exist_ok=True)
        made_public, made_secret = zmq.auth.create_certificates(secret.parent, name)
        # The public half appears whole in the allow-list, never half written.
        staged = public.with_suffix(".key.new")
        staged.write_bytes(Path(made_public).read_bytes())
        staged.replace(public)
        if Path(made_public) != public:
            Path(made_public).unlink()
    return Path(made_secret)


def _read_certificate(path: Path) -> tuple[bytes, bytes | None]:
    try:
        if path.stat().st_size > KEY_FILE_BYTES_MAX:
            raise KeyFileError(f"{path}: larger than {KEY_FILE_BYTES_MAX} bytes, not a key file")
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError, IndexError) as error:
        raise KeyFileError(f"{path}: {error}") from error
    for key in (public, secret):
        if key is not None and not _is_z85_key(key):
            raise KeyFileError(f"{path}: a key in it is not 40 characters of Z85")
    return public, secret


def _is_z85_key(key: bytes) -> bool:
    if len(key) != 40:
        return False
    try:
        return len(z85.decode(key)) == 32
    except (KeyError, ValueError, struct.error):
        return False


def load_public(path: Path) -> bytes:
    """The public key (Z85) of a certificate file. Raises KeyFileError."""
    return _read_certificate(path)[0]


def load_secret(path: Path) -> tuple[bytes, bytes]:
    """Public and secret key (Z85) of a `.key_secret` file.

    Raises KeyFileError, with the command that repairs it where others may read the file.
    """
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise KeyFileError(
            f"{path}: mode {mode:04o} lets others at a secret key; "
            f"run: chmod 600 {shlex.quote(str(path))}"
        )
    public, secret = _read_certificate(path)
    if secret is None:
        raise KeyFileError(f"{path}: holds no secret key")
    return public, secret


class AllowList:
    """Who may connect in one role: the `*.key` files of a folder, or the one named `only`.

    Safe to use from the authenticator's thread and the line's own at once. `problems` lists the
    files that could not be used; they allow nobody and stop nobody else.
    """

    def __init__(
        self,
        folder: Path,
        only: str | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = folder
        self._only = only
        self._clock = clock
        self._lock = threading.Lock()
        self._names: dict[bytes, str] = {}
        self._seen: dict[str, tuple[int, int, int]] | None = None
        self._next_look_ns = 0
        self._refused: dict[str, int] = {}
        self._refused_count = 0
        self._problems: tuple[str, ...] = ()
        self._reads = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each file that cannot be used, as of the last look."""
        return self._problems

    @property
    def refused_count(self) -> int:
        """Handshakes refused so far."""
        return self._refused_count

    @property
    def reads(self) -> int:
        """How often the files were read."""
        return self._reads

    def refused(self) -> dict[str, int]:
        """Refused handshakes by public key (Z85)."""
        with self._lock:
            return dict(self._refused)

    def name_of(self, key: str | bytes, now_ns: int | None = None) -> str | None:
        """The client's name for its public key: Z85 text or bytes, or the 32 bytes themselves.

        None where the list does not allow it now. `now_ns` is on the list's clock.
        """
        wanted = key.encode("ascii", "replace") if isinstance(key, str) else bytes(key)
        if len(wanted) == 32:
            wanted = z85.encode(wanted)
        with self._lock:
            self._look(self._clock() if now_ns is None else now_ns)
            return self._names.get(wanted)

    def callback(self, domain: str, key: bytes) -> bool:
        """pyzmq's credentials provider: whether this public key may connect. Counts refusals."""
        if self.name_of(key) is not None:
            return True
        with self._lock:
            self._refused_count += 1
            shown = key.decode("ascii", "replace")
            if shown not in self._refused and len(self._refused) >= REFUSED_KEYS_MAX:
                shown = OTHER_KEYS
            self._refused[shown] = self._refused.get(shown, 0) + 1
        return False

    def _look(self, now_ns: int) -> None:
        if self._seen is not None and now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        try:
            seen = self._stamps()
        except FileNotFoundError as error:
            self._names, self._seen = {}, {}
            self._problems = (f"{self._folder}: {error.strerror}",)
            return
        except OSError as error:
            # Out of descriptors or a sick disk takes nobody's permission away: only a removal does.
            self._problems = (f"{self._folder}: {error.strerror}",)
            return
        if seen != self._seen:
            self._seen = seen
            self._read(sorted(seen))

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        """File name → what changes with content or permission: change time, size, inode."""
        stamps = {}
        if self._only is not None:
            name = f"{self._only}.key"
            try:
                found = (self._folder / name).stat()
            except FileNotFoundError:
                return {}
            return {name: (found.st_ctime_ns, found.st_size, found.st_ino)}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".key"):
                    try:
                        found = entry.stat()
                    except FileNotFoundError:
                        continue
                    stamps[entry.name] = (found.st_ctime_ns, found.st_size, found.st_ino)
        return stamps

    def _read(self, file_names: list[str]) -> None:
        names: dict[bytes, str] = {}
        problems = []
        for file_name in file_names:
            path = self._folder / file_name
            try:
                public = load_public(path)
            except KeyFileError as error:
                problems.append(str(error))
                if isinstance(error.__cause__, OSError):  # not its content: keep it, look again
                    self._seen = {}
                    names |= {key: name for key, name in self._names.items() if name == path.stem}
                continue
            if public in names:
                problems.append(f"{path}: the same key as {names[public]}.key; ignored")
                continue
            names[public] = path.stem
        self._names, self._problems = names, tuple(problems)
        self._reads += 1
