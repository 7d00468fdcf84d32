"""The numbers of FineWeb-2 by language: how Gopher's and FineWeb's rules read where English
thresholds do not fit.

Penedo et al. 2025, "FineWeb2: One Pipeline to Scale Them All"; numbers of the published
configurations (huggingface/fineweb-2, `configs/<iso3>_<Script>.yml` at d0defb2, of which there are
1,929). Common to all languages, as its pipeline sets them: a tenth of the characters in duplicate
lines, no rule on paragraphs or short lines, no C4; Gopher's other numbers stay.

What does not carry over as it stands:

* its words are those of a tokenizer for each language (spaCy, Stanza, jieba …), ours are units
  (tasks.kernels.text.chars): in Han, Kana and Thai a letter, so rules on word length do not apply
  there, and n-gram limits are over letters;
* its lists of stop words hold the commonest tokens. Those that are not a unit here are left out
  (punctuation, elisions like `l'`), and so are the whole lists of Korean, whose tokens are parts
  of words, and Thai, whose words are several units;
* its least language scores are GlotLID's and say nothing of another model: not used;
* English it leaves to FineWeb: `fineweb2/en` is Gopher's and FineWeb's (as in code).
"""

from __future__ import annotations

from typing import NamedTuple


class LanguageLimits(NamedTuple):
    """Thresholds by rule, and the stop words of which a document needs two; none where the rule is
    off."""

    thresholds: dict[str, float]
    stop_words: tuple[str, ...]


_COLUMNS = """
    SHORT_WORDS LONG_WORDS TOO_FEW_ALPHABETIC_WORDS TOO_FEW_PUNCTUATED_LINES TOO_MANY_NEWLINES
    DUPLICATE_LINES TOP_2GRAM TOP_3GRAM TOP_4GRAM DUPLICATE_5GRAMS DUPLICATE_6GRAMS DUPLICATE_7GRAMS
    DUPLICATE_8GRAMS DUPLICATE_9GRAMS DUPLICATE_10GRAMS
"""
_TABLE = """
    chars  alpha- punctu- new-   dup.   top 2, 3, 4      duplicate 5- to 10-grams
    a word betic  ated    lines  lines  -grams
ar   2  9   .787  .143   .189   .304   .197 .172 .146   .165 .153 .142 .131 .120 .109
cs   3 11   .781  .060   .182   .311   .206 .183 .165   .168 .157 .145 .133 .121 .109
de   0 15   .774  .000   .152   .263   .169 .153 .137   .141 .134 .126 .117 .108 .098
es   3 14   .825  .182   .138   .252   .156 .140 .125   .145 .136 .127 .117 .108 .099
fr   2 11   .812  .100   .185   .264   .161 .149 .134   .150 .141 .131 .121 .111 .100
hi   2 21   .837  .091   .316   .206   .208 .198 .161   .135 .125 .116 .108 .099 .090
id   3 12   .805  .111   .157   .241   .194 .166 .145   .166 .155 .144 .133 .122 .111
it   3 21   .807  .025   .200   .246   .198 .156 .133   .144 .136 .127 .118 .109 .100
ja   1  6   .759  .096   .130   .328   .239 .196 .172   .243 .225 .207 .190 .175 .159
ko   1  6   .791  .062   .196   .374   .282 .228 .185   .201 .184 .168 .154 .140 .127
nl   3 17   .828  .102   .154   .296   .213 .182 .158   .156 .146 .136 .126 .115 .104
pl   3 12   .726  .087   .158   .320   .222 .198 .176   .172 .160 .148 .136 .123 .111
pt   3 13   .814  .077   .186   .287   .371 .191 .163   .163 .153 .141 .130 .119 .108
ru   3 11   .713  .231   .139   .322   .184 .164 .146   .168 .156 .145 .133 .121 .109
th   2 10   .900  .000   .153   .349   .221 .197 .162   .185 .168 .152 .137 .124 .111
tr   3 21   .773  .091   .222   .272   .214 .168 .147   .154 .144 .134 .124 .113 .103
uk   3 11   .694  .167   .175   .300   .189 .172 .153   .160 .148 .136 .124 .113 .102
vi   3 11   .803  .333   .103   .293   .223 .197 .171   .178 .163 .150 .136 .124 .111
zh   1  5   .735  .106   .178   .287   .256 .201 .171   .198 .182 .167 .154 .140 .127
"""
_STOP_WORDS = {
    "ar": "في من على إلى عام أن مع أو هو عن التي كان بين ما كانت هي المتحدة بعد",
    "cs": "v a se na je z s do",
    "de": "der und die in von im den des mit das er dem als wurde für",
    "es": "de la en el y a que del los se por un con una las su",
    "fr": "de la le et à en des du les est un une il dans par au",
    "hi": "के में है की और से का को एक हैं पर",
    "id": "dan yang di pada dari ini dengan adalah untuk dalam",
    "it": "di e il la in a del che è della un per nel con da i una",
    "ja": "の に を は た て が と で 年 し 月 れ さ",
    "nl": "de van in het een en is op voor met door zijn werd hij uit",
    "pl": "w i na z do się roku od a jest przez po jako oraz o został był nie",
    "pt": "de a e o em do da que um no uma com para na é foi",
    "ru": "в и на с года по году из был к не от что за для его как а он также до после",
    "tr": "ve bir olarak bu ile için olan da de tarafından yılında sonra en daha ilk the",
    "uk": "у в на і з та до року за що",
    "vi": "là và của một được trong năm các có loài này đã người",
    "zh": "的 年 在 月 是 和 日 了 於 為 有 被 人 中 为 他 與 後 也 而 由",
}


def _read_table() -> dict[str, LanguageLimits]:
    limits = {}
    for row in _TABLE.strip("\n").split("\n")[2:]:
        language, *numbers = row.split()
        thresholds = dict(zip(_COLUMNS.split(), map(float, numbers), strict=True))
        limits[language] = LanguageLimits(thresholds, tuple(_STOP_WORDS.get(language, "").split()))
    return limits


FINEWEB2: dict[str, LanguageLimits] = _read_table()

# Least and greatest mean of characters a word, in further languages of lid.176.
_WORD_CHARS = """
    1-10 gl  1-14 ro sq  1-16 bs  1-24 am  2-9 fa he lo  2-10 mk  2-11 ca ga hr mn sk  2-12 sl
    2-13 is km lv  2-14 yi  2-15 ug  2-19 pa  2-21 my  2-31 ur  2-35 mr  2-58 si  3-9 cy sw
    3-10 bg sr  3-11 af be da el la ms nn tt  3-12 eo kk lt no sv tl  3-13 az et ka uz  3-14 fi
    3-15 hu  3-22 gu  3-24 bn  3-30 or  3-37 ne  3-67 kn  4-11 eu hy  4-37 ml ta  4-68 te
"""


def word_chars(rule: str) -> tuple[tuple[str, float], ...]:
    """The cuts of SHORT_WORDS or LONG_WORDS by language."""
    cuts = {language: limits.thresholds[rule] for language, limits in FINEWEB2.items()}
    bounds: list[str] = []
    for entry in _WORD_CHARS.split():
        if "-" in entry:
            bounds = entry.split("-")
        else:
            cuts[entry] = float(bounds[rule == "LONG_WORDS"])
    return tuple(sorted(cuts.items()))
