"""Connection strings without leaks: parse, complete, describe and open them so that no password reaches a
message.

Three rules:

1. libpq's own parse errors quote the piece they stumbled over, which with an unescaped password is the
   password. They are never shown.
2. What is shown of a connection string is built from the parsed parts (user, host, port, database), and only
   from strings whose parts are beyond doubt: a URI with a second `@` may have put half of a password into the
   host, so it is refused.
3. libpq's connection errors are shown as one line with every spelling of the password taken out.

The environment is the other trap: libpq fills whatever a connection string leaves open from `PGHOST`,
`PGOPTIONS`, `PGSERVICE` and thirty more. For a server that the harness starts they can only disturb; for a
user's server they are part of what the user said. So a user's DSN is completed once (`complete`), and while a
server is in use the variables are hidden from this process and its children (`hidden_environment`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, LiteralString
from urllib.parse import quote, quote_plus, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from engine.errors import InfrastructureError, UsageError

Params = Mapping[str, str]

CONNECT_TIMEOUT_S: Final = 10

_HOW_TO_WRITE = (
    "write dsn:postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters of the password "
    "percent-encoded (@ is %40, / is %2F), or dsn:host=HOST user=USER password='PASSWORD'"
)
_SECRET_KEYS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

# Read by libpq or by psql, but no connection option that `PQconndefaults` lists.
_MORE_VARIABLES = ("PGSERVICEFILE", "PGSYSCONFDIR", "PGLOCALEDIR", "PGTZ", "PGDATESTYLE", "PGGEQO", "PGREALM")


def parse(text: str) -> dict[str, str]:
    """The parts that `text` (a URI or `key=value` pairs) states; nothing is taken from the environment.

    Raises `UsageError` without quoting any of it.
    """
    text = text.strip()
    params: dict[str, str] | None = None
    if text and not _ambiguous_uri(text):
        try:
            params = {key: str(value) for key, value in conninfo_to_dict(text).items() if value is not None}
        except (psycopg.Error, UnicodeError, ValueError):
            params = None
    # Raised here and not in the handler: an exception remembers the one it was raised in, text and all.
    if params is None:
        raise UsageError(f"the DSN cannot be read: {_HOW_TO_WRITE}")
    if not re.fullmatch(r"[0-9,]*", params.get("port", "")):
        raise UsageError(f"the port of the DSN is not a number: {_HOW_TO_WRITE}")
    return params


def _ambiguous_uri(text: str) -> bool:
    """Whether an unescaped `@` or `/` may have moved a part of the password into the host or the database."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        return False
    credentials = re.match(r"[^@/]*@", rest)
    if credentials:
        rest = rest[credentials.end() :]
    return "@" in rest.partition("?")[0]


def describe(params: Params) -> str:
    """`user@host:port/database`, as far as they are stated: what may be shown of a connection."""
    user, host, port = (
        params.get("user", ""),
        params.get("host") or params.get("hostaddr", ""),
        params.get("port", ""),
    )
    database = params.get("dbname", "")
    text = f"{user}@{host}" if user else host
    if port:
        text += f":{port}"
    if database:
        text += f"/{database}"
    return text or "the default server"


def to_uri(params: Params) -> str:
    """One `postgresql://` URI that says the same as `params`. Holds the password."""
    rest = dict(params)
    user, password = rest.pop("user", ""), rest.pop("password", "")
    database = rest.pop("dbname", "")
    authority = quote(user, safe="")
    if password:
        authority += ":" + quote(password, safe="")
    if authority:
        authority += "@"
    # Sockets, lists of hosts and IPv6 addresses are unambiguous only as query parameters.
    if re.fullmatch(r"[A-Za-z0-9.-]+", rest.get("host", "")) and re.fullmatch(
        r"[0-9]*", rest.get("port", "")
    ):
        authority += rest.pop("host")
        port = rest.pop("port", "")
        authority += f":{port}" if port else ""
    query = urlencode(rest, quote_via=quote, safe="/")
    return f"postgresql://{authority}/{quote(database, safe='')}" + (f"?{query}" if query else "")


def with_database(dsn: str, database: str) -> str:
    """The same connection, to another database of the server."""
    return to_uri({**parse(dsn), "dbname": database})


def redact(text: str, params: Params) -> str:
    """`text` with every spelling of the secrets of `params` and of `PGPASSWORD` taken out."""
    secrets = [params.get(key, "") for key in _SECRET_KEYS] + [os.environ.get("PGPASSWORD", "")]
    spellings = set()
    for secret in filter(None, secrets):
        escaped = secret.replace("\\", "\\\\").replace("'", "\\'")
        spellings |= {
            secret,
            escaped,
            repr(secret)[1:-1],
            quote(secret),
            quote(secret, safe=""),
            quote_plus(secret),
        }
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, "***")
    return text


def reason(error: BaseException, params: Params) -> str:
    """Why a connection or a statement failed, as one short line without secrets."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = next((each for each in lines if "failed: " in each), lines[0])
    line = line.removeprefix("connection failed: ")
    # 'connection to server at "10.0.0.1", port 5432 failed: FATAL:  password authentication failed for user
    # "u"'
    line = re.sub(r"^.*?\bfailed: (?:FATAL: +)?", "", line)
    return redact(line, params).rstrip(".")


def connect(params: Params, *, timeout_s: float = CONNECT_TIMEOUT_S) -> psycopg.Connection[Any]:
    """An autocommit connection. Raises `InfrastructureError` that names server and reason, without the
    password.

    One attempt may take `timeout_s` per host; the caller decides about a second one.
    """
    stated: dict[str, Any] = dict(params)
    stated.setdefault("connect_timeout", str(max(2, round(timeout_s))))
    failure = ""
    try:
        return psycopg.connect(**stated, autocommit=True)
    except (psycopg.Error, UnicodeError, ValueError) as error:
        failure = reason(error, params)
    raise InfrastructureError(f"cannot connect to {describe(params)}: {failure}")


def complete(conn: psycopg.Connection[Any], stated: Params) -> dict[str, str]:
    """Everything the open `conn` was made with, also what came from environment, service file and password
    file."""
    timeout = stated.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    params: dict[str, str] = {}
    for option in conn.pgconn.info:
        keyword = option.keyword.decode()
        if option.val is not None and option.val != option.compiled:
            params[keyword] = option.val.decode()
    for keyword in ("service", "servicefile", "fallback_application_name", "connect_timeout"):
        params.pop(keyword, None)
    if timeout:
        params["connect_timeout"] = timeout
    params["user"] = conn.info.user
    params["dbname"] = conn.info.dbname
    if "host" not in params and "hostaddr" not in params:
        params["host"] = conn.info.host
    params.setdefault("port", str(conn.info.port))
    # With several hosts the password file may hold one password for each: keep the file instead.
    if conn.info.password and "," not in params.get("host", ""):
        params["password"] = conn.info.password
        params.pop("passfile", None)
    return params


def fetch_one(
    conn: psycopg.Connection[Any], query: LiteralString, args: tuple[object, ...] = ()
) -> tuple[Any, ...]:
    """The first row of a query that must return one."""
    row: tuple[Any, ...] | None = conn.execute(query, args).fetchone()
    assert row is not None, query
    return row


_hidden_lock = threading.Lock()
_hidden: dict[str, tuple[str, set[object]]] = {}  # name to value, and the uses that it stays hidden for


def libpq_variables() -> frozenset[str]:
    """The names of the environment variables that libpq reads."""
    listed = {option.envvar.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.envvar}
    return frozenset(listed | set(_MORE_VARIABLES))


def set_variables() -> frozenset[str]:
    """The names of those that are set, hidden or not."""
    with _hidden_lock:
        return libpq_variables() & (os.environ.keys() | _hidden.keys())


@contextmanager
def hidden_environment() -> Iterator[None]:
    """Hide libpq's variables from this process and the children it starts meanwhile; put them back at the
    end.

    Uses may be nested or overlap in threads: a variable comes back when the last use has left that was there
    when it was hidden, or began later.
    """
    use = object()
    with _hidden_lock:
        for name in libpq_variables() & os.environ.keys():
            _hidden[name] = (os.environ.pop(name), _hidden[name][1] if name in _hidden else set())
        for _, users in _hidden.values():
            users.add(use)
    try:
        yield
    finally:
        with _hidden_lock:
            for name, (value, users) in list(_hidden.items()):
                users.discard(use)
                if not users:
                    os.environ.setdefault(name, value)
                    del _hidden[name]


def hidden_params() -> dict[str, str]:
    """What the hidden variables would have told libpq, as connection options."""
    with _hidden_lock:
        variables = {name: value for name, (value, _) in _hidden.items()}
    params = {}
    for option in psycopg.pq.Conninfo.get_defaults():
        if option.envvar and option.envvar.decode() in variables:
            params[option.keyword.decode()] = variables[option.envvar.decode()]
    return params
