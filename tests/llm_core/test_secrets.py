"""A secret is masked wherever it stands, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.compose import compose
from llm_core.secrets import mask_secrets, mask_values

PLACES = [
    "tracking.uri=postgresql://me:{}@db.host:5432/runs?sslmode=require",
    "mysql+pymysql://me:{}@db/runs failed",
    "https://{}@github.com/me/corpus.git",
    "https://me:{}@host:8080/mlflow",
    "https://store.blob/x.jsonl?sv=2024&sig={}&se=2026",
    "https://b.s3.amazonaws.com/x?X-Amz-Credential={}&X-Amz-Date=1",
    "https://b.s3.amazonaws.com/x?X-Amz-Signature={}",
    "AWS_SECRET_ACCESS_KEY={} is wrong",
    "HF_TOKEN={}",
    "Authorization: Bearer {}",
    "{{'password': '{}', 'user': 'me'}}",
    '{{"api_key": "{}"}}',
    "source.storage.secret={}",
    "MLFLOW_TRACKING_PASSWORD={}",
    "pii.hmac_key={}",
    "AccountKey={};EndpointSuffix=core",
    r"tracking.uri=postgresql\://me\:{}@127.0.0.1\:1/runs",
    r"source.url=https\://host/x?sig\={}",
]


@pytest.mark.parametrize("place", PLACES)
@given(
    secret=st.text(alphabet="abcXYZ0189_-.~%", min_size=4, max_size=30).map(
        lambda text: f"Q{text}Q"
    )
)
def test_a_secret_is_masked_in_every_place(place: str, secret: str) -> None:
    masked = mask_secrets(place.format(secret))
    assert secret not in masked and "***" in masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize("secret", ["p@ss", "p@ss@word", "12345", "a/b", "5432x/y", "with:colon"])
def test_passwords_of_other_signs_are_masked(secret: str) -> None:
    masked = mask_secrets(f"postgresql://me:{secret}@db.host:5432/runs")
    assert masked == "postgresql://me:***@db.host:5432/runs"


@pytest.mark.parametrize(
    "token",
    [
        "ghp_" + "a1B2" * 9,
        "hf_" + "abCD" * 8,
        "AKIAIOSFODNN7EXAMPLE",
        "sk-" + "a1b2" * 8,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln-x",
    ],
)
def test_tokens_are_known_by_their_form(token: str) -> None:
    assert mask_secrets(f"refused {token} today") == "refused *** today"


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:4200/api",
        "http://host:80/a@b",
        "sqlite:////data/.state/mlflow/mlflow.db",
        "s3://bucket/key@2x.png",
        (
            "num_tokens=100 bytes_per_token=2.0 unk_token=<unk> eos_token: </s> tokenizer=bpe"
            " max_new_tokens=9"
        ),
        "tokens/s: 100; train 53282a3e55e15df8: key=53282a3e55e15df8 part_key: 1",
        "pii.key_env=MY_VARIABLE pii.key_file=/run/key",
        (
            "action (pseudonym) needs a secret key; name its place with key_env=VARIABLE or"
            " key_file=PATH"
        ),
        "mail me@example.org: design=1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_secrets(text) == text


def test_values_under_a_secrets_name_are_masked_whole() -> None:
    given = {
        "storage": {"client_secret": "x y", "key": "k"},
        "list": ["http://u:p@h"],
        "password": "",
        "n": 1,
        "token": None,
    }
    masked = {
        "storage": {"client_secret": "***", "key": "k"},
        "list": ["http://u:***@h"],
        "password": "",
        "n": 1,
        "token": None,
    }
    assert mask_values(given) == masked


def test_configurations_hold_nothing_to_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "0123456789abcdef")

    def as_lists(value: object) -> object:
        if isinstance(value, dict):
            return {name: as_lists(inner) for name, inner in value.items()}
        return [as_lists(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    for overrides in ([], ["run=demo"], ["pii.key_env=SOME_KEY"], ["quality=by_kind"]):
        resolved = compose(["source=sample", *overrides]).resolved()
        assert mask_values(resolved) == as_lists(resolved)
