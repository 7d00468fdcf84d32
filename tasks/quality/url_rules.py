"""Finds documents from listed places, by domain, URL or a word in the URL.

Blocklists come from the configuration, from files (one entry per line, `#` comments) and from
folders laid out as those of the University of Toulouse (UT1: `CATEGORY/domains`, `CATEGORY/urls`),
the blocklist of RefinedWeb and FineWeb. A listed domain stands for itself and everything under it,
never above the registrable domain of the public suffix list: `example.co.uk` hits
`a.example.co.uk`, and an entry `co.uk` is an error. A listed URL stands for itself and everything
under its path. Lists of allowed domains and URLs win over all. One's own entries are checked before
a run begins; in folders, which others keep and which have odd lines among millions (`a b.com`,
`com.ve`, `localhost`, bytes that are not UTF-8), those are passed over and counted.

Entries and URLs are compared in one form (`tasks.quality.url_entries`). Keywords are pieces of
letters and digits of the URL, escapes undone, in any case.

In: url. Out: features `url_domain`, `url_listed`, `url_keyword` (0 or 1, int64; 0 without a URL)
and the rules URL_DOMAIN, URL_LISTED, URL_KEYWORD. Cost: entries are looked up by hash, hosts once
for each different one. A list is a set in memory: some 100 bytes an entry. Left out: patterns, and
the private part of the public suffix list (`github.io` can be listed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from llm_core.config import NOT_IN_KEY, ConfigError, nearest
from tasks.corpus.documentset import one_chunk
from tasks.corpus.listfiles import check_list_files, read_entries
from tasks.quality.presets import Rule
from tasks.quality.url_entries import (
    PIECES,
    domain_entry,
    domains_above,
    keyword_entry,
    place_entry,
    places_above,
    public_suffixes,
    split_url,
)

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

FEATURES_OF_URLS = ("url_domain", "url_listed", "url_keyword")


@dataclass(frozen=True)
class UrlRules:
    """What is blocked, and what is allowed all the same."""

    domains: tuple[str, ...] = ()
    """Blocked domains."""

    domain_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files of blocked domains."""

    urls: tuple[str, ...] = ()
    """Blocked URLs, with everything under their paths."""

    url_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files of blocked URLs."""

    folders: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Folders that hold lists as CATEGORY/domains and CATEGORY/urls."""

    categories: tuple[str, ...] = ()
    """Categories of `folders` that block; empty: all."""

    keywords: tuple[str, ...] = ()
    """Words that block a URL that contains them."""

    keyword_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files of such words."""

    allow_domains: tuple[str, ...] = ()
    """Domains that nothing here blocks."""

    allow_domain_files: tuple[Path, ...] = field(default=(), metadata=NOT_IN_KEY)
    """Files of such domains."""

    allow_urls: tuple[str, ...] = ()
    """URLs that nothing here blocks, with everything under their paths."""

    drops: bool = True
    """Drop documents with a blocked URL; false only records them."""

    def __post_init__(self) -> None:
        if self.categories and not self.folders:
            raise ConfigError(
                f"categories ({', '.join(self.categories)}) choose among those of folders, and no"
                " folder is given; set folders=[PATH]"
            )
        for setting, read in _READ.items():
            for entry in getattr(self, setting):
                read(entry, f"quality.urls.{setting}")

    @property
    def finds(self) -> tuple[str, ...]:
        """The features that have entries to compare with."""
        sources = (
            self.domains or self.domain_files or self.folders,
            self.urls or self.url_files or self.folders,
            self.keywords or self.keyword_files,
        )
        return tuple(name for name, given in zip(FEATURES_OF_URLS, sources, strict=True) if given)


def url_rules(rules: UrlRules) -> list[tuple[Rule, bool]]:
    """(rule, whether it drops) of each kind of list that is given."""
    return [(Rule(name.upper(), "urls", name, "max", 0), rules.drops) for name in rules.finds]


def url_files(rules: UrlRules) -> dict[str, Path]:
    """{place in the configuration: file}. Raises ConfigError on folders and categories that are not
    there."""
    files: dict[str, Path] = {}
    for setting in _FILES:
        files |= {f"urls/{setting}/{i}": path for i, path in enumerate(getattr(rules, setting))}
    categories: set[str] = set()
    for i, folder in enumerate(rules.folders):
        found = sorted(folder.glob("*/domains")) + sorted(folder.glob("*/urls"))
        if not found:
            raise ConfigError(
                f"quality.urls.folders ({folder}) holds neither CATEGORY/domains nor CATEGORY/urls;"
                " give a folder laid out like UT1"
            )
        categories |= {path.parent.name for path in found}
        files |= {
            f"urls/folders/{i}/{path.parent.name}/{path.name}": path
            for path in found
            if not rules.categories or path.parent.name in rules.categories
        }
    for category in sorted(set(rules.categories) - categories):
        raise ConfigError(
            f"quality.urls.categories names {category}, which no folder has;"
            f" {nearest(category, sorted(categories))}"
        )
    return files


def check_url_files(rules: UrlRules) -> None:
    """Raise ConfigError for a missing file, and for an entry that means nothing in a file of one's
    own, as reading it would."""
    for name, path in url_files(rules).items():
        setting = name.split("/")[1]
        check_list_files(f"quality.urls.{setting}", (path,))
        if setting in _FILES:
            stat = path.stat()
            _entries_of(path, setting, (stat.st_size, stat.st_mtime_ns))


def odd_entries(rules: UrlRules, files_digest: str) -> dict[str, int]:
    """{file of a folder: entries that mean nothing}, without files that have none."""
    return dict(_read_lists(rules, files_digest).odd) if rules.folders else {}


def find_urls(rules: UrlRules, files_digest: str, urls: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """{feature: 0 or 1 by document} of the kinds of lists that are given.

    files_digest: of the contents of all files, so that lists are read again when they have changed.
    Raises ConfigError on an entry that is not a domain, or a public suffix.
    """
    if not rules.finds:
        return {}
    lists = _read_lists(rules, files_digest)
    encoded = one_chunk(urls).dictionary_encode()
    hosts: dict[str, tuple[bool, bool]] = {}
    # The last row is that of documents without a URL.
    verdicts = np.zeros((len(encoded.dictionary) + 1, len(FEATURES_OF_URLS)), np.int64)
    for i, url in enumerate(encoded.dictionary.to_pylist()):
        verdicts[i] = lists.judge(url, hosts)
    rows = verdicts[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()]
    return {
        name: rows[:, i].copy() for i, name in enumerate(FEATURES_OF_URLS) if name in rules.finds
    }


@dataclass(frozen=True)
class _Lists:
    suffixes: PublicSuffixList
    odd: Mapping[str, int]
    domains: set[str]
    urls: set[str]
    keywords: set[str]
    allow_domains: set[str]
    allow_urls: set[str]

    def judge(self, url: str, hosts: dict[str, tuple[bool, bool]]) -> tuple[int, int, int]:
        """Hits of domain, URL and keyword. `hosts` remembers (blocked, allowed) of each host."""
        split = split_url(url)
        if split is None:
            return 0, 0, 0
        host, rest = split
        if host not in hosts:
            above = set(domains_above(host, self.suffixes))
            hosts[host] = bool(self.domains & above), bool(self.allow_domains & above)
        blocked, allowed = hosts[host]
        # Most runs list no URLs, and most documents have a URL.
        paths = places_above(host, rest) if self.urls or self.allow_urls else []
        if allowed or not self.allow_urls.isdisjoint(paths):
            return 0, 0, 0
        keyword = bool(self.keywords) and not self.keywords.isdisjoint(
            PIECES.findall(unquote(host + rest).casefold())
        )
        return int(blocked), int(not self.urls.isdisjoint(paths)), int(keyword)


@lru_cache(maxsize=2)
def _read_lists(rules: UrlRules, files_digest: str) -> _Lists:
    files, odd = url_files(rules), Counter[str]()
    lists: dict[str, set[str]] = {
        setting: {read(e, setting) for e in getattr(rules, setting)}
        for setting, read in _READ.items()
    }
    for name, path in files.items():
        _, kind, *_, last = name.split("/")
        if kind != "folders":
            lists[_FILES[kind]] |= _entries_of(path, kind, files_digest)
            continue
        # Bytes that are not UTF-8 make an odd entry, not an error.
        for entry in read_entries(path, "quality.urls.folders", "surrogateescape"):
            try:
                lists[last].add(_READ[last](entry, name))
            except ConfigError:
                odd[name] += 1
    return _Lists(public_suffixes(), odd, **lists)


@lru_cache(maxsize=16)
def _entries_of(path: Path, setting: str, version: Any) -> frozenset[str]:
    """The entries of a file of one's own. `version`: of its content, so that it is read again when
    it has changed."""
    read, where = _READ[_FILES[setting]], f"quality.urls.{setting}"
    return frozenset(read(entry, f"{where} ({path})") for entry in read_entries(path, where))


_READ: Mapping[str, Callable[[str, str], str]] = {
    "domains": domain_entry,
    "urls": place_entry,
    "keywords": keyword_entry,
    "allow_domains": domain_entry,
    "allow_urls": place_entry,
}
"""How an entry of a setting is read."""
_FILES = {f"{name}_files": f"{name}s" for name in ("domain", "url", "keyword", "allow_domain")}
"""Settings that name files, and what those hold."""
