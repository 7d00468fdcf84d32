"""Texts that hold personal data of each type, and texts that only look alike."""

from __future__ import annotations

from hypothesis import strategies as st

# Made for these tests; no key of anybody. Written in two pieces, so that scanners of repositories
# stay quiet.
WORD = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2"
KEYS = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + WORD,
    "glpat-" + WORD[:20],
    "xoxb-" + "123456789012-" + WORD[:24],
    "AIza" + WORD[:35],
    "sk_live_" + WORD[:24],
    "npm_" + WORD,
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + WORD,
]
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
    + "MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn\n" * 3
)
END = "-----END RSA PRIVATE KEY-----"
FOUND = [
    *((f"key={key};", "key=<API_KEY>;") for key in KEYS),
    (f"a {PEM}{END} b", "a <PRIVATE_KEY> b"),
    (f"cut off: {PEM}", "cut off: <PRIVATE_KEY>\n"),
    ("IBAN DE89 3704 0044 0532 0130 00, GB82WEST12345698765432.", "IBAN <IBAN>, <IBAN>."),
    ("身份证11010519491231002X。", "身份证<NATIONAL_ID>。"),
    ("SSN 078-05-1121; ssn: 536904399", "SSN <NATIONAL_ID>; ssn: <NATIONAL_ID>"),
    ("Steuer-ID: 36 574 261 809", "Steuer-ID: <NATIONAL_ID>"),
    ("NIR 2 95 10 99 126 111 93, 295109912611193", "NIR <NATIONAL_ID>, <NATIONAL_ID>"),
    ("DNI 54362315K, NIE X2482300W", "DNI <NATIONAL_ID>, NIE <NATIONAL_ID>"),
    ("Aadhaar 2341 2341 2346", "Aadhaar <NATIONAL_ID>"),
    ("CPF 390.533.447-05; cpf 39053344705", "CPF <NATIONAL_ID>; cpf <NATIONAL_ID>"),
    ("codice RCCMNL83S18D969H.", "codice <NATIONAL_ID>."),
    (
        "971013-9019902 PESEL 44051401359 BSN: 111222333",
        "<NATIONAL_ID> PESEL <NATIONAL_ID> BSN: <NATIONAL_ID>",
    ),
    ("ether 00:16:3e:c2:07:ee, 08-00-2B-4C-59-23", "ether <MAC>, <MAC>"),
]
KEPT = [
    (
        "AKIAXXXXXXXXXXXXXXXX ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk_live_ is a prefix,"
        " task-list-of-many-words-in-a-slug"
    ),
    (
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC"
        " KEY-----"
    ),
    "it begins with -----BEGIN RSA PRIVATE KEY----- and goes on",
    "DE89 3704 0044 0532 0130 01 XX82WEST12345698765432 GB82WEST1234569876543",
    (
        "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb d41d8cd98f00b204e9800998ecf8427e"
        " 3da541559918a808c2402bba5012f6c60b27661c"
    ),
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD 0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed",
    "110105194912310021 20231127101530123 11999919491231002X 119999194912310029",
    "000-12-3456 666-12-3456 078-05-1120 123-45-67890 part 12-345-6789",
    "36574261809 36 574 261 809 39053344705 44051401359 111222333 234123412346",
    "20230101T 12345678A X1234567A 54362315L 1954362315K",
    "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 01:00:5e:00:01:01 10-20-30-40-50-60 de:ad:be:ef:00:11:22",
    "ff02::1 224.0.0.251 239.1.2.3 2.5.18.2",
    (
        "12:34:56:78:90:12 1:2:3:4:5:6:7:8 50:01:43:80:12:34:56:78 00:02:c9:03:00:0a:bc:de"
        " abc::de12 dec::d128"
    ),
    "4.2.2.1. Configuring\n  5.2.7.4 The route\n| 3.2.2.5 | x\n4.3.17.2  job-impressions",
    (
        "@media (min-width: 768px) and (max-width: 1024px) { @import url(a.css); } .a{margin:0 12px"
        " 16px 20px}"
    ),
    "2023-11-27T10:15:30Z 27.11.2023 11/27/2023 20231127 1700000000 1700000000123",
]
PIECES = st.sampled_from(
    [
        *"@.:-+/ ()<>*\n_a1",
        *(text for text, _ in FOUND),
        *KEPT,
        "例",
        "at",
        " dot ",
        "From: Jane Doe",
        "\r\n",
        "\u202e\u0661",
    ]
)
