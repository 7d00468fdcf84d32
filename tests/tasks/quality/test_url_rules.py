"""URL rules: a domain stands for what is under it and no more, lists of allowed places win, and no
URL is not a hit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from publicsuffixlist import PublicSuffixList

from llm_core.config import ConfigError, build
from tasks.corpus.documentset import DOCUMENT_SCHEMA, read_table, write_table
from tasks.explain.replay import replay_quality
from tasks.language.config import LanguageConfig
from tasks.language.stage import identify_languages
from tasks.quality.config import QualityConfig
from tasks.quality.stage import filter_quality
from tasks.quality.url_rules import UrlRules, find_urls, odd_entries, url_files
from tasks.runtime.artifact import Artifact
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.make_artifacts import empty_dir


def hits(urls: list[str | None], feature: str = "url_domain", /, **rules: object) -> list[int]:
    column = pa.chunked_array([pa.array(urls, pa.string())])
    return find_urls(build(UrlRules, rules), "none", column)[feature].tolist()


@pytest.mark.parametrize(
    ("url", "hit"),
    [
        ("http://example.co.uk", 1),
        ("https://a.b.example.co.uk/x?y#z", 1),
        ("http://EXAMPLE.co.UK.:8080/", 1),
        ("http://user:word@example.co.uk/", 1),
        ("http://example.co.uk@elsewhere.org/", 0),
        ("http://notexample.co.uk/", 0),
        ("http://elsewhere.co.uk/example.co.uk", 0),
        ("http://xn--bcher-kva.example/", 1),
        ("http://shop.BÜCHER.example/", 1),
        ("http://shop.bücher。example/", 1),
        ("http://203.0.113.9:80/", 1),
        ("http://1.203.0.113.9.org/", 0),
        ("//example.co.uk/x", 1),
        ("example.co.uk/x", 1),
        ("/example.co.uk/x", 0),
        ("http://example.co.uk:none/", 1),
        ("http://[half", 0),
        ("not a url", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_domain_hits_itself_and_what_is_under_it(url: str | None, hit: int) -> None:
    assert hits([url, None], domains=["Example.co.uk", "bücher.example", "203.0.113.9"]) == [hit, 0]


@given(
    names=st.lists(
        st.sampled_from(["a", "bb", "co", "uk", "com", "github", "io", "kobe", "jp"]),
        min_size=1,
        max_size=5,
    ),
    listed=st.lists(
        st.sampled_from(["a", "bb", "co", "uk", "com", "github", "io", "kobe", "jp"]),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=150, deadline=None)
def test_a_rule_is_an_error_for_a_public_suffix_and_a_suffix_match_otherwise(
    names: list[str], listed: list[str]
) -> None:
    host, rule = ".".join(names), ".".join(listed)
    if rule == SUFFIXES.publicsuffix(rule):
        with pytest.raises(ConfigError, match="a public suffix"):
            hits([f"http://{host}/"], domains=[rule])
    else:
        assert hits([f"http://{host}/"], domains=[rule]) == [
            int(host == rule or host.endswith(f".{rule}"))
        ]


SUFFIXES = PublicSuffixList(only_icann=True)


@pytest.mark.parametrize(
    ("url", "hit"),
    [
        ("https://www.example.com/bad", 1),
        ("http://example.com/bad/", 1),
        ("http://example.com/bad/deeper.html?x=1#y", 1),
        ("http://example.com/b%61d/", 1),
        ("http://example.com/badly", 0),
        ("http://other.example.com/bad", 0),
        ("http://example.com/", 0),
        ("http://example.org/page?id=7", 1),
        ("http://example.org/page?id=8", 0),
        (None, 0),
    ],
)
def test_a_listed_url_hits_itself_and_what_is_under_its_path(url: str | None, hit: int) -> None:
    assert hits([url], "url_listed", urls=["http://example.com/bad/", "example.org/page?id=7"]) == [
        hit
    ]


def test_keywords_are_whole_pieces_of_the_url() -> None:
    urls = [
        "http://a.com/free-CASINO/x",
        "http://casino.com",
        "http://a.com/casinos",
        "http://a.com/q?c%61sino=1",
        None,
    ]
    assert hits(urls, "url_keyword", keywords=["Casino"]) == [1, 1, 0, 1, 0]


def test_allowed_places_win_over_all_lists() -> None:
    rules = {"domains": ["example.com"], "urls": ["example.com/x"], "keywords": ["x"]}
    allowed = {"allow_domains": ["good.example.com"], "allow_urls": ["example.com/x/y"]}
    urls: list[str | None] = [
        "http://a.good.example.com/x",
        "http://example.com/x/y/z",
        "http://example.com/x",
    ]
    for feature in ("url_domain", "url_listed", "url_keyword"):
        assert hits(urls, feature, **rules, **allowed) == [0, 0, 1]


def test_folders_of_categories_and_files_are_read(tmp_path: Path) -> None:
    for category, domain in (("adult", "one.com"), ("games", "two.com")):
        (tmp_path / category).mkdir()
        (tmp_path / category / "domains").write_text(f"# list\n{domain}\n", "utf-8")
    (tmp_path / "adult" / "urls").write_text("three.com/page\n", "utf-8")
    (tmp_path / "allowed").write_text("fine.two.com\n", "utf-8")
    urls: list[str | None] = [
        "http://one.com",
        "http://two.com",
        "http://three.com/page/1",
        "http://fine.two.com",
    ]
    everything = {"folders": [str(tmp_path)], "allow_domain_files": [str(tmp_path / "allowed")]}
    assert hits(urls, **everything) == [1, 1, 0, 0]
    assert hits(urls, "url_listed", **everything) == [0, 0, 1, 0]
    assert hits(urls, **everything, categories=["games"]) == [0, 1, 0, 0]
    assert set(url_files(build(UrlRules, everything))) == {
        "urls/folders/0/adult/domains",
        "urls/folders/0/adult/urls",
        "urls/folders/0/games/domains",
        "urls/allow_domain_files/0",
    }


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"domains": ["co.uk"]}, "quality.urls.domains holds 'co.uk', a public suffix"),
        ({"domains": ["com"]}, "a public suffix"),
        ({"allow_domains": ["co.jp"]}, "allow_domains holds 'co.jp', a public suffix"),
        ({"domains": ["example.com/x"]}, "is not a domain"),
        ({"urls": ["example.com/"]}, "a whole host"),
        ({"keywords": ["two words"]}, "one word"),
        ({"categories": ["adult"]}, "choose among those of folders"),
        ({"folders": ["/nowhere/at/all"]}, "holds neither CATEGORY"),
    ],
)
def test_entries_that_mean_nothing_are_refused(rules: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_urls(
            build(UrlRules, {"keywords": ["x"], **rules}),
            "none",
            pa.chunked_array([pa.array(["http://a.com"])]),
        )


def test_an_unknown_category_is_named(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "domains").write_text("one.com\n", "utf-8")
    with pytest.raises(ConfigError, match="did you mean adult"):
        url_files(build(UrlRules, {"folders": [str(tmp_path)], "categories": ["adlut"]}))


def test_odd_lines_of_folders_are_passed_over_and_counted(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    odd = ["com.ve", "a b.com", "http://x.com/", "-", "localhost", "caf\udce9.com"]
    (tmp_path / "adult" / "domains").write_text(
        "\n".join(["good.com", *odd, "one.com"]), "utf-8", "surrogateescape"
    )
    (tmp_path / "adult" / "urls").write_text("host.com/\nhost.com\nx.com/a\n", "utf-8")
    rules = {"folders": [str(tmp_path)]}
    assert hits(["http://a.good.com", "http://one.com", "http://host.com", None], **rules) == [
        1,
        1,
        0,
        0,
    ]
    assert hits(["http://x.com/a/b", "http://host.com/b"], "url_listed", **rules) == [1, 0]
    assert odd_entries(build(UrlRules, rules), "none") == {
        "urls/folders/0/adult/domains": 6,
        "urls/folders/0/adult/urls": 2,
    }
    assert odd_entries(build(UrlRules, {"domains": ["one.com"]}), "none") == {}


@pytest.mark.parametrize(
    ("setting", "line", "message"),
    [
        ("domain_files", "com.ve", "a public suffix"),
        ("url_files", "host.com", "a whole host"),
        ("keyword_files", "two words", "one word"),
        ("allow_domain_files", "a b.com", "is not a domain"),
    ],
)
def test_files_of_ones_own_are_checked_at_the_start(
    setting: str, line: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "list.txt"
    file.write_text(
        {"url_files": "fine.com/x", "keyword_files": "fine"}.get(setting, "fine.com") + "\n",
        "utf-8",
    )
    config = build(QualityConfig, {"urls": {setting: [str(file)], "keywords": ["x"]}})
    assert list(config.input_files().values()) == [file]
    file.write_text(f"{line}\n", "utf-8")
    with pytest.raises(ConfigError, match=message) as refused:
        config.input_files()
    assert str(file) in str(refused.value)


def test_url_rules_drop_count_and_replay(tmp_path: Path) -> None:
    urls = ["http://a.bad.com/", None, "http://good.com/casino", "http://good.com/"]
    rows = [
        {"id": bytes([i]) * 16, "text": f"text {i}", "source": "s", "url": url}
        for i, url in enumerate(urls)
    ]
    (tmp_path / "ingest" / "documents").mkdir(parents=True)
    write_table(
        pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA),
        tmp_path / "ingest" / "documents" / "part-00000.parquet",
    )
    ingest = Artifact(tmp_path / "ingest", "ingest")
    language = identify_languages(ingest, empty_dir(tmp_path / "language"), LanguageConfig())
    scores = score_documents(ingest, language, empty_dir(tmp_path / "scores"), ScoresConfig())
    config = {"presets": [], "record": [], "urls": {"domains": ["bad.com"], "keywords": ["casino"]}}
    made = filter_quality(
        ingest, language, scores, empty_dir(tmp_path / "quality"), build(QualityConfig, config)
    )
    assert made.counters["dropped"] == {"URL_DOMAIN": 1, "URL_KEYWORD": 1}
    assert made.metrics["urls"] == {"url_domain": 1, "url_keyword": 1}
    table = read_table(made.files("part-*.parquet")[0])
    assert (
        table["kept"].to_pylist() == [False, True, False, True]
        and "url_listed" not in table.column_names
    )
    recorded = build(QualityConfig, config | {"urls": config["urls"] | {"drops": False}})  # type: ignore[operator]
    assert replay_quality(ingest, language, scores, made, recorded).total.kept_after == 4
