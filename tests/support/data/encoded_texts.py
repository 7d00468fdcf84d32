"""A sentence for each encoding of the readers' tests, with characters that it has."""

from __future__ import annotations

TEXTS = {
    "gb18030": "今天天气很好，我们一起去公园散步，看见许多人在湖边钓鱼。",
    "big5": "今天天氣很好，我們一起去公園散步，看見許多人在湖邊釣魚。",
    "shift_jis": "今日は天気がとても良いので、公園へ散歩に行きました。",
    "euc_jp": "今日は天気がとても良いので、公園へ散歩に行きました。",
    "iso2022_jp": "今日は天気がとても良いので、公園へ散歩に行きました。",
    "euc_kr": "오늘은 날씨가 매우 좋아서 공원으로 산책을 갔습니다.",
    "koi8_r": "Сегодня очень хорошая погода, и мы пошли гулять в парк.",
    "cp1251": "Сегодня очень хорошая погода, и мы пошли гулять в парк.",
    "cp1252": "Heute ist das Wetter sehr schön, und wir gingen über die Brücke.",
    "cp1253": "Σήμερα ο καιρός είναι πολύ καλός και πήγαμε βόλτα στο πάρκο.",
    "cp1255": "היום מזג האוויר יפה מאוד והלכנו לטייל בפארק.",
    "cp1256": "الطقس اليوم جميل جدا وذهبنا للتنزه في الحديقة.",
    "utf-16": "Heute ist das Wetter sehr schön, 今天天气很好。",
    "utf-32": "Heute ist das Wetter sehr schön, 今天天气很好。",
    "utf-16-le": "A text without a mark, mostly in ASCII, as Windows writes it: schön.",
}
