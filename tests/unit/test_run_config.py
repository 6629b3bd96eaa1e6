"""What a run says of how to start it again."""

from __future__ import annotations

import shlex
import socket
from dataclasses import replace

import pytest

from engine.errors import UsageError
from stress.config import RunConfig, checked


def config(*pg: str, scenario: str = "mixed", ui: int | None = None) -> RunConfig:
    return checked(
        pg=pg,
        seconds=5,
        nodes=2,
        seed=7,
        faults="kill",
        scenario=scenario,
        subject="reference",
        mutant="outcome-unguarded" if scenario == "mixed" else "outbox-outside",
        ui=ui,
    )


@pytest.mark.parametrize("pg", ["embedded", "16", "container:17"])
def test_the_command_of_a_run_asks_for_the_same_again(pg: str) -> None:
    words = shlex.split(config(pg).command())
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert words[:4] == ["nox", "-s", "stress", "--"]
    again = checked(
        pg=[options["--pg"]],
        seconds=float(options["--seconds"]),
        nodes=int(options["--nodes"]),
        seed=int(options["--seed"]),
        faults=options["--faults"],
        scenario=options["--scenario"],
        subject="reference",
        mutant=options["--mutant"],
    )
    assert again == config(pg)


def test_a_port_for_the_page_that_cannot_be_had_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            config("embedded", ui=port)
    with pytest.raises(UsageError, match="a port from 1024 to 65535, not 80"):
        config("embedded", ui=80)
    assert config("embedded", ui=port).ui == port


def test_a_run_that_ends_with_its_first_violation_says_so_in_its_command() -> None:
    assert config("embedded").command().endswith("--mutant outcome-unguarded")
    eager = replace(config("embedded"), until_violated=True)
    assert eager.command().endswith("--until-violated")


def test_the_command_of_a_run_on_a_users_server_takes_the_dsn_from_a_variable() -> None:
    command = config("dsn:postgresql://u:s3cret@db.example/app").command()
    assert '--pg "dsn:$PGREFEREE_DSN"' in command
    assert "s3cret" not in command
    assert "db.example" not in command


def test_the_command_of_a_run_on_two_servers_names_both() -> None:
    assert "--pg embedded --pg 16" in config("embedded", "16", scenario="statechart").command()
    command = config("dsn:postgresql://a/x", "dsn:postgresql://b/y", scenario="store").command()
    assert '--pg "dsn:$PGREFEREE_DSN" --pg "dsn:$PGREFEREE_DSN_2"' in command


def test_a_scenario_of_the_picker_runs_on_one_server_alone() -> None:
    with pytest.raises(UsageError, match="several times for: store, statechart"):
        config("embedded", "embedded")
    with pytest.raises(UsageError, match="1 to 8 times"):
        config(*["embedded"] * 9, scenario="statechart")
