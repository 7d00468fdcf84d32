"""Lists the sentences by which nothing was chosen; form as in `benchmarks.data.phone_templates`."""

from __future__ import annotations

PHONES = {
    "zh": """周三晚上聚餐，订位的是小刘，电话{n}。
维修师傅的号码是{n}，上门前会联系您。
本店外卖专线{n}，满三十元起送。
会议室预定请找行政部赵敏 {n}。
急事可以直接打{n}找我爱人。""",
    "en": """Landlord's phone is {n}, but he rarely picks up.
Questions? Call the box office on {n}.
You'll find me at {n} most evenings.
To cancel, phone {n} at least a day ahead.
Emergency contact: Ruth Allen, {n}.""",
    "de": """Wer mitfahren will, meldet sich bei Jana, {n}.
Kartenvorverkauf telefonisch unter {n}.
Der Hausmeister hat die Nummer {n}.
Notfallkontakt: Petra Lang, Handy {n}.
Ruft mich an: {n}!""",
    "fr": """Réservations au {n}, places limitées.
Le numéro du gardien est le {n}.
En cas d'urgence, téléphonez au {n}.
Contact presse : Luc Morel, {n}.
Mobile {n}, répondeur en journée.""",
    "es": """Reservas en el teléfono {n}, aforo limitado.
El número del portero es {n}.
En caso de urgencia, telefonee al {n}.
Contacto de prensa: Lucía Romero, {n}.
Móvil {n}, contestador por la mañana.""",
    "ja": """管理人さんの番号は{n}です。
参加希望の方は{n}に電話してください。
取材の連絡先：広報 山本 {n}
キャンセルの際は前日までに{n}へお電話ください。
夜間は携帯{n}が繋がります。""",
    "ru": """Билеты заказывайте по телефону {n}.
Номер вахты {n}, отвечают не сразу.
Для прессы: Анна Орлова, тел. {n}.
Если что, набирай {n}, это рабочий.
Экстренная связь: {n}.""",
    "pt": """Reservas pelo telefone {n}, lugares limitados.
O número do porteiro é {n}.
Em caso de emergência, telefone para {n}.
Contato para imprensa: Lúcia Prado, {n}.
Celular {n}, caixa postal durante o dia.""",
    "hi": """चौकीदार का नंबर {n} है।
बुकिंग के लिए {n} पर फ़ोन करें।
आपातकाल में {n} पर कॉल कीजिए।
प्रेस संपर्क: नेहा गुप्ता, {n}
मोबाइल {n} रात में भी चालू रहता है।""",
    "ar": """رقم الحارس {n} ولا يرد أحيانا.
للحجز هاتفيا {n} والأماكن محدودة.
في حالات الطوارئ اتصل على {n}.
للصحافة: منى السيد، هاتف {n}.
الجوال {n} يعمل مساء فقط.""",
}
LOOKALIKES = {
    "zh": """合同编号{d11}，签署日期{w}。
服务器在{t}重启，进程号{d8}。
本书条形码{d13}，第{v}版。
银行流水{d12}已核对。""",
    "en": """Confirmation {d10}, check-in {w}.
The build {v} took {d8} cycles and ended at {t}.
Barcode {d13} on the box, lot {d9}.
Policy {d11} renews automatically.""",
    "de": """Buchungsnummer und Beleg {d10}, Anreise {w}.
Build {v} endete bei {t} nach {d8} Schritten.
Strichcode {d13}, Charge {d9}.
Versicherungsschein {d11} verlängert sich.""",
    "fr": """Réservation, dossier {d10}, arrivée le {w}.
La version {v} date de {t} et compte {d8} lignes.
Code-barres {d13}, lot {d9}.
Contrat d'assurance {d11} reconduit.""",
    "es": """Reserva, localizador y expediente {d10}, llegada {w}.
La versión {v} es de {t} y tiene {d8} líneas.
Código de barras {d13}, lote {d9}.
Póliza y contrato {d11} renovados.""",
    "ja": """予約の管理番号{d10}、到着{w}
バージョン{v}は{t}に公開、{d8}行あります。
バーコード{d13}、ロット{d9}
保険契約{d11}は自動更新です。""",
    "ru": """Бронь, заказ {d10}, заезд {w}.
Сборка {v} от {t}, строк {d8}.
Штрихкод {d13}, партия {d9}.
Страховой полис {d11} продлён.""",
    "pt": """Reserva, processo {d10}, chegada em {w}.
A versão {v} é de {t} e tem {d8} linhas.
Código de barras {d13}, lote {d9}.
Apólice e contrato {d11} renovados.""",
    "hi": """आरक्षण और बुकिंग {d10}, आगमन {w}।
संस्करण {v} में {d8} पंक्तियाँ हैं।
बारकोड {d13}, खाता {d9}।
बीमा आवेदन {d11} स्वीकृत।""",
    "ar": """حجز رقم {d10} والوصول {w}.
الإصدار {v} يحتوي {d8} سطرا.
الباركود {d13} والطلب {d9}.
عقد التأمين {d11} مجدد.""",
}
