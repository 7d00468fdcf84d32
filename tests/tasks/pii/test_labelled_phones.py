"""National telephone numbers are found as people write them: unbroken, and by the words around."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from tasks.definitions import number_words
from tasks.kernels.pii.labels import ADDRESS, CALL, CARD, NAME, NONE, NUMBER, OTHER, label_before
from tasks.kernels.text.addresses import pointers
from tasks.pii.config import PiiConfig
from tasks.pii.phones import are_planned
from tasks.pii.scrub import scrub
from tasks.pii.spans import find_spans


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("手机：13912345678", "手机：<PHONE>"),
        ("电话：021-58881234，传真 010-62511111", "电话：<PHONE>，传真 <PHONE>"),
        ("张三 13912345678", "张三 <PHONE>"),
        ("Phone: 2125552368", "Phone: <PHONE>"),
        ("{'phone_number': '2125552368'}", "{'phone_number': '<PHONE>'}"),
        ("(212)5552368", "<PHONE>"),
        ("(514) 398-3709", "<PHONE>"),  # Canada shares the plan of the United States
        ("Tel.030 901820, Fax 030/901821", "Tel.<PHONE>, Fax <PHONE>"),
        ("Tel. 555-0199", "Tel. <PHONE>"),
        ("Appelez le 06.12.34.56.78", "Appelez le <PHONE>"),
        ("Мобильный: 8 (912) 345-67-89", "Мобильный: <PHONE>"),
        ("ПОЗВОНИТЕ 89123456789", "ПОЗВОНИТЕ <PHONE>"),
        ("फ़ोन 9876543210", "फ़ोन <PHONE>"),
        ("بالهاتف 01012345678", "بالهاتف <PHONE>"),
        ("13912345678（手机）", "<PHONE>（手机）"),
        ("call Dr. Smith at 2125552368", "call Dr. Smith at <PHONE>"),
        (
            'equal("phone", "48022090"); ("Fax","48022090")',
            'equal("phone", "<PHONE>"); ("Fax","<PHONE>")',
        ),
        ("tel=2125552368%20x, 1.800.555.0199", "tel=<PHONE>%20x, <PHONE>"),
        (
            "Réservations au 0800 984 422, meine Nr: 030 23456789",
            "Réservations au <PHONE>, meine Nr: <PHONE>",
        ),
        (
            "Anruf 040 3712345 0, Tel. 0777 -777 7777, 0661 (987) 6543",
            "Anruf <PHONE>, Tel. <PHONE>, <PHONE>",
        ),
        ("TEL: +225 05775748", "TEL: <PHONE>"),  # of a plan that has changed
        ("contact\t3198836990, call 24/7 3198836990", "contact\t<PHONE>, call 24/7 <PHONE>"),
        (
            "Tél. 06 12 34 56 78 2e étage, Tel: 98765432-Ext 12",
            "Tél. <PHONE> 2e étage, Tel: <PHONE>-Ext 12",
        ),
        (
            "Tél. 01 23 45 67 89 06 12 34 56 78\n212 555 2368\nmy number (home): 212 555 2369",
            "Tél. <PHONE> <PHONE>\n<PHONE>\nmy number (home): <PHONE>",
        ),
    ],
)
def test_national_numbers_are_found_by_form_and_by_the_words_around(text, want) -> None:
    assert scrub(text) == want


@pytest.mark.parametrize("text", ["田中（03-3859-3853）までご連絡ください", "9876543210 पर कॉल करें"])
def test_words_behind_a_number_count_where_the_verb_comes_last(text) -> None:
    assert "<PHONE>" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "订单号 13912345678, 账号：13912345678",
        "id: 13912345678, order 2125552368",
        "2125552368 and 021 58881234 and 13912345678901",
        "if you call, quote the order number 2125552368",
        "iPhone 2125552368, hotel 2125552368, a FONT=2125552368",
        "a call to it 2005-03-23 23:47:11; telephone 1876 1890; phone: 2024-01-15; tel. 20240115",
        "calling at 1700000000",
        "numbers = 0123456789; Ordinance No. 20151008-011, mob.svg?1528322191",
        "New Kendrick, UT 09361-3329",
        "phone 0.0004392232; the number for the century is 1 (1900-1999) or 2 (2000-2099)",
        "mail.hotline.fr [212.155.65.117x] phone 10.0.19041.1 doi:10.1016/j.cell.2008.10.015",
        "Message-Id: 18090200013$102192 &p=13912345678&q",
        "We like to call. Then 2125552368 came out.",
        "routing_number: 053000196, return trace number: '214874812', seq number 8000020612",
        "['identification']['number'] = 0987654321; lei nº 12.780/2013; no  9212 9212",
        "BigDecimal(num). 5344342.34, call 7\n  27  2008-06-20 11:15, call 282  1999-11-11 21:47",
        "callback(dhex('01 02 03 04 05 06 07 08')), PhoneStatusBar: vis=40000600, HP 167996941",
        "PHONE_NO()\n   25  1999-11-11 21:46, err_num: 2, packets: 49640783, REFID:3154273850",
        "01 02 03 04 05, 'CELULARES,DE MADEIRA',44189000, nr 101000?21022086 ",
        "05 34 15 98 97 e8 06, 02 00 02 11 82 df 8e, 174 0000.0000 yes",
        ".cell { width: 33.3333333333%; } .mobile { flex: 16.6666666667 }",
        'own number 202 18/11/2020; "paper for your fax","48022090","bars for contact",39169090',
        'service by phone"\n"nbs_1","1.1805.40.00", telephone of Nokia 1200/1208',
        'call tdfb("1956/957 24 2", 2); call dates(p) "210 461  68 1"; RWY TPH 11/29 5430 6195',
        "(Fax Number:) 176.222 499 M, $Id: fax_lib.h,v 4.21 2014/02/02 13:42:59 gert Exp $",
        "phone DA 0004 0028 0000 5EB3; <compat> 0078 0069 0069; 353 405 -7620; 305-363 (1997)",
        "[(1501)-502(1502)-502]; fax 01123965-Tube; Citation Nr: 25000001",
        "The number is not in the block 987-65-4320",
        "aa 3c 3f 01 00 00 00 00\n40: de 手机\t251658324\t100, Fax\n\t\t1522 4002 IQ",
        "TELEPHONE 2610..2613; N ring 730 730 730; call setline(1, '3234567890')",
        "number_fields/x\n3340568655 1196; Telemann, composer (1681-1767), HP:1234(1234)",
        "CA\t+4906-11631\tAmerica/Creston, GG\t+492717-0023210\tEurope/Guernsey",
        "N ring ; B 48 568 225 776 ; call range(1, 947948399), equal([5573771921, 3198836990])",
        "contact\t3198836990\t12, [call] 3198836990",
        "Mobile Bridge\n00: 86 80 48 24 07 01 10 00",
        "= 01 00 00 00 01, 212 555 2368 -1927",
        "0 0 2\n140 123 1282\n140 124 1437\n140 125 1697",
        "call assert(4294967296) or 2147483647; tests/number.987654321; zap.c  9573688696",
        "x + 193/10510500*y +74954438640*x +67738549+; NAV TPH 5344 117.20",
        "telefonia 85179010, 'cep': '83050580', NR:XXX 22.05.11/14.25",
        "$GPGGA,153358.000,3940.6985,N,07544.9358,W,1 $GPGLL,5547.82150,N,02334.14092,E",
        "fc 03 84 00 80 00\n// 03 01 04 00 00\n--> 02 01 00 01 03\n  02  00 16 00 01\n",
        "2628  03  02 97 01 00  05 22 00 00  07 ad, EUI64\t01-23-45-67-89-ab-cd-ef",
        "rgb:05/05/05 20 15 x <--- 01/00/02/01/01  Seen, 400/600/1200 dpi",
        "TELEFONIA.GSM             2:480/19 33.16 .42 .51 .55 .56 49",
        "# UN +36314223356 E-109 x 1f, -0.34025629, +2.52430958, -0.3287",
        "file set:\n\n+49213 525.624 128.4.10 963a 8a+ message",
        "phone.cfg\n000000000000.cfg, ph:]t[:digit:]222222222222(",
        "make a test more portable\n\t[229803093725]; Manual, Doc. No. 250-0081-0",
        "京ICP备16044242号 期刊订阅电话; my mobile. Then one more: 123456789",
        "(875)(907)(906 1102), xywh {254 149 140 20}, V.  13  4102 1974, {(03302 15973 /0106 1",
        "SNAT --to PH_IP_MOON:1100-1200; token-ring 213982198 00:16:6F, gsm 0-268435455",
        "+2015-06-30 19:02; killed by mob, 1837\n00001107 Lewis",
        "#\t02 0a 52 4e 56 35 30 34 35 39 34 34\n#\t03 03 41 54 41\n# ff 00",
    ],
)
def test_numbers_of_other_things_stay(text) -> None:
    assert "<PHONE>" not in scrub(text)


@pytest.mark.parametrize(
    "word",
    ["Tél.", "Tlf.", "Tel.", "Ph.", "Telf.", "Tfno.", "Моб.", "тел.", "Τηλ.", "โทร."],
)
def test_dot_behind_an_abbreviation_ends_no_sentence(word: str) -> None:
    # No plan has this number: a word for a telephone alone makes it one, if in the same sentence.
    assert scrub(f"{word} 0123 4567 89") == f"{word} <PHONE>"


def test_dot_behind_four_letters_of_any_script_ends_a_sentence() -> None:
    for word in ("my cell", "новый телефон", "τηλέφωνο", "โทรศัพท์"):
        assert scrub(f"{word}. 0123 4567 89") == f"{word}. 0123 4567 89"


def test_words_for_numbers_and_easy_numbers_hide_no_telephone() -> None:
    for before in ("Res. No. ", "Tel. No. ", "тел. ", "Portable : ", "电话："):
        number = {"тел. ": "123-45-67", "电话：": "88888888"}.get(before, "06 12 34 56 78")
        assert scrub(before + number) == f"{before}<PHONE>", before
    assert scrub("+1.2125550199 or +7 495 123.45.67") == "<PHONE> or <PHONE>"


def test_word_before_number_says_of_what_it_is() -> None:
    assert scrub("the number 2125552368, the order number 2125552369") == (
        "the number <PHONE>, the order number 2125552369"
    )


def test_nearest_word_decides() -> None:
    assert scrub("order 2125552368, call 2125552369") == "order 2125552368, call <PHONE>"
    assert scrub("call 2125552368, order 2125552369") == "call <PHONE>, order 2125552369"


def test_without_regions_no_national_number_is_found_behind_any_word() -> None:
    text = "手机：13912345678 Phone: (212) 555-2368".encode()
    assert find_spans(text, PiiConfig(regions=())) == []


def test_without_regions_international_numbers_behind_a_word_are_found_still() -> None:
    assert find_spans(b"Call +1 212 555 2368", PiiConfig(regions=())) == [(5, 20, "PHONE")]


def test_mobile_numbers_of_china_are_found_by_form_where_china_is_a_region() -> None:
    seen = "见到 13912345678".encode()
    assert len(find_spans(seen, PiiConfig(regions=("CN",)))) == 1
    assert find_spans(seen, PiiConfig(regions=("US",))) == []
    assert len(find_spans(b"saw 139-1234-5678", PiiConfig(regions=("CN",)))) == 1


def test_counters_of_eleven_digits_are_no_mobile_numbers_without_chinese_near() -> None:
    text = "13752019190 unicasts, TX | 13561139927\n数 " + "x" * 50 + " 14142282124"
    assert find_spans(text.encode(), PiiConfig(regions=("CN",))) == []


@numba.njit
def _label(v: np.ndarray) -> tuple[int, int, bool]:  # type: ignore[no-untyped-def]
    return label_before(pointers(v), 0, len(v) - 8, 0)


def _meaning(text: str) -> int:
    return _label(np.frombuffer(text.encode() + b"12345678", np.uint8))[0]


def test_each_word_says_what_its_list_says() -> None:
    known: dict[str, int] = {}
    for meaning, words in (
        (NAME, number_words.NAMES),
        (CALL, number_words.CALLS),
        (OTHER, number_words.OTHERS),
        (CARD, number_words.CARDS),
        (ADDRESS, number_words.ADDRESSES),
        (NUMBER, number_words.NUMBERS),
    ):
        for entry in words.split():
            known.setdefault(entry.strip("-").replace("_", " "), meaning)
    wrong = {
        word: (_meaning(spelling), meaning)
        for word, meaning in known.items()
        for spelling in (f"{word} ", f" {word.capitalize()}: ", f"，{word}：")
        if _meaning(spelling) != meaning
    }
    assert wrong == {}


def test_words_end_and_begin_where_their_script_has_borders() -> None:
    assert [_meaning(text) for text in ("hotel ", "teller ", "tel ", "phoneNumber ")] == [
        NONE,
        NONE,
        NAME,
        NAME,
    ]
    assert _meaning("我的电话号码是") == NAME and _meaning("Kundentelefonnummer ") == NAME
    assert _meaning("phone <b> ") == _meaning("phone\n\n") == _meaning("phone " + "x" * 41) == NONE


def test_plans_take_numbers_as_they_are_dialled_at_home_and_from_abroad() -> None:
    for digits in ("13912345678", "8613912345678", "008613912345678", "02158881234"):
        assert are_planned([digits], ("CN",)).all(), digits
    numbers = ["2125552368", "12125552368"]
    assert not are_planned(numbers, ("CN",)).any() and are_planned(numbers, ("CN", "US")).all()
    assert not are_planned(numbers, ()).any()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("电话：１３９１２３４５６７８。", "电话：<PHONE>。"),
        ("身份证号：１１０１０５１９４９１２３１００２Ｘ", "身份证号：<NATIONAL_ID>"),
        ("é user＠example.com x", "é <EMAIL> x"),
        ("call 212\u2011555\u20112368, jo\u00adhn@x.org", "call <PHONE>, <EMAIL>"),
    ],
)
def test_full_width_signs_and_soft_hyphens_hide_nothing(text, want) -> None:
    assert scrub(text) == want
