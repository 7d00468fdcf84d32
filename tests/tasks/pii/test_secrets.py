"""Passwords in URLs and values that are assigned to names of secrets are found; words are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.pii.config import PiiConfig
from tasks.pii.scrub import scrub
from tasks.pii.spans import find_spans

VALUE = "aB3dE5fG7hJ9kL1m"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("postgres://admin:S3cretPass@db.example.org:5432/x", "postgres://admin:<SECRET>@db"),
        ("redis://:kd83hs9a@10.1.2.3", "redis://:<SECRET>@<IP>"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "_key = <SECRET>"),
        ("export GRAFANA_SECRET=" + VALUE, "SECRET=<SECRET>"),
        ("'password': 'hunter2!', x", "'password': '<SECRET>', x"),
        ("dbPassword := `Tr0ub4dor`", "dbPassword := `<SECRET>`"),
        (":api_key => '" + VALUE + "'", ":api_key => '<SECRET>'"),
        ('auth_token: "' + VALUE + '"', 'auth_token: "<SECRET>"'),
        ("API_TOKEN=ghp_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2", "API_TOKEN=<API_KEY>"),
        ("authentication_token: " + VALUE, "token: <SECRET>"),
        ("api_key: 1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d", "key: <SECRET>"),
        ("dapi" + "0123456789abcdef" * 2, "<API_KEY>"),
        ("x_token=" + VALUE + "&name=a+b", "x_token=<SECRET>&name=a+b"),
        ("password=14givE!corps&amp;station=7", "password=<SECRET>&amp;station=7"),
        ("password='14givE&corps!'", "password='<SECRET>'"),
    ],
)
def test_secrets_in_urls_and_assignments_are_found(text, want) -> None:
    assert want in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:password@host http://guest:guest@host http://a:xxxxxx@host ssh://git@h:22/x",
        "http://host:8080/a@b https://x.org/?a=b:c@d http://a:${PASS}@host http://a:%PASS1%@host",
        "password = getpass1() password: $PASSWORD1 password=/etc/pass1 token = my_token_name_2_l",
        "password = None; secret: string1; pad_token=aaaaaaaaaaaaaaa1 monkey=aB3dE5fG7hJ9kL1m",
        "PrivateKey = testRSA2048PrivateKey smb://u:mot-de-passe@h token=My%20Token2%20Name7Of9It",
        "Password: required, at least 8 characters; token: https://x.org/aB3dE5fG7hJ9kL1m",
        "nextPageToken: 'aB3dE5fG7hJ9kL1m' client_request_token=aB3dE5fG7hJ9kL1mN x://AppID:Master@h",
        "token = '1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d' x://ApiPassword:aB3dE5fG7hJ9/k updateToken:"
        " aB3dE5fG7hJ9kL1m",
        "private_key: ed25519.Ed25519PrivateKey, secret = kXxh3Secrets cvs://:pserver:anon1cvs@host",
        "activity token: android.os.BinderProxy@2bd79ce PublicKeyToken=b77a5c561934e089",
        "public_key = 'aB3dE5fG7hJ9kL1mN2pQ' if password == other: passwords=aB3dE5fG7hJ9kL1m",
    ],
)
def test_placeholders_references_and_words_stay(text) -> None:
    assert scrub(text) == text


HEX = "0123456789abcdef" * 5
MIXED = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2bC3dE4fG5hJ6kL7m" * 2


@pytest.mark.parametrize(
    "key",
    [
        "gldt-" + MIXED[:20],
        "AKCp" + MIXED[:69],
        "shippo_live_" + HEX[:40],
        "sk-admin-" + MIXED[:50],
        "SG." + MIXED[:22] + "." + MIXED[2:45],
        "hvs." + MIXED[:95],
        "dp.pt." + MIXED[:43],
        "123456789:A" + MIXED[:34],
        HEX[:32] + "-us12",
    ],
)
def test_keys_by_published_rules_are_found_whole_and_no_halves_of_them(key) -> None:
    assert scrub(f'value "{key}", {key}') == 'value "<API_KEY>", <API_KEY>'
    other = f"{key[: len(key) // 2]}, a{key}"
    assert scrub(other) == other


@given(st.text(st.sampled_from("aZ9=:/@ \"'_-.<>$\n"), max_size=40))
def test_scrubbed_secrets_hold_none(text) -> None:
    once = scrub("db_password=" + text + "://u:" + text + "@h")
    assert scrub(once) == once


def test_public_addresses_alone_are_found_where_asked_for() -> None:
    text = b"host 10.0.0.7, 93.184.216.34, fe80::12ab:1 and 2606:4700::6810:84e5"
    found = find_spans(text, PiiConfig(types=("IP",), ip="public"))
    assert [text[s:e] for s, e, _ in found] == [b"93.184.216.34", b"2606:4700::6810:84e5"]
    assert len(find_spans(text, PiiConfig(types=("IP",)))) == 4
