"""Lists sentences for telephone numbers and for what only looks like them, in ten languages.

`{n}` is a number. `{d8}` to `{d13}` are digits, `{t}` seconds and `{m}` milliseconds since 1970,
`{v}` a version, `{w}` a day. The holdout has other sentences, which is in
`benchmarks.data.phone_holdout`; words of `tasks.definitions.number_words` were chosen by these
alone.
"""

from __future__ import annotations

PHONES = {
    "zh": """如有疑问，请拨打{n}，我们会尽快回复。
联系人：王小明，手机：{n}
公司电话 {n}，传真另行通知。
我的手机号是{n}，有事打给我。
张经理 {n} 负责华东区业务。
客服热线：{n}（周一至周五 9:00-18:00）
房东李女士的联系电话是{n}，看房请提前预约。
投诉请致电{n}或发送邮件。
微信同号：{n}，加好友请备注。
前台座机{n}，分机号请咨询总机。
快递员刚刚来电，号码是{n}。
有意者请联系陈先生，{n}。""",
    "en": """Please call {n} if you have any questions.
Phone: {n}
You can reach Sarah on her cell at {n} after six.
For reservations dial {n} or write to the front desk.
Contact John Smith, {n}, for details about the flat.
Fax {n}, open Monday to Friday.
My new number is {n}, the old one stops working on Friday.
If nobody answers, try the mobile: {n}.
Office tel. {n}, ask for the night manager.
Text me at {n} when you land.
Our hotline ({n}) is open around the clock.
Mum can be reached at {n} during the holidays.""",
    "de": """Sie erreichen uns unter {n} von 9 bis 17 Uhr.
Telefon: {n}
Meine Handynummer ist {n}, ruf einfach an.
Bei Rückfragen wenden Sie sich bitte an Frau Weber, Tel. {n}.
Bitte rufen Sie mich morgen unter {n} zurück.
Fax: {n}, Bürozeiten nach Vereinbarung.
Unsere Hotline {n} ist rund um die Uhr besetzt.
Mobil: {n}, privat bitte nur abends.
Die Praxis ist telefonisch erreichbar: {n}.
Schick mir eine SMS an {n}, wenn du da bist.
Ansprechpartner ist Herr Koch ({n}).
Die Rufnummer der Zentrale lautet {n}.""",
    "fr": """Vous pouvez nous joindre au {n} du lundi au vendredi.
Tél. : {n}
Appelez le {n} pour prendre rendez-vous.
Mon numéro de portable est le {n}, n'hésitez pas.
Pour toute question, contactez Mme Durand au {n}.
Téléphone {n}, ouvert de 9 h à 18 h.
Le secrétariat répond au {n} tous les matins.
Portable : {n}, laissez un message.
Envoyez un SMS au {n} pour confirmer.
Composez le {n} puis suivez les instructions.
Fax {n}, à l'attention de M. Petit.
Le standard (tél. {n}) ferme à midi.""",
    "es": """Llámame al {n} cuando puedas.
Teléfono: {n}
Para más información, llame al {n} en horario de oficina.
Mi móvil es {n}, escríbeme por WhatsApp.
Contacte con la señora García en el {n}.
Puede comunicarse con nosotros al {n} o visitar la oficina.
Nuestro número de atención es el {n}, sin coste.
Cel. {n}, preguntar por Andrés.
Reserve por teléfono en el {n} hasta las ocho.
Mándame un mensaje de WhatsApp al {n} esta noche.
Fax: {n}, a la atención de contabilidad.
Marque el {n} y espere a la operadora.""",
    "ja": """お問い合わせは{n}までお願いいたします。
電話番号：{n}
携帯は{n}ですので、いつでもご連絡ください。
ご予約はお電話（{n}）で承ります。
TEL {n} 受付時間は10時から18時です。
担当の田中（{n}）までご連絡ください。
フリーダイヤル {n} へおかけください。
緊急連絡先は{n}です。
FAXは{n}へお送りください。
店舗の電話は{n}、駐車場は二台です。
母の携帯番号が{n}に変わりました。
詳しくは事務局（電話 {n}）へ。""",
    "ru": """Звоните по телефону {n} с 9 до 18 часов.
Тел.: {n}
Мой номер {n}, перезвоните вечером.
Для записи позвоните {n} или зайдите к нам.
Контактный телефон: {n}, спросить Ивана.
Моб. {n}, звонить после шести.
Горячая линия работает круглосуточно: {n}.
Факс: {n}, приёмная директора.
Пишите в WhatsApp на {n}, отвечу сразу.
Сотовый Марины {n}, городского нет.
По всем вопросам связывайтесь с Петром: {n}.
Запись на приём по номеру {n} ежедневно.""",
    "pt": """Ligue para {n} e marque a sua consulta.
Telefone: {n}
Meu celular é {n}, pode chamar no WhatsApp.
Entre em contato pelo {n} de segunda a sexta.
Fale com a Maria no número {n} para reservar.
Tel. {n}, aberto das 9h às 18h.
O nosso contacto é o {n}, atendemos até às sete.
Telemóvel: {n}, só à noite.
Mande mensagem para o WhatsApp {n} com o seu nome.
Fax {n}, ao cuidado da secretaria.
Disque {n} e aguarde o atendente.
Para orçamentos, chame no {n} sem compromisso.""",
    "hi": """अधिक जानकारी के लिए {n} पर कॉल करें।
मोबाइल नंबर: {n}
मेरा फोन नंबर {n} है, शाम को बात करते हैं।
कृपया {n} पर संपर्क करें।
दुकान का फोन: {n}, सुबह दस बजे से खुला।
राहुल शर्मा, मोबाइल {n}, वार्ड सात।
हमारा हेल्पलाइन नंबर {n} चौबीस घंटे चालू है।
व्हाट्सएप करें: {n}
डॉक्टर साहब से मिलने के लिए {n} पर फ़ोन लगाइए।
दूरभाष {n}, कार्यालय समय में।
मेरा नया नंबर {n} सेव कर लो।
संपर्क सूत्र: अनीता वर्मा, {n}""",
    "ar": """للاستفسار يرجى الاتصال على {n} من التاسعة صباحا.
هاتف: {n}
رقم جوالي هو {n} ويمكنك مراسلتي مساء.
اتصل بنا على الرقم {n} للحجز.
تواصل معنا عبر واتساب {n} في أي وقت.
الهاتف {n} والفاكس في الصفحة التالية.
خط المساعدة {n} متاح على مدار الساعة.
جوال: {n} بعد صلاة العصر.
يمكنكم التواصل مع الأستاذ خالد على {n} يوميا.
أرسل رسالة نصية إلى الموبايل {n} لتأكيد الموعد.
فاكس {n} عناية قسم المحاسبة.
للحجز والاستعلام اتصلوا بالرقم {n} قبل الخميس.""",
}
LOOKALIKES = {
    "zh": """您的订单号为{d11}，请妥善保管。
快递单号：{d12}，预计明天送达。
时间戳 {t} 对应的记录已删除。
产品序列号{d10}，版本 {v}。
账号{d11}已于{w}注销。
流水号{d12}对应的发票尚未开具。
运单{d13}已签收，取件时间{w}。
设备编号：{d10}，固件 {v}
日志文件大小为{d9}字节，生成于{m}。
身份证尾号核验失败，案号{d11}。""",
    "en": """Your order number is {d10} and it ships on {w}.
The job started at {t} and finished at {m}.
Invoice {d9}, account {d12}, paid in full.
Serial number {d11}, firmware {v}.
Read {d10} bytes from record id {d8}.
Tracking {d12} was scanned in Memphis on {w}.
See ticket {d8} and commit {d10} for the fix.
The population grew from {d8} to {d9} in a decade.
ISBN {d13}, catalogue number {d10}, edition {v}.
Session {d11} expired at {t}.""",
    "de": """Ihre Bestellnummer lautet {d10}, Versand am {w}.
Rechnung Nr. {d9} über den Kunden {d8}.
Seriennummer {d11}, Version {v}.
Der Zeitstempel {t} gehört zum Vorgang {d10}.
Kontonummer {d10}, Verwendungszweck siehe oben.
Die Sendung {d12} wurde am {w} zugestellt.
Aktenzeichen {d9}, Mitglied {d8}.
Artikelnummer {d10}, Charge {d9}, Stand {v}.
Die Datei hat {d9} Bytes, erzeugt um {m}.
Ticket {d8} wurde geschlossen, Vertrag {d11} läuft weiter.""",
    "fr": """Votre commande {d10} sera livrée le {w}.
Facture no {d9}, référence client {d8}.
Numéro de série {d11}, version {v}.
L'horodatage {t} correspond au dossier {d10}.
Colis {d12} remis au gardien.
Le dossier {d9} a été clos le {w}.
Suivi du colis : {d12}
Contrat {d10}, adhérent {d8}, avenant {v}.
Le fichier pèse {d9} octets, créé à {m}.
SIRET {d13}, code client {d8}.""",
    "es": """Su pedido {d10} llegará el {w}.
Factura {d9}, referencia {d11}.
Número de serie {d11}, versión {v}.
El registro {t} pertenece al expediente {d10}.
Cuenta {d12}, titular desconocido.
El expediente {d9} se cerró el {w}.
Número de seguimiento: {d12}
Contrato {d10}, lote {d8}, revisión {v}.
El archivo ocupa {d9} bytes y se creó en {m}.
Código de artículo {d11}, agotado.""",
    "ja": """ご注文番号は{d11}です。{w}に発送します。
伝票番号：{d12}
製造番号 {d10}、バージョン {v}
タイムスタンプ{t}のログを確認しました。
会員番号{d9}でログインしてください。
追跡番号{d12}の荷物は{w}に届きました。
お客様番号：{d10}
契約番号{d9}、改訂 {v}
ファイルの大きさは{d9}バイト、作成は{m}です。
商品コード{d11}は在庫切れです。""",
    "ru": """Номер заказа {d10}, доставка {w}.
Счёт № {d9} от клиента {d8}.
Серийный номер {d11}, версия {v}.
Метка времени {t} относится к заявке {d10}.
ИНН {d10}, КПП {d9}.
Трек-номер {d12}, получено {w}.
Договор {d9}, лицевой счёт {d10}.
Артикул {d8}, партия {d10}, редакция {v}.
Размер файла {d9} байт, создан в {m}.
Обращение {d11} закрыто без ответа.""",
    "pt": """O pedido {d10} será entregue em {w}.
Nota fiscal {d9}, cliente {d8}.
Número de série {d11}, versão {v}.
O processo {d11} foi aberto no instante {t}.
Conta {d12}, agência central.
O protocolo {d10} foi encerrado em {w}.
Código de rastreio: {d12}
Contrato {d9}, matrícula {d8}, revisão {v}.
O ficheiro tem {d9} bytes e foi criado em {m}.
Boleto {d13} pago.""",
    "hi": """आपका ऑर्डर नंबर {d10} है, {w} को पहुँचेगा।
बिल क्रमांक {d9}, खाता {d12}।
सीरियल नंबर {d11}, संस्करण {v}।
टिकट {d10} बंद कर दिया गया।
रसीद संख्या {d8} संभाल कर रखें।
शिकायत क्रमांक {d10} का निपटारा {w} को हुआ।
ट्रैकिंग आईडी: {d12}
पंजीकरण संख्या {d9}, आवेदन {d8}।
फ़ाइल {d9} बाइट की है।
लेनदेन आईडी {d11} सफल रही।""",
    "ar": """رقم الطلب {d10} وسيصل يوم {w}.
فاتورة رقم {d9} للحساب {d12}.
الرقم التسلسلي {d11} والإصدار {v}.
رقم الشحنة {d12} قيد التوصيل.
المعاملة {d10} مكتملة.
رقم التتبع {d12} وتم التسليم في {w}.
رقم العقد {d9} والملف {d8}.
رقم المنتج {d10} والنسخة {v}.
حجم الملف {d9} بايت.
رقم التذكرة {d11} مغلقة.""",
}
