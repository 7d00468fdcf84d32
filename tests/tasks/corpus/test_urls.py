"""URLs that name one page have one form."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.corpus.urls import normalise_url, url_keys

TRACKING = ("utm_*", "fbclid")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("HTTP://Example.ORG", "http://example.org/"),
        ("http://example.org:80/a", "http://example.org/a"),
        ("https://example.org:443/a", "https://example.org/a"),
        ("http://example.org./a", "http://example.org/a"),
        ("http://example.org/a#part", "http://example.org/a"),
        ("http://example.org/%7euser/%c3%a9", "http://example.org/~user/%C3%A9"),
        ("http://example.org/a?utm_source=x&q=1&fbclid=2&utm_medium=y", "http://example.org/a?q=1"),
        ("http://example.org/a?utm_source=x", "http://example.org/a"),
        ("http://example.org/a?", "http://example.org/a"),
        (" http://example.org/a\n", "http://example.org/a"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
        ("http://Me@Example.org/", "http://Me@example.org/"),
    ],
)
def test_spellings_of_one_url_agree(one: str, other: str) -> None:
    assert normalise_url(one, TRACKING) == normalise_url(other, TRACKING) == other
    assert url_keys([one], TRACKING) == url_keys([other], TRACKING) != [None]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://example.org/a", "https://example.org/a"),
        ("http://example.org/a", "http://www.example.org/a"),
        ("http://example.org/a", "http://example.org/A"),
        ("http://example.org/a", "http://example.org/a/"),
        ("http://example.org:8080/a", "http://example.org/a"),
        ("http://example.org/a?x=1&y=2", "http://example.org/a?y=2&x=1"),
        ("http://example.org/a%2Fb", "http://example.org/a/b"),
        ("http://example.org/a?utmost=1", "http://example.org/a"),
    ],
)
def test_urls_that_may_name_two_pages_differ(one: str, other: str) -> None:
    assert normalise_url(one, TRACKING) != normalise_url(other, TRACKING)


def test_tracking_parameters_are_an_option() -> None:
    assert normalise_url("http://a.org/?utm_source=x") == "http://a.org/?utm_source=x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "no url",
        "/path",
        "mailto:a@example.org",
        "http://",
        "http://a.org:port/",
        "http://[1/",
        "http://./",
    ],
)
def test_what_is_no_url_is_like_nothing(url: str) -> None:
    assert normalise_url(url) is None
    assert url_keys([url, None, url]) == [None] * 3


@given(
    st.text()
    | st.from_regex(
        r"https?://[a-zA-Z.%]{1,9}(:\d{1,5})?(/[a-z%0-9A-F]{0,6}){0,3}(\?[a-z&=%]{0,9})?(#.)?"
    )
)
@example("A://0/ #")
@example("http://a/b ?utm_source=1")
def test_the_normal_form_is_its_own_normal_form(url: str) -> None:
    normal = normalise_url(url, TRACKING)
    if normal is not None:
        assert normalise_url(normal, TRACKING) == normal
