"""Numbers the kinds of candidates of personal data that kernels and checks agree on.

A row of the kernel has a kind and a value. Those in `BY_VALUE` are decided by their value alone
(digits as one number, see there), those in `BY_TEXT` by the bytes of the span; others are final.
"""

from __future__ import annotations

EMAIL, IP4, MAC, CARD, API_KEY, IBAN = range(6)
PRIVATE_KEY, NAME = 6, 7
"""Found by `tasks.pii.phrases`, not by the kernel; final."""
PHONE, LOCAL_PHONE = 8, 9
"""Value: all digits; for LOCAL_PHONE times MAX_PHONE_SHAPES plus the number of the shape."""
PLAIN_PHONE, LABELLED_PHONE = 10, 11
"""National numbers in other groups: where they are grouped as numbers are, and behind a word that
goes with them. Value: digits times MAX_DIGITS plus how many there are."""
TOLD_PHONE, CN_MOBILE = 12, 13
"""Behind a word that names a telephone, and unbroken mobile numbers of China; final."""
NATIONAL_PHONES = range(LOCAL_PHONE, CN_MOBILE + 1)
MAX_DIGITS = 16
SECRET = 14
POSTAL_ADDRESS, DATE_OF_BIRTH = 18, 19
"""Found by a model, as NAME may be; final."""
IP6, IT_CF = 16, 17
CN_RIC, US_SSN, DE_IDNR, FR_NIR, ES_DNI, ES_NIE, IN_AADHAAR, BR_CPF, KR_RRN, PL_PESEL, NL_BSN = (
    range(32, 43)
)
"""Value: all digits. CN_RIC: 17 digits times 16 plus the last one or 10 for X. ES_DNI: digits times
32 plus the letter (A is 1). ES_NIE: the same, the digits led by 0, 1, 2 for X, Y, Z."""

BY_TEXT = (IP6, IT_CF)
BY_VALUE = (PHONE, LOCAL_PHONE, PLAIN_PHONE, LABELLED_PHONE, *range(CN_RIC, NL_BSN + 1))

NATIONAL_IDS = {
    "CN_RIC": CN_RIC,
    "US_SSN": US_SSN,
    "DE_IDNR": DE_IDNR,
    "FR_NIR": FR_NIR,
    "ES_DNI": ES_DNI,
    "ES_NIE": ES_NIE,
    "IT_CF": IT_CF,
    "IN_AADHAAR": IN_AADHAAR,
    "BR_CPF": BR_CPF,
    "KR_RRN": KR_RRN,
    "PL_PESEL": PL_PESEL,
    "NL_BSN": NL_BSN,
}
SHAPE_BITS = 10
MAX_PHONE_SHAPES = 1 << SHAPE_BITS

TYPES = {
    "PRIVATE_KEY": (PRIVATE_KEY,),
    "API_KEY": (API_KEY,),
    "SECRET": (SECRET,),
    "EMAIL": (EMAIL,),
    "IBAN": (IBAN,),
    "CARD": (CARD,),
    "NATIONAL_ID": tuple(NATIONAL_IDS.values()),
    "IP": (IP4, IP6),
    "MAC": (MAC,),
    "PHONE": (PHONE, *NATIONAL_PHONES),
    "NAME": (NAME,),
    "POSTAL_ADDRESS": (POSTAL_ADDRESS,),
    "DATE_OF_BIRTH": (DATE_OF_BIRTH,),
}
"""The kinds of each type, in order of precedence where spans overlap."""
TYPE_NAMES = tuple(TYPES)
MODEL_TYPES = ("NAME", "POSTAL_ADDRESS", "DATE_OF_BIRTH")
"""What a model of named entities can find."""
FORM_TYPES = TYPE_NAMES[: TYPE_NAMES.index("NAME") + 1]
"""What is found by its form."""
TYPE_OF_KIND = {kind: number for number, members in enumerate(TYPES.values()) for kind in members}
NUM_KINDS = 64
LABELLED = {"EMAIL": (250, 250), "IP": (34, 34), "NAME": (249, 250), "PHONE": (4, 4)}
"""{type: (right, judged)} of the labels in the sample, which a test measures again."""
