"""What `--pg` means, and that no part of a DSN's secret can be read in what is said about it."""

from __future__ import annotations

import pytest

from engine.postgres import Source, UsageError, parse_pg

SECRETS = ["geheim", "p%w@d/§ß", 'it\'s a "secret"', "a b\tc", "пароль", "100%", "?&=#"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("embedded", Source("embedded")),
        ("", Source("embedded")),
        ("13", Source("major", major=13)),
        ("18", Source("major", major=18)),
        ("system:15", Source("system", major=15)),
        ("container:17", Source("container", major=17, image="postgres:17")),
        (
            "container:registry.example:5000/pg:16-alpine",
            Source("container", image="registry.example:5000/pg:16-alpine"),
        ),
        ("dsn:host=h dbname=d", Source("dsn", dsn="host=h dbname=d")),
        ("postgresql://u@h/d", Source("dsn", dsn="postgresql://u@h/d")),
    ],
)
def test_a_spec_names_its_source(spec: str, expected: Source) -> None:
    assert parse_pg(spec) == expected


@pytest.mark.parametrize("spec", ["embedded", "13", "system:15", "container:17", "container:my/image:1"])
def test_a_source_is_shown_as_it_was_given(spec: str) -> None:
    assert str(parse_pg(spec)) == spec


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "12",
            "19",
            "1300",
            "-13",
            "foo",
            "system",
            "system:",
            "system:12",
            "system:x",
            "container",
            "container:",
        ),
        *(
            "container:12",
            "container:-v/:/mnt",
            "container: x",
            "dsn",
            "dsn:",
            "dsn: ",
            "embedded:18",
            "१३",
            "13 14",
        ),
    ],
)
def test_a_bad_spec_is_a_usage_error_that_says_what_to_use(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pg(spec)
    assert caught.value.exit_code == 2
    assert "use " in str(caught.value) or "write " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "dsn:postgresql://u:gehe@im@h/d",
        "dsn:postgresql://u:gehe/im@h/d",
        "dsn:postgresql://u:geheim@h:port/d",
        "dsn:postgresql://u:geheim",  # the password stands where the port does
        "dsn:postgresql://u:100%geheim@h/d",
        "dsn:postgresql://u:p?geheim/x@h/d",
        "dsn:host=h password=ge geheim",
        "dsn:host=h password='geheim",
        "dsn:host=h geheim=1",
        "dsn:mysql://u:geheim@h/d",
        "dns:postgresql://u:geheim@h/d",
        "DSN:host=h password=geheim",
        "host=h password=geheim",
        "system:geheim@h",
        "container:u:geheim @h",
    ],
)
def test_an_unreadable_dsn_is_refused_without_quoting_it(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pg(spec)
    seen = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "geheim" not in seen
    assert "im@h" not in seen


@pytest.mark.parametrize("secret", SECRETS)
def test_the_password_is_neither_in_the_repr_nor_in_the_text(secret: str) -> None:
    from urllib.parse import quote

    from psycopg.conninfo import make_conninfo

    for dsn in (
        f"postgresql://u:{quote(secret, safe='')}@h/d",
        make_conninfo(user="u", password=secret, host="h"),
    ):
        source = parse_pg(f"dsn:{dsn}")
        for shown in (repr(source), str(source)):
            assert secret not in shown
            assert quote(secret, safe="") not in shown
        assert "u@h" in str(source)
