"""Connection strings: nothing is lost on the way, and nothing leaks."""

from __future__ import annotations

import os
import threading

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from engine.postgres import InfrastructureError, conninfo

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(
    user=texts,
    password=texts,
    dbname=texts,
    host=st.sampled_from(["h", "10.0.0.1", "/tmp/a b", "::1", "a,b"]),
)
def test_a_uri_says_the_same_as_its_parts(user: str, password: str, dbname: str, host: str) -> None:
    params = {"user": user, "password": password, "host": host, "dbname": dbname, "options": "-c a=b"}
    uri = conninfo.to_uri(params)
    assert conninfo_to_dict(uri) == params
    assert conninfo.parse(uri) == params


@given(password=texts)
def test_no_spelling_of_the_password_survives_redaction(password: str) -> None:
    from urllib.parse import quote

    text = f"a {password} b {quote(password)} c {quote(password, safe='')} d {password!r} e"
    redacted = conninfo.redact(text, {"password": password})
    # What is left of the fixed words may equal a very short password.
    for word in ("a", "b", "c", "d", "e", "'", '"', " ", "*"):
        redacted = redacted.replace(word, "")
    assert password not in redacted


def test_the_reason_is_one_short_line() -> None:
    error = psycopg.OperationalError(
        'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  password '
        'authentication failed for user "u"\nmore'
    )
    assert conninfo.reason(error, {}) == 'password authentication failed for user "u"'


def test_an_unreachable_server_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "geheim1")
    params = {"host": "127.0.0.1", "port": "1", "user": "u", "password": "geheim2", "dbname": "d"}
    with pytest.raises(InfrastructureError) as caught:
        conninfo.connect(params, timeout_s=2)
    assert str(caught.value) == "cannot connect to u@127.0.0.1:1/d: Connection refused"
    assert caught.value.__context__ is None


def test_variables_are_hidden_until_the_last_user_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "nowhere")
    monkeypatch.setenv("PGTZ", "Mars")
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with conninfo.hidden_environment():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with conninfo.hidden_environment():
        assert not {"PGHOST", "PGTZ"} & os.environ.keys()
        assert conninfo.hidden_params()["host"] == "nowhere"
        thread.start()
        assert entered.wait(10)
    assert "PGHOST" not in os.environ
    leave.set()
    thread.join(10)
    assert os.environ["PGHOST"] == "nowhere"
    assert os.environ["PGTZ"] == "Mars"


def test_a_nested_use_puts_back_what_it_hid_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with conninfo.hidden_environment():
        monkeypatch.setenv("PGPORT", "1")
        with conninfo.hidden_environment():
            assert "PGPORT" not in os.environ
        assert os.environ["PGPORT"] == "1"
