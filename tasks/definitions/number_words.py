"""Lists the words that say what a number is: a telephone, a card, an address, or something else.

`word` is a whole word, `word-` the beginning of one, `-word-` any part of one; `_` is a blank.
Words in scripts without blanks, and in Arabic and Hebrew, whose particles are written together
with
the word, count anywhere. Case makes no difference. Signs belong to a word that means something
else
without them ("no").
"""

from __future__ import annotations

NAMES = """
phone phones -telephone- telephon- tele tel telf telp tlf tph cell -cellphone- mobile mobiles mob
fax telefax hotline helpline landline toll-free tollfree whatsapp wa.me viber sms gsm msisdn
voicemail ph phone_no_ helpdesk reception
-telefon- -handynummer- handy handys mobil mobilnummer -rufnummer- durchwahl festnetz- fon
téléphone- tél mobile télécopie télécopieur
-teléfono- -telefono- -teléf- telf. tfno tfno. tlfno tlfno. móvil móviles celular celulares cel
-telefone- telemóvel telemovel celular fone zap
cellulare cell gsm telefoon telefoonnummer mobiel telepon hp: ponsel komórka kom điện_thoại
sđt đt puhelin puh matkapuhelin τηλέφωνο- τηλ κινητό
-телефон- тел моб мобильн- сотов- факс горячая_линия горячей_линии ватсап вайбер трубк-
電話 电话 電話 手机 手機 手机号 行動電話 座机 热线 熱線 传真 傳真 专线 專線 微信同号 联系方式
聯絡方式 联系号码 携帯 携帯番号 ケータイ ファックス フリーダイヤル テレフォン 連絡先 直通 代表番号
전화 휴대폰 핸드폰 연락처 팩스 휴대전화
फ़ोन फ़ोन फोन मोबाइल दूरभाष टेलीफोन टेलीफ़ोन व्हाट्सएप व्हाट्सऐप हेल्पलाइन संपर्क_नंबर
ফোন মোবাইল موبائل فون تلفن همراه
هاتف جوال موبايل تلفون تليفون فاكس واتساب واتس محمول نقال الخلوي خلوي الخط_الساخن
خط_المساعدة
โทร มือถือ טלפון נייד פקס
"""
"""Words that name a telephone."""

CALLS = """
call calls calling callback dial dialing dialling ring contact contacts reach
reached_at me_at us_at him_at her_at reachable text_me text_us texted message_me my_number
my_new_number
your_number his_number her_number our_number their_number its_number ping_me call-in
ansprechpartner- anrufen anruf anrufe anrufbar erreichen erreichbar erreichst erreicht kontakt
melden melde
meldet wählen wähle durchklingeln zurückrufen rufen rufe ruf ruft kontaktieren -meine_nummer-
portable répond répondent répondre répondeur appeler appelez appelle appellent appel appels rappeler
rappelez rappelle joindre joignable
joignez contacter contactez contact composer composez réservations_au réservation_au réservez_au
réserver_au mon_numéro son_numéro notre_numéro
llamar llame llama llamen llámenos llámame llámeme llamando llamada llamadas contactar contacte
contacto contáctenos marcar marque marca marcando comunicarse comuníquese escríbeme mi_número
su_número localizarme
ligar ligue liga ligou ligação ligações contato contatos contactar contacto contate discar disque
chamar chame chamada retornar meu_número seu_número falar_com fale_com
chiamare chiama chiami chiamate contattare contattateci recapito arayın arayınız hubungi bel
gọi liên_hệ dzwonić
связыва- свяж- звони- позвони- звонок звонки звонк- перезвони- дозвони- набери- набира- набрать
наберите
связаться
свяжитесь
связь контакт- мой_номер его_номер её_номер наш_номер пишите_на
拨打 撥打 致电 致電 联系 聯繫 聯絡 联络 打给 来电 來電 请拨 拨 撥 打我 打他 打她 回电 短信 咨询
諮詢
お問い合わせ お問合せ 問い合わせ 連絡 おかけ かけて 通話 受付時間 ダイヤル
연락 문의
संपर्क कॉल सम्पर्क मेरा_नंबर मेरा_नम्बर
اتصل اتصال الاتصال للاتصال يتصل تتصل اتصلوا راسل تواصل التواصل رقمي رقمه رقمها
"""
"""Words that go with a telephone number and with other things."""

OTHERS = """
order orders ordered invoice invoices receipt id ids uid gid pid ref reference references serial
sku
isbn issn doi ean upc gtin ticket tickets tracking shipment account acct iban bic swift item items
part parts model models commit build builds version versions release revision timestamp epoch unix
unixtime transaction txn case batch lot patent patents imei iccid vin zip zipcode postcode bytes
record booking confirmation policy member membership customer licence license registration
passport
tax vat hash token session request row rows line lines page pages size seed port offset code codes
bug issue cve rfc nct pmid arxiv oclc lccn asin refid transactionid cep postal seq ack tsn
telefonia telefonía telephony hs article population dollars eur usd catalog
catalogue barcode checksum file files log logs dataset process job jobs user device build_id
order-
token-ring token_ring
product products employee student meter index key keys number_of
-bestell- -rechnung- -kunden- -auftrag- -artikel- -serien- aktenzeichen -konto- -vorgang-
-sendung-
zeitstempel -vertrag- -ticket- -beleg- -lieferschein- -mitglied- -versicherung- steuer- -ausweis-
kennung kennziffer -personal- matrikel- -teile- -version- -modell- -charge- az -faktur- -paket-
commande commandes facture factures référence réf dossier compte client cliente colis suivi série
siret siren contrat article horodatage identifiant adhérent livraison reçu lot dossier
pedido pedidos factura facturas referencia expediente cuenta guía albarán recibo contrato artículo
lote envío seguimiento identificador serie nif cédula registro trámite folio boleto reserva
fatura nota processo conta protocolo boleto rastreio rastreamento código códigos inscrição cnpj
cpf
matrícula encomenda contrato apólice lote identificação requisição versão
заказ- счёт- счет- артикул- серийн- инн огрн кпп снилс окпо накладн- договор- трек- посылк-
отправлени- версия версии идентификатор- квитанци- чек чека чеку обращени- заявк- билет- лицев-
полис- паспорт- партия партии код кода метка изделие изделия
订单 訂單 编号 編號 单号 單號 流水 账号 帐号 賬號 帳號 账户 帳戶 身份证 序列 型号 版本
时间戳 時間戳 条码 條碼 条形码 货号 貨號 学号 工号 车牌 税号 批号 邮编 邮政编码 发票 發票 案号
icp备 网安备 备案 合同
运单 快递 取件 会员 代码 编码 用户号 户号 设备 交易 凭证 报名 准考证 证号 微博 qq 群号
注文 伝票 受付番号 会員 口座 型番 追跡 管理番号 整理番号 製造番号 予約 顧客 請求 商品 品番
シリアル
バージョン タイムスタンプ 識別 契約 社員番号 番号札 お客様番号 問い合わせ番号
주문 송장 계좌 운송장 일련번호
ऑर्डर आदेश बिल खाता क्रमांक रसीद इनवॉइस संदर्भ सीरियल ट्रैकिंग टिकट आईडी पंजीकरण लेनदेन चालान
संस्करण शिकायत आवेदन बुकिंग
طلب فاتورة حساب مرجع تسلسلي شحنة تتبع معاملة ملف تذكرة معرف إصدار الإصدار عقد إيصال حجز منتج
"""
"""Words that say that a number is something else; the word next to the number decides."""

NUMBERS = """
number numbers no. no: nr nr. num. nummer nummern numéro numéros número números numero
номер- номеру
नंबर नम्बर 番号 号码 號碼 번호 رقم الرقم
"""
"""Words that say that a number follows; the word before them says of what."""

CARDS = """
card cards visa mastercard maestro amex mir credit debit unionpay cc cvv carte carta tarjeta
cartão
-karte- -kreditkarte- bancaire crédito credito карт- カード 卡号 卡號 银行卡 信用卡 储蓄卡 借记卡
銀行卡 카드
कार्ड بطاقة kart kartı
"""
"""Words that go with numbers of payment cards."""

ADDRESSES = """
ip ips ipv4 ipaddr address addresses addr host hosts hostname dns nameserver nameservers gateway
router ping pinged inet netmask subnet network peer dst dhcp bcast broadcast proxy resolver
-adresse- adresse adresses dirección direcciones endereço indirizzo адрес- шлюз- хост- узел узла
地址 アドレス 主机 主機 服务器 伺服器 网关 サーバ 주소 عنوان आईपी
"""
"""Words that go with addresses of machines."""
